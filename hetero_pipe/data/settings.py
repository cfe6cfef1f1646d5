"""What a reader's batches depend on, as JSON: what a resumed run is compared by."""

import zlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hetero_pipe.data.reader import Reader

__all__ = ["Setting", "reader_settings"]

Setting = str | int | float | bool | None


def reader_settings(reader: Reader) -> dict[str, Setting] | None:
    """Returns the settings of a reader by name, such as `batch_size` or `source.paths.0`.

    A reader that is a dataclass has one for each field, and for the fields of its
    fields, but for those of `compare=False`, on which its batches do not depend;
    `kind` is a class. A file is told by name and size: it may lie elsewhere when a
    run is resumed. A function is told by name, an array by its CRC-32. None: the
    reader is no dataclass, and nothing is known of it.

    Raises:
        OSError: A file is not there.
    """
    if not is_dataclass(reader):
        return None
    return dict(_settings("", reader))


def _settings(name: str, value: Any) -> Iterator[tuple[str, Setting]]:  # a field may be anything
    inner = f"{name}." if name else ""
    if isinstance(value, (str, int, float, type(None))):
        yield name, value
    elif isinstance(value, Path):
        yield name, f"{value.name}, {value.stat().st_size} bytes"
    elif isinstance(value, (tuple, list)):
        if all(isinstance(item, str) for item in value):
            yield name, ", ".join(value)
        else:
            for i, item in enumerate(value):
                yield from _settings(f"{inner}{i}", item)
    elif isinstance(value, dict):
        for key in value:
            yield from _settings(f"{inner}{key}", value[key])
    elif isinstance(value, np.ndarray):
        yield name, f"{value.dtype}{list(value.shape)}, crc32 {zlib.crc32(value.tobytes()):#010x}"
    elif is_dataclass(value):
        yield f"{inner}kind", type(value).__name__
        for field in (each for each in fields(value) if each.compare):
            yield from _settings(f"{inner}{field.name}", getattr(value, field.name))
    else:
        yield name, getattr(value, "__qualname__", type(value).__qualname__)
