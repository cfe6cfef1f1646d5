"""Series: the checkpoints of one run in one folder, named by step, of which the last are kept.

::

    PATH/step-000001200/    a checkpoint, docs/checkpoint_format.md
    PATH/step-000001300/
    PATH/.step-000001400.4711/    one that process 4711 is writing, or was when it was killed
"""

import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from hetero_pipe.errors import CheckpointError
from hetero_pipe.trainer.checkpoint import (
    MANIFEST,
    Checkpoint,
    make_folder,
    read_checkpoint,
    writing_checkpoint,
)

__all__ = ["Series", "has_checkpoint", "read_newest"]

logger = logging.getLogger(__name__)

STEP = re.compile(r"step-(\d{9,})")
ASIDE = re.compile(r"\.(step-\d{9,})\.old")
UNFINISHED = re.compile(r"\.step-\d{9,}\.\d+")


class Series:
    """The checkpoints of one run. One process at a time writes to the folder.

    Args:
        folder: Of all of them.
        keep: How many stay.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder.resolve()
        self._keep = keep

    def path_of(self, step: int) -> Path:
        """Returns the folder of the checkpoint after so many steps."""
        return self.folder / f"step-{step:09d}"

    def begin(self, step: int) -> None:
        """Makes the folder ready for a run that has trained so many steps.

        What a crash left is removed.

        Raises:
            CheckpointError: The folder is a checkpoint itself, or cannot be written
                to, or it has a whole one of a later step, which `read_newest` would
                take in place of this run's.
        """
        if (self.folder / MANIFEST).exists():
            raise CheckpointError(
                f"with save_every, save_to is a folder of checkpoints, got {self.folder}, which is "
                "one itself; name another folder"
            )
        with writing_checkpoint(self.path_of(step)):
            """Making its folder is the check; it is removed again."""
        try:
            self._tidy()
        except OSError as error:
            raise CheckpointError(
                f"a folder of checkpoints must be writable, got {error} for {self.folder}"
            ) from error
        later = next((s for s in _steps_in(self.folder) if s > step and self._is_whole(s)), None)
        if later is not None:
            raise CheckpointError(
                f"a run saves where no later one has, got step {step} and {self.path_of(later)}; "
                "load that folder to go on with it (--resume), or name another one"
            )

    def prune(self, step: int) -> None:
        """Removes the oldest ones, once that of `step` is whole."""
        for old in [s for s in _steps_in(self.folder) if s <= step][self._keep :]:
            # By one rename: a crash leaves it whole, or as one that was never finished.
            unwanted = self.folder / f".{self.path_of(old).name}.{os.getpid()}"
            shutil.rmtree(unwanted, ignore_errors=True)
            self.path_of(old).rename(unwanted)
            shutil.rmtree(unwanted)

    def _tidy(self) -> None:
        """Removes what was being written or replaced when a process was killed."""
        make_folder(self.folder)
        for path in self.folder.iterdir():
            if UNFINISHED.fullmatch(path.name):
                logger.info("removing %s, which was not finished", path)
                shutil.rmtree(path)
            elif (match := ASIDE.fullmatch(path.name)) is not None:
                if (self.folder / match[1]).exists():
                    shutil.rmtree(path)
                else:
                    path.rename(self.folder / match[1])

    def _is_whole(self, step: int) -> bool:
        try:
            read_checkpoint(self.path_of(step))
        except CheckpointError as error:
            logger.warning("%s", error)
            return False
        return True


def has_checkpoint(path: str | Path) -> bool:
    """Returns whether a run has saved at `path`: a checkpoint, or a folder of some.

    Whether one is whole is seen by `Trainer.load`, which says what is wrong with those that
    are not. For a script that goes on where it was killed, or else begins.

    >>> has_checkpoint("nowhere")
    False
    """
    folder = Path(path)
    aside = folder.with_name(f".{folder.name}.old")  # if it was killed while it replaced one
    is_one = any((each / MANIFEST).exists() for each in (folder, aside))
    return is_one or next(_steps_in(folder), None) is not None


def read_newest(path: Path) -> Checkpoint:
    """Returns the checkpoint at `path`, or else the newest whole one in that folder.

    Those that are broken are skipped; a warning says what is wrong with each.

    Raises:
        CheckpointError: There is none, or none is whole.
    """
    series = Series(path, keep=1)
    steps = [] if (series.folder / MANIFEST).exists() else list(_steps_in(series.folder))
    if not steps:
        return read_checkpoint(path)
    failures: list[CheckpointError] = []
    for step in steps:
        try:
            return read_checkpoint(series.path_of(step))
        except CheckpointError as error:
            logger.warning("a broken checkpoint is skipped: %s", error)
            failures.append(error)
    raise CheckpointError(
        f"a folder of checkpoints must have one that is whole, got {len(steps)} broken in "
        f"{series.folder}; of the newest: {failures[0]}"
    ) from failures[0]


def _steps_in(folder: Path) -> Iterator[int]:
    """Yields the steps of which there is a checkpoint, whole or not, the latest first."""
    names = os.listdir(folder) if folder.is_dir() else []
    held = (ASIDE.sub(r"\1", name) for name in names)
    matches = (STEP.fullmatch(name) for name in held)
    yield from sorted({int(match[1]) for match in matches if match is not None}, reverse=True)
