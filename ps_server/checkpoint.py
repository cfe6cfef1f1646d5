"""A server's checkpoint: all that it holds at one moment, in one folder.

docs/checkpoint_format.md describes the folder. What changed after that moment is in the journal.
"""

import io
import json
import logging
import mmap
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_server.keys import crc32c

__all__ = [
    "KEEP",
    "Checkpoint",
    "CheckpointError",
    "Contents",
    "checkpoint_numbers",
    "newest_checkpoint",
    "remove_leftovers",
    "write_checkpoint",
]

logger = logging.getLogger(__name__)

FORMAT = "ps_server-checkpoint-v1"
MANIFEST = "manifest.json"

KEEP = 2
"""How many there are: the newest, and one more should the disk have damaged it."""

# What a name begins with that is no checkpoint yet, or none any more.
_LEFT = "."

Write = Callable[[int, memoryview], int]
"""Writes bytes to a descriptor and returns how many, as `os.write`."""


class CheckpointError(Exception):
    """A checkpoint is damaged; the message names the file."""


@dataclass(frozen=True, eq=False)
class Contents:
    """What goes into a checkpoint.

    Attributes:
        state: All but arrays and rows; what JSON has.
        arrays: By name, which is one of a file.
        tables: Of each table its name, and the name and content of its
            snapshots. Read once, one after the other.
    """

    state: Mapping[str, Any]  # JSON
    arrays: Mapping[str, NDArray[Any]]
    tables: Iterable[tuple[str, Iterable[tuple[str, bytes | memoryview]]]]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint whose files were all found whole.

    Attributes:
        path: The folder.
        number: Of the first record of the journal that is not in it.
        state: All but arrays and rows, as JSON has it.
        arrays: By name.
        snapshots: The files of each table, by its name.
    """

    path: Path
    number: int
    state: Mapping[str, Any]  # JSON
    arrays: Mapping[str, NDArray[Any]]
    snapshots: Mapping[str, tuple[Path, ...]]


def write_checkpoint(
    folder: Path, number: int, contents: Contents, *, write: Write = os.write
) -> Path:
    """Writes a checkpoint; it is in its place when all of it is on the disk, or not at all.

    Older ones are then removed, but for the last `KEEP`.

    Args:
        folder: Of the checkpoints; created if missing.
        number: Of the first record of the journal that is not in it.
        contents: What the server holds.
        write: Writes bytes.

    Returns:
        Where it is. One of that number that was there and is whole stays.

    Raises:
        OSError: A file cannot be written. Nothing of it is left.
    """
    path = folder / _name_of(number)
    if path.exists():  # the same records make the same state
        try:
            return _read(path).path
        except CheckpointError:
            _remove(path)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{_LEFT}{path.name}"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        _write_all(unfinished, number, contents, write)
        unfinished.rename(path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _sync(folder)
    for old in checkpoint_numbers(folder)[:-KEEP]:
        try:
            _remove(folder / _name_of(old))
        except OSError as error:  # it does no harm, and the next one tries again
            logger.warning("an old checkpoint stays, it cannot be removed: %s", error)
    return path


def _write_all(folder: Path, number: int, contents: Contents, write: Write) -> None:
    files = {}

    def add(name: str, data: bytes | memoryview) -> None:
        _write_file(folder / name, data, write)
        files[name] = {"bytes": len(data), "crc32c": crc32c(data)}

    names = []
    for table, snapshots in contents.tables:
        names.append(table)
        for name, data in snapshots:
            add(f"tables/{table}/{name}", data)
    for name, array in contents.arrays.items():
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        add(f"arrays/{name}.npy", content.getbuffer())
    manifest = {
        "format": FORMAT,
        "number": number,
        "state": contents.state,
        "tables": names,
        "files": files,
    }
    manifest = {**manifest, "crc32c": _crc_of(manifest)}
    folder.mkdir(exist_ok=True)
    _write_file(folder / MANIFEST, json.dumps(manifest, indent=2).encode(), write)
    for inner in (*filter(Path.is_dir, folder.rglob("*")), folder):
        _sync(inner)


def _write_file(path: Path, data: bytes | memoryview, write: Write) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        left = memoryview(data)
        while left:
            left = left[write(file, left) :]
        os.fsync(file)
    finally:
        os.close(file)


def newest_checkpoint(folder: Path, *, first_record: int) -> Checkpoint | None:
    """Returns the newest checkpoint that is whole, None if there is none at all.

    One that is damaged is passed over, with a warning and under the name
    NAME.broken, if an older one is whole and the journal goes on from there,
    or goes back to the beginning. Otherwise its changes would be lost.

    Args:
        folder: Of the checkpoints.
        first_record: Number of the oldest record that the journal has.

    Raises:
        CheckpointError: It is damaged, and no other way leads to the same state.
    """
    broken = []
    for number in reversed(checkpoint_numbers(folder)):
        path = folder / _name_of(number)
        try:
            found = _read(path)
        except CheckpointError as error:
            broken.append((path, error))
            continue
        if broken and number < first_record:
            raise CheckpointError(
                f"{broken[0][1]}; and the journal begins with record {first_record}, too late for "
                f"the older checkpoint {path.name}"
            ) from broken[0][1]
        _set_aside(broken)
        return found
    if broken and first_record > 1:
        raise broken[0][1]
    _set_aside(broken)
    return None


def _set_aside(broken: Iterable[tuple[Path, CheckpointError]]) -> None:
    for path, error in broken:
        logger.warning("%s; the journal makes up for it", error)
        aside = path.with_name(f"{path.name}.broken")
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)


def checkpoint_numbers(folder: Path) -> list[int]:
    """Returns the number of each checkpoint that is there, whole or not, in order."""
    if not folder.is_dir():
        return []
    names = (re.fullmatch(r"checkpoint-(\d{20})", path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in names if match)


def remove_leftovers(folder: Path) -> None:
    """Removes what a crash left in the middle of writing or removing a checkpoint."""
    for path in folder.glob(f"{_LEFT}checkpoint-*"):
        shutil.rmtree(path)


def _read(path: Path) -> Checkpoint:
    """Returns a checkpoint, after checking every file of it.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    manifest = _read_manifest(path / MANIFEST)
    snapshots: dict[str, list[Path]] = {name: [] for name in manifest["tables"]}
    arrays = {}
    for name, expected in manifest["files"].items():
        file = path / name
        _check(file, expected)
        kind, *_ = parts = Path(name).parts
        if kind == "tables":
            snapshots[parts[1]].append(file)
        else:
            arrays[file.stem] = np.load(file, allow_pickle=False)
    return Checkpoint(
        path=path,
        number=manifest["number"],
        state=manifest["state"],
        arrays=arrays,
        snapshots={name: tuple(files) for name, files in snapshots.items()},
    )


