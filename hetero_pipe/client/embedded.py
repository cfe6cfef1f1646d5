"""The store in the trainer's own process: no server, no wire, the same tables."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.client.status import translate_store_error
from hetero_pipe.client.transport import (
    Gradients,
    Keys,
    Reply,
    ServerStats,
    ServerTrace,
    TraceAction,
)
from ps_server.route import Route
from ps_server.spec import TableSpec
from ps_server.store import Rows, SnapshotError, Store, StoreError, TableStats, WorkerLost

Value = TypeVar("Value")

ADDRESS = "embedded"

PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class _Done(Reply[Value]):
    """A reply that is there."""

    value: Value

    def result(self) -> Value:
        return self.value


def _call(work: Callable[[], Value]) -> Value:
    try:
        return work()
    except (StoreError, SnapshotError, WorkerLost) as error:
        raise translate_store_error(error, ADDRESS) from error


def _pieces(data: memoryview) -> Iterator[bytes]:
    """Returns a snapshot in pieces: to copy a large one at once would hold up the other stages."""
    return (bytes(data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES))


class EmbeddedTransport:
    """Both planes to a store of this process. Work is done in the calling thread."""

    def __init__(self) -> None:
        self._store = Store(num_workers=1)

    def pull(
        self,
        route: int,
        keys: Keys,
        *,
        insert: bool,
        rank: int | None = None,
        after_step: int | None = None,
        step: int = 0,
    ) -> Reply[list[NDArray[np.float32]]]:
        return _Done(
            _call(
                lambda: self._store.pull(
                    route, keys, insert=insert, rank=rank, after_step=after_step
                )
            )
        )

    def push(
        self,
        route: int,
        gradients: Gradients,
        *,
        step: int,
        rank: int | None = None,
        weight: float | None = None,
        worker: int = 0,
        sequence: int = 0,
    ) -> Reply[None]:
        # No answer is lost here, so no push comes twice: who sends it makes no difference.
        return _Done(
            _call(lambda: self._store.push(route, gradients, step=step, rank=rank, weight=weight))
        )

    def stats(self) -> Reply[ServerStats]:
        tables = {stats.spec.name: stats for stats in self._store.stats()}
        route, share = self._store.share
        return _Done(ServerStats(self._store.id, "", route, tables, share=share))

    def create_table(self, spec: TableSpec, route: Route) -> Reply[TableStats]:
        return _Done(_call(lambda: self._store.create_table(spec, route)))

    def drop_table(self, name: str) -> Reply[None]:
        self._store.drop_table(name)
        return _Done(None)

    def freeze(self, route: int) -> Reply[int]:
        return _Done(_call(lambda: self._store.freeze(route)))

    def release(self, freeze: int) -> Reply[None]:
        return _Done(_call(lambda: self._store.release(freeze)))

    def save(
        self, route: int, table: str, *, freeze: int | None = None
    ) -> Iterator[tuple[str, Iterable[bytes]]]:
        found = _call(lambda: self._store.save(route, table, freeze=freeze))
        while (snapshot := _call(lambda: next(found, None))) is not None:
            name, data = snapshot
            yield name, _pieces(data)

    def load(self, route: int, table: str, paths: Sequence[Path]) -> Reply[int]:
        return _Done(_call(lambda: self._store.load(route, table, paths)))

    def trace(self, action: TraceAction) -> Reply[ServerTrace]:
        # What this process did for its tables is within its own spans of pull and push.
        return _Done(ServerTrace(time.perf_counter(), None))

    def join(self, rank: int, *, num_workers: int, name: str, worker: int = 0) -> Reply[bool]:
        _call(lambda: self._store.workers.join(rank, num_workers=num_workers, name=name))
        return _Done(False)

    def leave(self) -> None:
        """Nothing to break: a worker of this process has no stream."""

    def set_clock(self, route: int, rank: int, first_step: int | None) -> Reply[None]:
        return _Done(_call(lambda: self._store.set_clock(route, rank, first_step)))

    def goodbye(self, route: int, rank: int) -> Reply[None]:
        return _Done(_call(lambda: self._store.goodbye(route, rank)))

    def take(self, route: Route) -> Reply[Route]:
        return _Done(_call(lambda: self._store.moves.take(route)))

    def export_rows(self, route: int, table: str) -> Rows:
        """Returns a copy of a table's rows, in the order of their keys."""
        return _call(lambda: self._store.export_rows(route, table))

    def import_rows(self, route: int, table: str, rows: Rows) -> None:
        """Replaces a table's rows."""
        _call(lambda: self._store.import_rows(route, table, rows))

    def close(self) -> None:
        """Nothing to give up: the tables go with the process."""
