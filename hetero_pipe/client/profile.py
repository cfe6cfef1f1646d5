"""Measures what tables cost: a key of a pull and a push, and what gRPC adds to them."""

from collections.abc import Iterator
from itertools import cycle

import numpy as np

from hetero_pipe.client.client import Client
from hetero_pipe.client.route import RoutedKeys
from hetero_pipe.cluster import Rate, Sampling, Spread, sample_times
from hetero_pipe.units import MiB
from ps_server.spec import SGD, Adagrad, Adam, Optimizer, TableSpec

__all__ = ["profile_grpc", "profile_tables"]

OPTIMIZERS: dict[str, Optimizer] = {"sgd": SGD(0.01), "adagrad": Adagrad(0.01), "adam": Adam(0.001)}
STATE_PER_WEIGHT = {"sgd": 0, "adagrad": 1, "adam": 2}
NUM_KEYS = 16384  # of a call: some slots of a batch
DIM = 16  # of what is pulled over gRPC
TABLE_BYTES = 256 * MiB  # far above any cache


def profile_tables(host: str, sampling: Sampling) -> Iterator[Rate]:
    """Yields `pull` and `push`: seconds a key takes in this process, by optimizer and dim.

    The rows are there, and so many that most are in no cache. The keys of a call
    are distinct and random, as after a dedup.
    """
    for name, optimizer in OPTIMIZERS.items():
        for dim in (16,) if sampling.is_quick else (8, 16, 32, 64):
            yield from _profile_table(host, TableSpec(name, dim, optimizer), sampling)


def _profile_table(host: str, spec: TableSpec, sampling: Sampling) -> Iterator[Rate]:
    name, dim = spec.name, spec.dim
    row_bytes = 4 * dim * (1 + STATE_PER_WEIGHT[name])
    num_calls = 2 if sampling.is_quick else TABLE_BYTES // row_bytes // NUM_KEYS
    with Client(None) as client:
        client.attach([spec])
        calls = _calls(client, num_calls)
        for keys in calls:
            client.pull({name: keys}, insert=True)
        pulls, pushes = cycle(calls), enumerate(cycle(calls), start=1)
        gradients = np.full((NUM_KEYS, dim), 1e-3, np.float32)

        def pull() -> None:
            client.pull({name: next(pulls)}, insert=False)

        def push() -> None:
            step, keys = next(pushes)
            client.push({name: keys}, {name: gradients}, step=step)

        for what, work in (("pull", pull), ("push", push)):
            times = sample_times(work, sampling)
            value = Spread.of([seconds / NUM_KEYS for seconds in times])
            yield Rate(what, host, value, optimizer=name, dim=dim, size=NUM_KEYS)


def profile_grpc(host: str, server: str, sampling: Sampling) -> Iterator[Rate]:
    """Yields `grpc_call` and `grpc_byte`: what a server adds to a table of this process.

    A call is a pull of one key. A byte, of keys sent and of rows that come back,
    is what a pull of many takes longer than that and than a pull without a server.

    Args:
        host: Where both are.
        server: HOST:PORT of a server that serves nobody else.
        sampling: The effort.

    Raises:
        ServerError: It failed or does not answer.
    """
    name = "profile"
    spec = TableSpec(name, DIM, SGD(0.01))
    with Client([server]) as remote, Client(None) as local:
        for client in (remote, local):
            client.attach([spec], fresh=True)
        (keys,) = _calls(remote, 1)
        (own,) = _calls(local, 1)
        one = remote.route(keys.keys[:1])
        for client, all_keys in ((remote, keys), (local, own)):
            client.pull({name: all_keys}, insert=True)
        calls = sample_times(lambda: remote.pull({name: one}, insert=False), sampling)
        yield Rate("grpc_call", host, Spread.of(calls))
        full = sample_times(lambda: remote.pull({name: keys}, insert=False), sampling)
        table = sample_times(lambda: local.pull({name: own}, insert=False), sampling)
    num_bytes = NUM_KEYS * (8 + 4 * DIM)
    rest = Spread.of(calls).median + Spread.of(table).median
    per_byte = [max(seconds - rest, 1e-9) / num_bytes for seconds in full]
    yield Rate("grpc_byte", host, Spread.of(per_byte), size=num_bytes)


def _calls(client: Client, number: int) -> list[RoutedKeys]:
    """Returns the keys of so many calls, each of `NUM_KEYS` and no key in two."""
    keys = np.random.default_rng(0).permutation(number * NUM_KEYS).astype(np.uint64)
    return [client.route(part) for part in keys.reshape(number, NUM_KEYS)]
