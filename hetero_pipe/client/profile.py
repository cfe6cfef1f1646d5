"""Measures what tables cost: routing, a key of a pull and a push, and what gRPC adds to them."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from hetero_pipe.client.client import Client
from hetero_pipe.client.route import RoutedKeys
from hetero_pipe.cluster import SIDES, Rate, Sampling, Spread, sample_times
from hetero_pipe.data import Bags, Batch, Lookup, occurrences
from hetero_pipe.units import MiB
from ps_server.spec import SGD, Adagrad, Adam, Optimizer, TableSpec

__all__ = ["profile_grpc", "profile_route", "profile_tables"]

OPTIMIZERS: dict[str, Optimizer] = {"sgd": SGD(0.01), "adagrad": Adagrad(0.01), "adam": Adam(0.001)}
STATE_PER_WEIGHT = {"sgd": 0, "adagrad": 1, "adam": 2}
NUM_KEYS = 16384  # of a call: some slots of a batch
MANY_KEYS = 4 * NUM_KEYS  # those of a large one
FEW_KEYS = 512  # so few that what a call takes beside its keys shows
SLOTS = 26  # of a batch that is routed
DISTINCT = 3  # its keys by its distinct ones
DIM = 16  # of what is pulled over gRPC
LEAST = 1e-9  # seconds, of what is measured to be nothing
BATCH_BYTES = 16 * MiB  # of rows of some batches, more than a core's own cache
MOST_BATCHES = 8
TABLE_BYTES = 256 * MiB  # far above any cache


def profile_route(host: str, sampling: Sampling) -> Iterator[Rate]:
    """Yields `route`: seconds that a key of a batch takes to become one of the distinct ones.

    From a batch's slots to distinct keys by server, and to where each sample finds its
    rows; a key comes three times.
    """
    slots = tuple(f"s{i}" for i in range(SLOTS))
    rng = np.random.default_rng(0)
    with Client(None) as client:
        for size in (1024,) if sampling.is_quick else (256, 1024, 4096):
            keys = rng.integers(0, 2**63, size * SLOTS // DISTINCT).astype(np.uint64)
            drawn = [keys[rng.integers(0, len(keys), size)] for _ in slots]
            batch = Batch(
                {slot: Bags(found) for slot, found in zip(slots, drawn, strict=True)},
                np.empty((size, 0), np.float32),
                None,
            )

            def route(batch: Batch = batch) -> None:
                routed = client.route(occurrences(batch, slots))
                Lookup.of(batch, slots, routed.inverse)

            times = sample_times(route, sampling, clock=time.process_time)
            num_keys = size * SLOTS
            yield Rate("route", host, Spread.of([t / num_keys for t in times]), size=num_keys)


def profile_tables(
    host: str, sampling: Sampling, *, optimizers: Sequence[str] = tuple(OPTIMIZERS)
) -> Iterator[Rate]:
    """Yields `pull` and `push`: seconds on a core of a key, by optimizer, dim and keys of a call.

    The rows are there, and so many that most are in no cache. The keys of a call
    are distinct and random, as after a dedup.

    Args:
        host: Name of this one.
        sampling: The effort.
        optimizers: Of the tables, by name in lower case.
    """
    for name in optimizers:
        optimizer = OPTIMIZERS[name]
        for dim in (16,) if sampling.is_quick else (1, 8, 16, 32, 64):
            yield from _profile_table(host, TableSpec(name, dim, optimizer), sampling)


def _profile_table(host: str, spec: TableSpec, sampling: Sampling) -> Iterator[Rate]:
    name, dim = spec.name, spec.dim
    row_bytes = 4 * dim * (1 + STATE_PER_WEIGHT[name])
    # Each row has 40 bytes more, or so: narrow ones are not to be too many.
    num_calls = 2 if sampling.is_quick else max(TABLE_BYTES // (row_bytes + 64) // MANY_KEYS, 2)
    with Client(None) as client:
        client.attach([spec])
        calls = _calls(client, num_calls, MANY_KEYS)
        for keys in calls:
            client.pull({name: keys}, insert=True)
        for size in (FEW_KEYS, NUM_KEYS, MANY_KEYS):
            num_parts = min(MANY_KEYS // size, 8)
            chosen = [
                client.route(keys.keys[i * size : (i + 1) * size])
                for keys in calls
                for i in range(num_parts)
            ]
            work = _Exchange(client, name, dim, chosen)
            for what in ("pull", "push"):
                # What is computed on a core counts, not what others had of it meanwhile.
                times = sample_times(getattr(work, what), sampling, clock=time.process_time)
                value = Spread.of([seconds / size for seconds in times])
                yield Rate(what, host, value, optimizer=name, dim=dim, size=size)


class _Exchange:
    """Pulls and pushes of a table, of one call's keys after another's.

    As in a trainer, rows that were pulled are kept for some batches, and gradients are of
    another place each time: neither is in the caches of who asks.
    """

    def __init__(self, client: Client, name: str, dim: int, calls: Sequence[RoutedKeys]) -> None:
        self._client = client
        self._name = name
        self._calls = cycle(calls)
        shape = (len(calls[0].keys), dim)
        num_batches = min(max(BATCH_BYTES // (4 * shape[0] * dim), 2), MOST_BATCHES)
        self._gradients = cycle([np.full(shape, 1e-3, np.float32) for _ in range(num_batches)])
        self._pulled: deque[object] = deque(maxlen=num_batches)
        self._step = 0

    def pull(self) -> None:
        # As a trainer does; the rows are there.
        self._pulled.append(self._client.pull({self._name: next(self._calls)}, insert=True))

    def push(self) -> None:
        self._step += 1
        gradients = {self._name: next(self._gradients)}
        self._client.push({self._name: next(self._calls)}, gradients, step=self._step)


def profile_grpc(
    host: str, server: str, sampling: Sampling, *, pid: int | None = None
) -> Iterator[Rate]:
    """Yields what a server adds to a table of this process.

    `grpc_call` and `grpc_byte`: a call is a pull of one key. A byte, of keys sent and
    of rows that come back, is what a pull of many takes longer than that and than a
    pull without a server. `grpc_pull` and `grpc_push`: of calls of some sizes, what is
    on a core of the worker, on one of the server but for its table, on none, and on cores
    of both at the same time as those.

    Args:
        host: Where both are.
        server: HOST:PORT of a server that serves nobody else.
        sampling: The effort.
        pid: Of the server; without it, and but on Linux, nobody can tell its core's time.

    Raises:
        ServerError: It failed or does not answer.
    """
    name = "profile"
    spec = TableSpec(name, DIM, SGD(0.01))
    sizes = (1, 2048, NUM_KEYS) if sampling.is_quick else (1, 2048, NUM_KEYS, 4 * NUM_KEYS)
    with Client([server]) as remote, Client(None) as local:
        for client in (remote, local):
            client.attach([spec], fresh=True)
        keys = np.arange(sizes[-1], dtype=np.uint64)
        for client in (remote, local):
            client.pull({name: client.route(keys)}, insert=True)
        found: dict[tuple[int, str], _Sides] = {}
        tables: dict[tuple[int, str], float] = {}
        for size in sizes:
            pair = [
                _Exchange(each, name, DIM, [each.route(keys[:size])]) for each in (remote, local)
            ]
            for what in ("pull", "push"):
                there, here = (getattr(each, what) for each in pair)
                found[size, what] = _sides(there, sampling, pid)
                times = sample_times(here, sampling, clock=time.process_time)
                tables[size, what] = Spread.of(times).median
    calls = found[1, "pull"].wall
    yield Rate("grpc_call", host, Spread.of(calls))
    num_bytes = _bytes_of(NUM_KEYS)
    rest = Spread.of(calls).median + tables[NUM_KEYS, "pull"]
    per_byte = [max(t - rest, 1e-9) / num_bytes for t in found[NUM_KEYS, "pull"].wall]
    yield Rate("grpc_byte", host, Spread.of(per_byte), size=num_bytes)
    if pid is None or sys.platform != "linux":
        return
    for (size, what), sides in found.items():
        for side, seconds in sides.without(tables[size, what]).items():
            value = Spread.of(seconds)
            yield Rate(f"grpc_{what}", host, value, side=side, size=_bytes_of(size))


def _bytes_of(num_keys: int) -> int:
    """Returns the bytes of a pull or a push, of keys and rows."""
    return num_keys * (8 + 4 * DIM)


@dataclass(frozen=True)
class _Sides:
    """The seconds of a call in each sample: of the clock, of this process's cores, of another's."""

    wall: Sequence[float]
    worker: Sequence[float]
    server: Sequence[float]

    def without(self, table: float) -> dict[str, list[float]]:
        """Returns what a call holds, by `SIDES`, without what the server's table takes."""
        found: dict[str, list[float]] = {side: [] for side in SIDES}
        for wall, worker, server in zip(self.wall, self.worker, self.server, strict=True):
            left, calls = wall - table, worker + max(server - table, 0.0)
            # Both ends, and threads of one, work at once: of each a part is aside.
            share = min(max(left, 0.0) / calls, 1.0)
            sides = {
                "worker": share * worker,
                "server": share * (server - table),
                "wait": left - calls,
                "aside": (1 - share) * calls,
            }
            for side, seconds in sides.items():
                found[side].append(max(seconds, LEAST))
        return found


def _sides(work: Callable[[], object], sampling: Sampling, pid: int | None) -> _Sides:
    begin = _clocks(pid)
    times = sample_times(work, sampling)  # warms up, too
    once = Spread.of(times).median
    num_calls = max(1, round(sampling.min_seconds / once))
    found: list[list[float]] = []
    for _ in range(sampling.num_samples):
        begin = _clocks(pid)
        for _ in range(num_calls):
            work()
        ends = _clocks(pid)
        found.append([(end - start) / num_calls for start, end in zip(begin, ends, strict=True)])
    return _Sides(*zip(*found, strict=True))


def _clocks(pid: int | None) -> tuple[float, float, float]:
    other = 0.0
    if pid is not None and sys.platform == "linux":
        other = time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3) of all its threads
    return time.perf_counter(), time.process_time(), other


def _calls(client: Client, number: int, size: int) -> list[RoutedKeys]:
    """Returns the keys of so many calls, each of `size` and no key in two."""
    keys = np.random.default_rng(0).permutation(number * size).astype(np.uint64)
    return [client.route(part) for part in keys.reshape(number, size)]
