"""Exchange: a pull or push of all servers, wherever buckets move meanwhile.

A server that owns other buckets than it is taken to refuses the whole of its part. The
client then learns where they are, and asks again for what was refused: an answer is for
buckets, not for servers.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.client.route import Positions, RoutedKeys, positions_of
from hetero_pipe.client.topology import Place, Topology
from hetero_pipe.client.transport import Reply
from hetero_pipe.errors import HeteroPipeError, RouteMismatch
from ps_server.spec import NUM_BUCKETS

__all__ = ["answers_of", "pull_rows", "push_gradients"]

Value = TypeVar("Value")

Pieces = Mapping[str, list[tuple[Positions, NDArray[np.float32]]]]
"""Where rows lie, and what they are, of each table."""


def pull_rows(
    topology: Topology,
    keys: Mapping[str, RoutedKeys],
    *,
    insert: bool,
    rank: int | None,
    after_step: int | None,
    step: int,
) -> Pieces:
    """Returns the rows of each table in pieces. Arguments and errors are those of `Client.pull`."""
    pieces: dict[str, list[tuple[Positions, NDArray[np.float32]]]] = {name: [] for name in keys}
    wanted: NDArray[np.bool_] | None = None  # all buckets
    while True:
        place = topology.now
        where = _split(keys, place, wanted, all_tables=False)
        replies = {
            number: place.connections[number].data.pull(
                place.share(number),
                {name: keys[name].keys[at] for name, at in where[number].items()},
                insert=insert,
                rank=rank,
                after_step=after_step,
                step=step,
            )
            for number in place.active
            if where[number]
        }
        answers, refused = answers_of(replies)
        for number, rows_of_tables in answers.items():
            for (name, at), rows in zip(where[number].items(), rows_of_tables, strict=True):
                pieces[name].append((at, rows))
        if not refused:
            return pieces
        left = np.isin(place.route.owners, list(refused))
        wanted = left if wanted is None else wanted & left
        topology.settle(refused)


def push_gradients(
    topology: Topology,
    keys: Mapping[str, RoutedKeys],
    gradients: Mapping[str, NDArray[np.float32]],
    *,
    step: int,
    rank: int | None,
    weight: float | None,
    worker: int,
    sequence: int,
) -> None:
    """Returns when a push is in all buckets. Arguments and errors are those of `Client.push`."""
    wanted: NDArray[np.bool_] | None = None  # all buckets: those whose owner has not answered
    while True:
        place = topology.now
        # With every table, also without keys: by its id a server tells what is not for it.
        where = _split(keys, place, wanted, all_tables=True)
        replies = {
            number: place.connections[number].data.push(
                place.share(number),
                {n: (keys[n].keys[at], gradients[n][at]) for n, at in where[number].items()},
                step=step,
                rank=rank,
                weight=weight,
                worker=worker,
                sequence=sequence,
            )
            for number in place.active
            if wanted is None or wanted[place.route.owners == number].any()
        }
        _, refused = answers_of(replies)
        if not refused:
            return
        left = np.isin(place.route.owners, list(refused))
        wanted = left if wanted is None else wanted & left
        topology.settle(refused)


def answers_of(
    replies: Mapping[int, Reply[Value]],
) -> tuple[dict[int, Value], dict[int, RouteMismatch]]:
    """Returns the answers and the refusals of servers, by number, when all are there.

    Raises:
        ServerError: The first of what else failed.
    """
    answers: dict[int, Value] = {}
    refused: dict[int, RouteMismatch] = {}
    failures: list[HeteroPipeError] = []
    for number, reply in replies.items():
        try:
            answers[number] = reply.result()
        except RouteMismatch as error:
            refused[number] = error
        except HeteroPipeError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return answers, refused


def _split(
    keys: Mapping[str, RoutedKeys],
    place: Place,
    wanted: NDArray[np.bool_] | None,
    *,
    all_tables: bool,
) -> Sequence[dict[str, Positions]]:
    """Returns where the keys of each server lie, of all tables or those with some of them."""
    assert wanted is None or wanted.shape == (NUM_BUCKETS,)
    found = {name: positions_of(routed, place.route, wanted) for name, routed in keys.items()}
    return [
        {
            name: of_servers[number]
            for name, of_servers in found.items()
            if all_tables or _num(of_servers[number])
        }
        for number in range(len(place.connections))
    ]


def _num(where: Positions) -> int:
    return where.stop - where.start if isinstance(where, slice) else len(where)
