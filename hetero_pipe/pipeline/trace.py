"""Spans of all processes on one time line, as a trace that Perfetto and Chrome show."""

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ps_server.spans import Spans

__all__ = ["BATCH_OF", "merge", "write_trace"]

BATCH_OF = "batch of "
"""How a span of a dense worker is named, before the role of the sparse worker it works for."""

Event = dict[str, Any]  # JSON


def merge(processes: Sequence[Spans]) -> dict[str, Any]:
    """Returns the spans of processes as a trace, a JSON object.

    A process of the trace is one of `processes`, a thread of it a stage, or a
    thread of a server that serves requests. Within a worker, arrows lead from each
    stage's work at a step to the next stage's; between workers, from a sparse one's
    send of a batch to a dense one's work at it, and back to where the first has
    received what it gave. Times start at the first span.

    Args:
        processes: In the order in which they are shown, all on one clock.

    Reference:
        "Trace Event Format",
        https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    first = min((spans.starts.min() for spans in processes if len(spans)), default=0.0)
    head: list[Event] = []
    events: list[Event] = []
    of_processes: list[tuple[Spans, list[Event]]] = []
    for pid, spans in enumerate(processes, start=1):
        head += _names(pid, spans)
        slices = _slices(pid, spans, first)
        events += slices + _arrows(pid, spans, slices)
        of_processes.append((spans, slices))
    events += _crossings(of_processes)
    # A slice stands before the slices within it, and before an arrow from or to it.
    events.sort(key=lambda event: (event["ts"], event["ph"] != "X", -event.get("dur", 0.0)))
    return {"traceEvents": head + events, "displayTimeUnit": "ms"}


def write_trace(path: Path, processes: Sequence[Spans]) -> None:
    """Writes the trace that `merge` makes, packed by gzip if the name ends in `.gz`.

    The file is whole, or as it was.

    Raises:
        OSError: It cannot be written.
    """
    data = json.dumps(merge(processes), separators=(",", ":")).encode()
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(gzip.compress(data, 6) if path.suffix == ".gz" else data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _names(pid: int, spans: Spans) -> list[Event]:
    """Returns what the process and its threads are called and how they are sorted."""
    events = [
        _metadata(pid, "process_name", name=f"{spans.role} {spans.process}"),
        _metadata(pid, "process_sort_index", sort_index=pid),
    ]
    if spans.num_dropped:
        labels = f"without its first {spans.num_dropped} spans"
        events.append(_metadata(pid, "process_labels", labels=labels))
    for place, track in enumerate(_sorted_tracks(spans)):
        events.append(_metadata(pid, "thread_name", tid=track + 1, name=spans.texts[track]))
        events.append(_metadata(pid, "thread_sort_index", tid=track + 1, sort_index=place))
    return events


def _metadata(pid: int, kind: str, *, tid: int = 0, **arguments: object) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": arguments}


def _sorted_tracks(spans: Spans) -> list[int]:
    """Returns the tracks by their first work, which comes down the pipeline."""
    is_work = np.array([not text.startswith("waiting") for text in spans.texts], bool)
    order = np.lexsort((spans.starts, ~is_work[spans.names])) if len(spans) else []
    return list(dict.fromkeys(int(spans.tracks[i]) for i in order))


def _slices(pid: int, spans: Spans, first: float) -> list[Event]:
    # Whole nanoseconds: of spans that meet, one begins where the other ends, to the last digit.
    starts = np.rint((spans.starts - first) * 1e9).astype(np.int64)
    ends = np.rint((spans.ends - first) * 1e9).astype(np.int64)
    return [
        {
            "ph": "X",
            "pid": pid,
            "tid": track + 1,
            "name": spans.texts[name],
            "cat": "wait" if spans.texts[name].startswith("waiting") else "work",
            "ts": start / 1e3,
            "dur": (end - start) / 1e3,
            "args": {"step": step} if step >= 0 else {},
        }
        for start, end, step, track, name in zip(
            starts.tolist(),
            ends.tolist(),
            spans.steps.tolist(),
            spans.tracks.tolist(),
            spans.names.tolist(),
            strict=True,
        )
    ]


def _arrows(pid: int, spans: Spans, slices: Sequence[Event]) -> list[Event]:
    """Returns arrows from stage to stage, one chain a step."""
    by_step: dict[int, list[Event]] = {}
    for i in np.flatnonzero((spans.names == spans.tracks) & (spans.steps >= 0)).tolist():
        by_step.setdefault(int(spans.steps[i]), []).append(slices[i])
    arrows = []
    for step, pieces in by_step.items():
        pieces.sort(key=lambda piece: piece["ts"])
        kinds = ["s", *"t" * (len(pieces) - 2), "f"] if len(pieces) > 1 else []
        arrows += [
            {
                "ph": kind,
                "pid": pid,
                "tid": piece["tid"],
                "ts": piece["ts"],
                "name": "step",
                "cat": "step",
                "id": f"{pid}.{step}",
                "bp": "e",  # to the slice that it is in, not the next one
            }
            for kind, piece in zip(kinds, pieces, strict=False)  # none for a step of one piece
        ]
    return arrows


def _crossings(processes: Sequence[tuple[Spans, Sequence[Event]]]) -> list[Event]:
    """Returns the arrows of each batch that went to a dense worker and came back."""
    # By what the dense worker calls the batch's worker, and the step there; all of training.
    sent: dict[tuple[str, int], Event] = {}
    worked: dict[tuple[str, int], Event] = {}
    received: dict[tuple[str, int], Event] = {}
    for spans, slices in processes:
        for piece in slices:
            name, step = piece["name"], piece["args"].get("step")
            if step is None:
                continue
            if name.startswith(BATCH_OF):
                worked[name, step] = piece
            elif name == spans.texts[piece["tid"] - 1] and name in ("send", "recv"):
                (sent if name == "send" else received)[BATCH_OF + spans.role, step] = piece
    arrows = []
    for key, there in sent.items():
        work, back = worked.get(key), received.get(key)
        if work is None or back is None:  # dropped, or not given
            continue
        # Into the last nanosecond of the slice: it began before there was a result.
        end = max(back["ts"], round(back["ts"] + back["dur"] - 1e-3, 3))
        ends = (("s", there, there["ts"]), ("t", work, work["ts"]))
        arrows += [
            {
                "ph": kind,
                "pid": piece["pid"],
                "tid": piece["tid"],
                "ts": ts,
                "name": "batch",
                "cat": "batch",
                "id": f"{key[0].removeprefix(BATCH_OF)}.{key[1]}",
                "bp": "e",
            }
            for kind, piece, ts in (*ends, ("f", back, end))
        ]
    return arrows
