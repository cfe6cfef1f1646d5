"""A checkpoint: one folder with all that a trainer needs to go on. docs/checkpoint_format.md."""

import io
import itertools
import json
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.errors import CheckpointError
from hetero_pipe.trainer.run import RunSettings
from ps_server.keys import KEY_HASH
from ps_server.spec import TableSpec

__all__ = [
    "MANIFEST",
    "Checkpoint",
    "CheckpointWriter",
    "Position",
    "make_folder",
    "read_checkpoint",
    "writing_checkpoint",
]

FORMAT = "hetero_pipe-checkpoint-v2"
# Of an earlier version: without `run` and `progress.npz`.
OLD_FORMAT = "hetero_pipe-checkpoint-v1"
MANIFEST = "manifest.json"
DENSE = "dense.npz"
PROGRESS = "progress.npz"


@dataclass(frozen=True)
class Position:
    """Where a reader stands: the next batch of `fit`'s epochs, both from 0."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were all found whole.

    Attributes:
        path: The folder.
        step: Steps trained.
        position: Of the reader.
        tables: What the tables are, by name.
        dense: Dense state by name.
        snapshots: The files of each table.
        run: How it was read and trained; None if that is not known.
        progress: State of the epoch's metrics (`metrics/...`) and of the random
            generators (`random/...`); None if an earlier version saved it.
    """

    path: Path
    step: int
    position: Position
    tables: Mapping[str, TableSpec]
    dense: Mapping[str, NDArray[Any]]
    snapshots: Mapping[str, tuple[Path, ...]]
    run: RunSettings | None
    progress: Mapping[str, NDArray[Any]] | None


class CheckpointWriter:
    """Writes a checkpoint beside its path and puts it there when it is whole.

    A context manager. Leaving it by an exception removes what was written; the
    checkpoint that was at the path stays.

    Args:
        path: Of the folder. What is there is replaced if it is a checkpoint or
            empty.

    Raises:
        CheckpointError: Something that is no checkpoint is at the path.
    """

    def __init__(self, path: Path) -> None:
        path = path.resolve()
        is_empty = path.is_dir() and not any(path.iterdir())
        if path.exists() and not is_empty and not (path / MANIFEST).exists():
            raise CheckpointError(
                f"a checkpoint replaces another one alone, got {path}, which is none; "
                "name another folder"
            )
        self._path = path
        self._folder = path.with_name(f".{path.name}.{os.getpid()}")
        self._files: dict[str, dict[str, int]] = {}

    def __enter__(self) -> "CheckpointWriter":
        make_folder(self._path.parent)
        self._remove_unfinished()
        self._folder.mkdir()
        return self

    def _remove_unfinished(self) -> None:
        """Removes what processes that were killed had begun to write for this path."""
        unfinished = re.compile(re.escape(f".{self._path.name}.") + r"(\d+)")
        for name in os.listdir(self._path.parent):
            match = unfinished.fullmatch(name)
            if match is not None and (int(match[1]) == os.getpid() or not _is_alive(int(match[1]))):
                shutil.rmtree(self._path.with_name(name), ignore_errors=True)

    def add_snapshot(self, table: str, name: str, pieces: Iterable[bytes]) -> None:
        """Writes one snapshot of a table."""
        self._write(f"tables/{table}/{name}", pieces)

    def finish(
        self,
        *,
        dense: Mapping[str, NDArray[Any]],
        step: int,
        position: Position,
        tables: Iterable[TableSpec],
        run: RunSettings | None,
        progress: Mapping[str, NDArray[Any]],
    ) -> None:
        """Writes the rest, the manifest last, and puts the checkpoint at its path."""
        self._write(DENSE, [_npz_of(dense)])
        self._write(PROGRESS, [_npz_of(progress)])
        manifest = {
            "format": FORMAT,
            "key_hash": KEY_HASH,
            "step": step,
            "position": asdict(position),
            "run": None if run is None else asdict(run),
            "tables": [spec.to_dict() for spec in tables],
            "files": self._files.copy(),
        }
        manifest["crc32"] = _crc_of(manifest)
        self._write(MANIFEST, [json.dumps(manifest, indent=2).encode()])
        for folder in (self._folder, *filter(Path.is_dir, self._folder.rglob("*"))):
            _sync(folder)
        # A folder cannot replace a folder in one step: the old one steps aside until the new one
        # is there, and `read_checkpoint` knows where it is meanwhile. One that was left aside by a
        # crash may be the only one there is.
        aside = _aside(self._path)
        if self._path.exists():
            shutil.rmtree(aside, ignore_errors=True)
            self._path.rename(aside)
        self._folder.rename(self._path)
        _sync(self._path.parent)
        shutil.rmtree(aside, ignore_errors=True)

    def _write(self, name: str, pieces: Iterable[bytes]) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size, crc = 0, 0
        with path.open("wb") as file:
            for piece in pieces:
                file.write(piece)
                size, crc = size + len(piece), zlib.crc32(piece, crc)
            file.flush()
            os.fsync(file.fileno())
        self._files[name] = {"bytes": size, "crc32": crc}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        aside = _aside(self._path)
        if kind is not None and aside.exists() and not self._path.exists():
            aside.rename(self._path)


