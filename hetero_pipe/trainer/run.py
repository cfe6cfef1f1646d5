"""RunSettings: what a run depends on beside its state, and whether a resumed one has the same."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from hetero_pipe.data import Reader, Setting, reader_settings
from hetero_pipe.errors import CheckpointError

__all__ = ["RunSettings", "check_resume", "settings_of"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunSettings:
    """How a run was read and trained.

    Attributes:
        staleness: Pushes that a pull may miss.
        reader: `reader_settings` of the training data; None if unknown.
        num_readers: Workers that share its batches.
    """

    staleness: int
    reader: Mapping[str, Setting] | None
    num_readers: int = 1


def settings_of(reader: Reader, *, staleness: int, num_readers: int = 1) -> RunSettings:
    """Returns the settings of a run that trains on `reader`."""
    return RunSettings(staleness, reader_settings(reader), num_readers)


def check_resume(saved: RunSettings | None, now: RunSettings, *, batch: int) -> None:
    """Says what differs between a saved run and the one that goes on with it.

    Within an epoch, a reader with other settings has other batches: some rows
    would be trained twice and some never, so it is refused. Between two epochs it
    is a choice, which a warning names.

    Args:
        saved: Of the checkpoint; None if it does not say.
        now: Of the run that goes on.
        batch: The next one of the epoch, from 0.

    Raises:
        CheckpointError: The reader differs and `batch` is not 0.
    """
    if saved is None or saved.reader is None or now.reader is None:
        if batch:
            logger.warning(
                "the run goes on at batch %d of an epoch, and nothing is known of the reader %s; "
                "it must be as it was",
                batch,
                "that was saved" if saved is None or saved.reader is None else "that is given now",
            )
        differing = []
    else:
        differing = _differing(saved.reader, now.reader)
    if saved is not None and saved.num_readers != now.num_readers:
        differing.append(f"num_readers={saved.num_readers} saved and {now.num_readers} now")
    if differing and batch:
        raise CheckpointError(
            f"a run that goes on at batch {batch} of an epoch reads as it was saved, got "
            f"{'; '.join(differing)}; use the saved settings, or load(..., resume=False) to begin "
            "an epoch of other data"
        )
    if saved is not None and saved.staleness != now.staleness:
        differing.append(f"staleness={saved.staleness} saved and {now.staleness} now")
    if differing:
        logger.warning("the run goes on with other settings: %s", "; ".join(differing))


def _differing(saved: Mapping[str, Setting], now: Mapping[str, Setting]) -> list[str]:
    names = dict.fromkeys([*saved, *now])
    return [
        f"{name}={saved.get(name)!r} saved and {now.get(name)!r} now"
        for name in names
        if saved.get(name) != now.get(name) or (name in saved) != (name in now)
    ]