def _read_manifest(path: Path) -> dict[str, Any]:  # JSON
    try:
        manifest = json.loads(path.read_bytes())
        crc = manifest.pop("crc32c")
        is_whole = crc == _crc_of(manifest)
        found = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"a checkpoint must have a manifest, got {error!r} for {path}; the file is damaged"
        ) from error
    if not is_whole:
        raise CheckpointError(
            f"a manifest must have the CRC {crc} that it names, got {_crc_of(manifest)} for "
            f"{path}; the file is damaged"
        )
    if found != FORMAT:
        raise CheckpointError(
            f"a checkpoint must have format {FORMAT}, got {found!r} in {path}; start the server in "
            "the version that wrote it"
        )
    assert isinstance(manifest, dict), "a list has no fields"
    return manifest


def _check(path: Path, expected: Mapping[str, int]) -> None:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise CheckpointError(
            f"a checkpoint must have all its files, got {error.strerror} for {path}"
        ) from error
    crc = crc32c(memoryview(data))
    if (size, crc) != (expected["bytes"], expected["crc32c"]):
        raise CheckpointError(
            f"a file must have {expected['bytes']} bytes with CRC {expected['crc32c']}, got {size} "
            f"with {crc} for {path}; the file is damaged"
        )


def _crc_of(manifest: Mapping[str, Any]) -> int:  # JSON
    return crc32c(json.dumps(manifest, sort_keys=True).encode())


def _name_of(number: int) -> str:
    return f"checkpoint-{number:020d}"


def _remove(path: Path) -> None:
    """Removes a checkpoint; a crash in the middle leaves none that looks damaged."""
    gone = path.with_name(f"{_LEFT}{path.name}.old")
    shutil.rmtree(gone, ignore_errors=True)
    path.rename(gone)
    shutil.rmtree(gone)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