@contextmanager
def writing_checkpoint(path: Path) -> Iterator[CheckpointWriter]:
    """Returns the writer of a checkpoint at `path`.

    Raises:
        CheckpointError: Something that is no checkpoint is at the path, or a
            file cannot be written. What was there is as it was.
    """
    try:
        with CheckpointWriter(path) as writer:
            yield writer
    except OSError as error:
        raise CheckpointError(
            f"a checkpoint must be written whole, got {error} for {path}; what was there is as it "
            "was"
        ) from error


def read_checkpoint(path: Path) -> Checkpoint:
    """Returns the checkpoint at `path`, after checking every file of it.

    Raises:
        CheckpointError: There is none, or a file is missing or damaged; the
            message names the file.
    """
    path = path.resolve()
    if not path.exists() and _aside(path).exists():
        path = _aside(path)
    manifest = _read_manifest(path / MANIFEST)
    for name, found in manifest["files"].items():
        _check(path / name, found["bytes"], found["crc32"])
    specs = [TableSpec.from_dict(fields) for fields in manifest["tables"]]
    is_old = manifest["format"] == OLD_FORMAT
    run = manifest.get("run")
    return Checkpoint(
        path=path,
        step=manifest["step"],
        position=Position(**manifest["position"]),
        tables={spec.name: spec for spec in specs},
        dense=_arrays_of(path / DENSE),
        snapshots={
            spec.name: tuple(
                path / name
                for name in sorted(manifest["files"])
                if name.startswith(f"tables/{spec.name}/")
            )
            for spec in specs
        },
        run=None if run is None else RunSettings(**run),
        progress=None if is_old else _arrays_of(path / PROGRESS),
    )


def _arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text())
        found = manifest["format"]
        crc = manifest.pop("crc32", None)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"a checkpoint is a folder with {MANIFEST}, got none at {path}; "
            "name the folder that save was given"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"a manifest must be whole, got {error!r} in {path}") from error
    if found not in (FORMAT, OLD_FORMAT):
        raise CheckpointError(
            f"a manifest must have format {FORMAT}, got {found!r} in {path}; "
            "load it with the version that saved it"
        )
    if crc != _crc_of(manifest):
        raise CheckpointError(
            f"a manifest must have the CRC that it names, got {crc} in {path}, which was changed "
            "or damaged; load another checkpoint"
        )
    if manifest["key_hash"] != KEY_HASH:
        raise CheckpointError(
            f"keys must be hashed by {KEY_HASH}, got {manifest['key_hash']} in {path}; "
            "load it with the version that saved it"
        )
    return dict(manifest)


def _npz_of(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Returns what `np.savez` writes, but never a pickle, and equal bytes for equal arrays."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as entries:
        for name, array in arrays.items():
            with entries.open(f"{name}.npy", "w", force_zip64=True) as entry:
                # numpy gives it no types
                np.lib.format.write_array(entry, array, allow_pickle=False)  # type: ignore[no-untyped-call]
    return file.getvalue()


def _crc_of(manifest: Mapping[str, Any]) -> int:
    """Returns the CRC of a manifest without its `crc32`, whatever its layout."""
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def _check(path: Path, size: int, crc: int) -> None:
    remedy = "the checkpoint is damaged, load another"
    try:
        found_size, found_crc = 0, 0
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                found_size, found_crc = found_size + len(piece), zlib.crc32(piece, found_crc)
    except OSError as error:
        raise CheckpointError(f"{path} must be readable, got {error}; {remedy}") from error
    if (found_size, found_crc) != (size, crc):
        raise CheckpointError(
            f"{path} must have {size} bytes with CRC {crc:#010x}, "
            f"got {found_size} with {found_crc:#010x}; {remedy}"
        )


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def make_folder(path: Path) -> None:
    """Makes a folder and those above it that are not there, and has them on disk."""
    missing = list(itertools.takewhile(lambda p: not p.exists(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _sync(folder.parent)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
