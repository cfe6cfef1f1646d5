"""How near to the memory's limit does a table pull and push? Beside bare C loops and numpy.

Every figure is CPU time of one thread, and every ratio is of calls that took
turns in this run: a loop of C that touches the same memory and does nothing
else (the limit), and numpy's fancy index of the same rows (a peer that has no
keys to look up). Each call gets keys of its own, so that no cache is warm.
"""

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ps_server.spec import Adagrad, TableSpec, Uniform
from ps_server.table import Table

DIM = 16
PAYLOAD = 2 * DIM * 4  # bytes of a row: weights and Adagrad's state
BATCH = 50_000  # unique keys; about those of 4,096 samples of Criteo
INDEX_BYTES = 27  # of a row, in the bare loops: what the table's index has at its usual load
BETWEEN = 10  # pulls of other keys between a pull and its push: no cache holds the rows so long
ZIPF = 1.05
GROWTHS = 5
SPEC = TableSpec("t", dim=DIM, optimizer=Adagrad(0.05), initializer=Uniform(-0.1, 0.1))

LOOPS = Path(__file__).parent / "loops.c"


class Loops:
    """The bare loops over arrays of the table's size."""

    def __init__(self, num_rows: int, rng: np.random.Generator) -> None:
        with tempfile.TemporaryDirectory(prefix="pull_push_") as folder:
            self._library = ctypes.CDLL(str(_compiled(Path(folder))))  # stays when the file is gone
        self._library.allocate.restype = ctypes.c_void_p
        self.num_lines = num_rows * INDEX_BYTES // 64
        self.index = self._array((self.num_lines, 16), np.uint32)
        self.index[:, 0] = rng.integers(0, num_rows, self.num_lines)
        self.rows = self._array((num_rows, 2 * DIM), np.float32)
        self.rows[:] = 0.1

    def _array(self, shape: tuple[int, int], dtype: type) -> NDArray:
        size = shape[0] * shape[1] * 4
        start = self._library.allocate(ctypes.c_size_t(size))
        if not start:
            raise MemoryError(f"no {size:,} bytes for the bare loops; try fewer --rows")
        buffer = (ctypes.c_char * size).from_address(start)
        return np.frombuffer(buffer, dtype=dtype).reshape(shape)

    def __getattr__(self, name: str) -> Callable[..., None]:
        loop = getattr(self._library, name)
        loop.restype = None

        def call(*arguments: NDArray | int) -> None:
            loop(
                *(
                    _pointer(a) if isinstance(a, np.ndarray) else ctypes.c_size_t(a)
                    for a in arguments
                )
            )

        return call


