"""Where in a model's source an op was called, or an error raised."""

import linecache
import traceback
from collections.abc import Sequence
from pathlib import Path

import paddle

__all__ = ["line_of_error", "source_of"]

_HERE = str(Path(__file__).parent.parent)
_PADDLE = str(Path(paddle.__file__).parent)
_ENTRY = str(Path(__file__).with_name("static.py"))  # who is above it has called us


def source_of(callstack: Sequence[str]) -> str:
    """Returns FILE:LINE of the innermost frame that is the model's, or else Paddle's.

    Args:
        callstack: Of an op: lines of a traceback, the innermost last; may be empty.
    """
    places = [_place(line) for line in callstack if line.startswith('  File "')]
    entries = [i for i, place in enumerate(places) if place.startswith(_ENTRY)]
    inner = places[entries[-1] + 1 if entries else 0 :]
    inner = [place for place in inner if not place.startswith(_HERE)]
    users = [place for place in inner if not place.startswith(_PADDLE)]
    return (users or inner or [""])[-1]


def line_of_error(error: Exception) -> tuple[str, str]:
    """Returns FILE:LINE of the innermost frame that is the model's, and the text of the line."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith((_HERE, _PADDLE))]
    frame = (users or list(frames))[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{frame.filename}:{frame.lineno}", line


def _place(line: str) -> str:
    """Returns FILE:LINE of a traceback's `File "FILE", line LINE, in FUNCTION`."""
    _, file, rest = line.split('"', 2)
    return f"{file}:{rest.removeprefix(', line ').partition(',')[0]}"
