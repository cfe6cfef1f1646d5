"""Spans: what a process did when. Recorded by trainers and servers alike."""

import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Recorder", "SpanRing", "Spans", "process_name"]

CAPACITY = 1 << 18
"""Spans that a ring keeps: 8 MiB, some 18,000 steps of a trainer."""

# Start and end in seconds, step, track and name.
RECORD = struct.Struct("<ddqhh4x")
FIELDS = np.dtype(
    {
        "names": ["start", "end", "step", "track", "name"],
        "formats": ["<f8", "<f8", "<i8", "<i2", "<i2"],
        "offsets": [0, 8, 16, 24, 26],
        "itemsize": RECORD.size,
    }
)


def process_name() -> str:
    """Returns HOST:PID of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True, eq=False)
class Spans:
    """What one process did when, in the order in which it ended.

    The arrays are aligned: one element a span.

    Attributes:
        process: HOST:PID.
        role: What the process is, for a reader.
        texts: What `tracks` and `names` are numbers of.
        starts: float64 `[n]`, in seconds of some clock; `shifted` sets another one.
        ends: float64 `[n]`, likewise.
        steps: int64 `[n]`, from 0; -1 where a span is of no step.
        tracks: int16 `[n]`: the stage or thread. Spans of one track nest or are apart.
        names: int16 `[n]`: what it did; at its own work if that is the track's name.
        num_dropped: Spans before these, which the ring had no more room for.
    """

    process: str
    role: str
    texts: tuple[str, ...]
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    steps: NDArray[np.int64]
    tracks: NDArray[np.int16]
    names: NDArray[np.int16]
    num_dropped: int = 0

    def shifted(self, seconds: float) -> "Spans":
        """Returns the same spans on a clock that is `seconds` ahead of this one."""
        return replace(self, starts=self.starts + seconds, ends=self.ends + seconds)

    def to_dict(self) -> dict[str, Any]:
        """Returns texts, a number and arrays by name, as `from_dict` takes them."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "texts": list(self.texts)
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Spans":
        """Returns the spans of `to_dict`."""
        return Spans(**{**values, "texts": tuple(values["texts"])})

    def __len__(self) -> int:
        return len(self.starts)


class SpanRing:
    """Keeps the latest spans of a process, in memory that is set aside before the first.

    Thread safe, without a lock where a span is recorded: a thread takes a number
    for itself and writes to that place, each in one call of the interpreter.

    Args:
        capacity: Spans that are kept; the oldest go.

    Raises:
        ValueError: `capacity` is below 1.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"a ring keeps a span at least, got capacity={capacity}")
        self._capacity = capacity
        self._memory = bytearray(capacity * RECORD.size)
        self._next = itertools.count()
        self._texts: dict[str, int] = {}
        self._texts_lock = threading.Lock()

    def record(self, track: str, name: str, step: int, start: float, end: float) -> None:
        """Records that `track` did `name` from `start` to `end`, as `Spans` has it."""
        texts = self._texts
        try:
            numbers = texts[track], texts[name]
        except KeyError:
            numbers = self._number_of(track), self._number_of(name)
        place = next(self._next) % self._capacity
        RECORD.pack_into(self._memory, place * RECORD.size, start, end, step, *numbers)

    def _number_of(self, text: str) -> int:
        with self._texts_lock:
            return self._texts.setdefault(text, len(self._texts))

    def spans(self, *, role: str) -> Spans:
        """Returns what was recorded, and ends it; a span that is under way is left out."""
        num_recorded = next(self._next)
        found = np.frombuffer(bytes(self._memory), FIELDS)
        if num_recorded < self._capacity:
            found = found[:num_recorded]
        found = found[found["end"] > 0]
        found = found[np.argsort(found["end"], kind="stable")]
        return Spans(
            process_name(),
            role,
            tuple(self._texts),
            starts=np.ascontiguousarray(found["start"]),
            ends=np.ascontiguousarray(found["end"]),
            steps=np.ascontiguousarray(found["step"]),
            tracks=np.ascontiguousarray(found["track"]),
            names=np.ascontiguousarray(found["name"]),
            num_dropped=max(num_recorded - self._capacity, 0),
        )


class Recorder:
    """Records what the threads of a server do, while somebody wants to know. Thread safe."""

    def __init__(self) -> None:
        self._ring: SpanRing | None = None

    def start(self) -> None:
        """Forgets what was recorded, and records."""
        self._ring = SpanRing()

    def stop(self) -> Spans | None:
        """Records no more; returns what was recorded since `start`, None without one."""
        ring, self._ring = self._ring, None
        return None if ring is None else ring.spans(role="ps-server")

    def record(self, name: str, step: int, start: float) -> None:
        """Records what the calling thread did from `start` until now.

        Args:
            name: What it did; of a wait within something else, it begins with
                `waiting`.
            step: From 0; -1 of no step.
            start: On `time.perf_counter`.
        """
        ring = self._ring
        if ring is not None:
            track = threading.current_thread().name
            ring.record(track, name, step, start, time.perf_counter())