def _pointer(array: NDArray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _compiled(folder: Path) -> Path:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        sys.exit("error: the bare loops need a C compiler, found no cc, gcc or clang on PATH")
    library = folder / "loops.so"
    flags = ["-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(LOOPS), "-lm", "-o", str(library)], check=True)
    return library


@dataclass(frozen=True)
class Keys:
    """The keys of the table, and ways to draw a batch of them."""

    num_rows: int
    rng: np.random.Generator
    hot: NDArray[np.int64]  # rank -> number of a key: hot rows do not lie side by side

    def of(self, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Returns the keys of numbers: all different, and spread over 64 bits."""
        return (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)

    def uniform(self) -> NDArray[np.int64]:
        """Returns BATCH different numbers, each as likely as the other."""
        found = np.unique(self.rng.integers(0, self.num_rows, BATCH + BATCH // 8))
        return self.rng.permutation(found)[:BATCH]

    def zipf(self) -> NDArray[np.int64]:
        """Returns BATCH different numbers, as drawn from a bounded Zipf distribution."""
        found = np.empty(0, np.int64)
        while len(found) < BATCH:
            u = self.rng.random(2 * BATCH)
            rank = (1 - u + u * self.num_rows ** (1 - ZIPF)) ** (1 / (1 - ZIPF))
            drawn = np.minimum(rank.astype(np.int64), self.num_rows) - 1
            found = np.unique(np.concatenate([found, self.hot[drawn]]))
        return self.rng.permutation(found)[:BATCH]


def cpu_time(call: Callable[..., object], *arguments: object) -> float:
    """Returns the CPU seconds of this thread that a call takes."""
    start = time.thread_time()
    call(*arguments)
    return time.thread_time() - start


def grow(keys: Keys) -> tuple[Table, dict[str, float]]:
    """Fills GROWTHS tables, each with the same batches of new keys alone; returns the last.

    Batch i is the same work in each, so that the median of its times tells what the
    table does in it, and not what else the machine did meanwhile.
    """
    out = np.empty((BATCH, DIM), np.float32)
    runs, of_process = [], []
    for _ in range(GROWTHS):
        table = Table(SPEC)
        start, times = time.process_time(), []
        for first in range(0, keys.num_rows, BATCH):
            batch = keys.of(np.arange(first, min(first + BATCH, keys.num_rows)))
            times.append(cpu_time(lambda b, t=table: t.pull(b, out=out[: len(b)]), batch))
        of_process.append(time.process_time() - start)
        runs.append(times[: keys.num_rows // BATCH])
    batches = np.median(runs, axis=0)
    return table, {
        "inserts_per_second": BATCH / float(np.median(batches)),
        "inserts_per_second_of_process": keys.num_rows / statistics.median(of_process),
        "worst_batch_over_median": float(batches.max() / np.median(batches)),
        "worst_batch_over_median_of_one_growth": max(max(t) / statistics.median(t) for t in runs),
        "bytes_per_row": table.memory_bytes / keys.num_rows,
        "bytes_per_row_over_payload": table.memory_bytes / keys.num_rows / PAYLOAD,
    }


@dataclass(frozen=True)
class Subjects:
    """What is measured: the table, the loops, and numpy's array of weights."""

    table: Table
    loops: Loops
    weights: NDArray[np.float32]

    def compare(
        self, draw: Callable[[], NDArray[np.int64]], keys: Keys, runs: int
    ) -> dict[str, float]:
        """Pulls and pushes with each in turn, every call with keys of its own."""
        loops, out = self.loops, np.zeros((BATCH, DIM), np.float32)
        gradients = keys.rng.normal(scale=1e-2, size=(BATCH, DIM)).astype(np.float32)
        times: dict[str, list[float]] = {}
        for step in range(1, runs + 1):
            numbers = [draw() for _ in range(7)]
            lines = [(some % loops.num_lines).astype(np.uint32) for some in numbers[:2]]
            row = numbers[2].astype(np.uint32)
            pulled, pushed, strange = (keys.of(numbers[i]) for i in (3, 4, 6))
            self.table.pull(pushed, out=out)  # a push is of keys that were pulled some time before
            for _ in range(BETWEEN):
                self.table.pull(keys.of(keys.uniform()), out=out)

            def pull(which: NDArray[np.uint64]) -> None:
                self.table.pull(which, out=out)

            def push(which: NDArray[np.uint64], step: int) -> None:
                self.table.push(which, gradients, step=step)

            index, rows = loops.index, loops.rows
            for name, call in {
                "loop_pull": (loops.pull, index, lines[0], rows, BATCH, out),
                "table_pull": (pull, pulled),
                "numpy_pull": (self.weights.__getitem__, numbers[5]),
                "loop_push": (loops.push, row, rows, BATCH, gradients),
                "loop_find_and_push": (
                    loops.find_and_push,
                    *(index, lines[1], rows, BATCH, gradients),
                ),
                "table_push": (push, pushed, step),
                "table_push_unpulled": (push, strange, step),
            }.items():
                times.setdefault(name, []).append(cpu_time(*call))

        def ratio(over: str, of: str) -> float:
            return statistics.median(a / b for a, b in zip(times[over], times[of], strict=True))

        return {f"{name}_per_second": BATCH / statistics.median(t) for name, t in times.items()} | {
            "pull_over_loop": ratio("loop_pull", "table_pull"),
            "pull_over_numpy": ratio("numpy_pull", "table_pull"),
            "push_over_loop": ratio("loop_push", "table_push"),
            "push_unpulled_over_loop": ratio("loop_push", "table_push_unpulled"),
            "push_unpulled_over_loop_that_finds": ratio(
                "loop_find_and_push", "table_push_unpulled"
            ),
        }


def two_threads(table: Table, keys: Keys, runs: int) -> dict[str, float]:
    """Pulls and pushes in one thread and in two, as many batches in each: wall time."""
    num_batches = 50
    gradients = np.full((BATCH, DIM), 1e-3, np.float32)
    batches = [[keys.of(keys.uniform()) for _ in range(num_batches)] for _ in range(2)]
    outs = [np.zeros((BATCH, DIM), np.float32) for _ in range(2)]

    def work(thread: int, operation: str) -> None:
        for batch in batches[thread]:
            if operation == "pull":
                table.pull(batch, out=outs[thread])
            else:
                table.push(batch, gradients, step=1)

    found: dict[str, float] = {}
    with ThreadPoolExecutor(2) as pool:
        for operation in ("pull", "push"):
            speedups, busy = [], []
            for _ in range(runs):
                start = time.perf_counter()
                work(0, operation)
                one = time.perf_counter() - start
                start, cpu = time.perf_counter(), time.process_time()
                list(pool.map(work, range(2), [operation] * 2))
                two = time.perf_counter() - start
                speedups.append(2 * one / two)
                busy.append((time.process_time() - cpu) / two)
            found[f"two_threads_{operation}"] = statistics.median(speedups)
            found[f"two_threads_{operation}_cores_had"] = statistics.median(busy)
    return found


def main() -> None:
    """Grows a table, measures it and prints what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="2 million rows, 5 runs")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument("--rows", type=int, help="default: 20 million; 0.4 GB of memory a million")
    parser.add_argument("--runs", type=int, help="of each call; default: 15")
    flags = parser.parse_args()
    num_rows = flags.rows or (2_000_000 if flags.quick else 20_000_000)
    runs = flags.runs or (5 if flags.quick else 15)

    rng = np.random.default_rng(0)
    keys = Keys(num_rows, rng, rng.permutation(num_rows))
    results: dict[str, dict[str, float]] = {}
    table, results["growth"] = grow(keys)
    show("growth", results["growth"])
    weights = np.full((num_rows, DIM), 0.1, np.float32)
    subjects = Subjects(table, Loops(num_rows, rng), weights)
    for name, draw in (("uniform", keys.uniform), ("zipf", keys.zipf)):
        results[name] = subjects.compare(draw, keys, runs)
        show(name, results[name])
    results["threads"] = two_threads(table, keys, runs)
    show("threads", results["threads"])
    if flags.json:
        print(json.dumps({"rows": num_rows, "runs": runs, "cores": os.cpu_count(), **results}))


def show(title: str, figures: dict[str, float]) -> None:
    """Prints figures, one a line."""
    print(title)
    for name, value in figures.items():
        shown = f"{value / 1e6:10.1f} M/s" if "per_second" in name else f"{value:10.3f}"
        print(f"  {name.replace('_per_second', ''):34} {shown}", flush=True)


if __name__ == "__main__":
    main()
