"""What do pulls and pushes wait for while a table is frozen and its rows are written?

Two parts. `table`: one thread pulls and pushes on a table in its process, before
it is frozen, while it is, while another thread exports the frozen rows and
releases them, and while one does no more than keep a core busy. `server`: a
client of a durable server does, until its journal is so long that it writes a
checkpoint, and while it does. Ratios are of one run.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ps_server.spec import NUM_BUCKETS
from ps_server.table import Frozen, Table

sys.path.append(str(Path(__file__).parents[1] / "recovery"))
from serving import BATCH, DIM, FILL, SPEC, durable, keys_of, serving

STEP = 64  # buckets that are exported at once: as in a checkpoint of 10 M rows
FROZEN_PUSHES = 100
BEFORE = 300  # pulls and pushes
BUSY_BYTES = 4 << 30  # whose checksum is some seconds of a core


@dataclass
class Times:
    """Seconds of pulls and of pushes."""

    pull: list[float] = field(default_factory=list)
    push: list[float] = field(default_factory=list)

    def figures(self, when: str) -> dict[str, object]:
        """Returns milliseconds at p50 and p99, and the worst, of each."""
        return {
            f"{name}_{when}": {
                "calls": len(seconds),
                **{
                    label: round(float(value) * 1e3, 3)
                    for label, value in zip(
                        ("p50", "p99", "worst"), np.percentile(seconds, [50, 99, 100]), strict=True
                    )
                },
            }
            for name, seconds in vars(self).items()
        }


def p99_ratios(times: Times, before: Times) -> dict[str, object]:
    """Returns how many times the p99 before it is now."""
    return {
        f"{name}_p99_of_before": round(
            float(np.percentile(seconds, 99) / np.percentile(vars(before)[name], 99)), 2
        )
        for name, seconds in vars(times).items()
    }


class Loop:
    """Pulls and pushes of a table in this process, of keys drawn at random."""

    def __init__(self, table: Table, keys: NDArray[np.uint64]) -> None:
        self._table, self._keys = table, keys
        self._rng = np.random.default_rng(0)
        self._out = np.empty((BATCH, DIM), np.float32)
        self._gradients = self._rng.normal(scale=1e-2, size=(BATCH, DIM)).astype(np.float32)

    def run(self, is_over: Callable[[Times], bool]) -> Times:
        """Pulls and pushes until it is over."""
        times = Times()
        while not is_over(times):
            batch = self._rng.choice(self._keys, BATCH)
            start = time.perf_counter()
            self._table.pull(batch, out=self._out)
            pulled = time.perf_counter()
            self._table.push(batch, self._gradients, step=2)
            times.pull.append(pulled - start)
            times.push.append(time.perf_counter() - pulled)
        return times

    def run_beside(self, work: Callable[[], None]) -> tuple[Times, float]:
        """Pulls and pushes until another thread has done its work; returns its seconds, too."""
        is_over = threading.Event()
        start = time.perf_counter()
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            done.add_done_callback(lambda _: is_over.set())
            times = self.run(lambda times: is_over.is_set())
            done.result()
        return times, time.perf_counter() - start


def export(frozen: Frozen) -> None:
    """Exports and releases all that is frozen."""
    for first in range(0, NUM_BUCKETS, STEP):
        frozen.export_rows(first, first + STEP)
        frozen.release_buckets(first + STEP)


def keep_a_core_busy() -> None:
    """Reads memory, without a lock and without the GIL."""
    block = bytes(64 << 20)
    for _ in range(BUSY_BYTES // len(block)):
        zlib.crc32(block)


def of_a_table(num_rows: int) -> dict[str, object]:
    """Freezes and exports a table in this process."""
    table, keys = Table(SPEC), keys_of(0, num_rows)
    for first in range(0, num_rows, FILL):
        part = keys[first : first + FILL]
        table.push(part, np.full((len(part), DIM), 1e-2, np.float32), step=1)
    loop = Loop(table, keys)
    loop.run(lambda times: len(times.push) == 20)  # warms up
    before = loop.run(lambda times: len(times.push) == BEFORE)

    start = time.perf_counter()
    frozen = table.freeze()
    freeze_seconds = time.perf_counter() - start
    held = loop.run(lambda times: len(times.push) == FROZEN_PUSHES)
    copied = frozen.memory_bytes
    frozen.release()

    frozen = table.freeze()
    exported, seconds = loop.run_beside(lambda: export(frozen))
    bytes_of_frozen = frozen.memory_bytes
    frozen.release()
    busy, _ = loop.run_beside(keep_a_core_busy)
    return {
        "rows": num_rows,
        **before.figures("before"),
        **held.figures("frozen"),
        **exported.figures("exported"),
        **busy.figures("beside_a_busy_core"),
        **p99_ratios(exported, before),
        "freeze_seconds": freeze_seconds,
        "bytes_copied_a_push_of_frozen_rows": copied // FROZEN_PUSHES,
        "bytes_of_the_frozen_when_exported": bytes_of_frozen,
        "export_seconds": seconds,
    }


def of_a_server(num_rows: int) -> dict[str, object]:
    """Pulls and pushes until the journal is so long that a checkpoint is written, and meanwhile."""
    rng = np.random.default_rng(2)
    gradients = rng.normal(scale=1e-2, size=(FILL, DIM)).astype(np.float32)
    keys = keys_of(0, num_rows)
    before, meanwhile = Times(), Times()
    push_bytes = 8 + 4 * DIM  # of a key, in the journal
    limit = (num_rows + BEFORE * BATCH) * push_bytes >> 20
    with (
        tempfile.TemporaryDirectory(prefix="freeze-") as name,
        serving(*durable(Path(name), "--journal-limit", f"{limit}MiB")) as server,
    ):
        server.create()
        for first in range(0, num_rows, FILL):
            server.push(keys[first : first + FILL], gradients)
        while (found := server.checkpoint_seconds()) is None:
            batch = rng.choice(keys, BATCH)
            is_begun = len(list(Path(name, "journal").iterdir())) > 1
            times = meanwhile if is_begun else before
            times.pull.append(server.pull(batch))
            times.push.append(server.push(batch, gradients[:BATCH]))
    return {
        "rows": num_rows,
        **before.figures("before"),
        **meanwhile.figures("while"),
        **p99_ratios(meanwhile, before),
        "checkpoint_seconds": found,
    }


def main() -> None:
    """Measures and prints what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1 million rows alone")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument("--only", choices=["table", "server"], help="one part; default: both")
    parser.add_argument("--rows", type=int, nargs="+", help="default: 1 and 10 million")
    flags = parser.parse_args()
    sizes = flags.rows or ([1_000_000] if flags.quick else [1_000_000, 10_000_000])
    results: dict[str, object] = {"cores": os.cpu_count()}
    for name, measure in {"table": of_a_table, "server": of_a_server}.items():
        if flags.only in (None, name):
            results[name] = [show(name, measure(rows)) for rows in sizes]
    if flags.json:
        print(json.dumps(results))


def show(title: str, figures: dict[str, object]) -> dict[str, object]:
    """Prints figures, one a line, and returns them."""
    print(title)
    for name, value in figures.items():
        print(f"  {name:36} {value}", flush=True)
    return figures


if __name__ == "__main__":
    main()
