"""The store in the trainer's own process: no server, no wire, the same tables."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.client.status import translate_store_error
from hetero_pipe.client.transport import Gradients, Keys, Reply, ServerStats
from ps_server.route import Route
from ps_server.spec import TableSpec
from ps_server.store import Rows, SnapshotError, Store, StoreError, TableStats

Value = TypeVar("Value")

ADDRESS = "embedded"


@dataclass(frozen=True)
class _Done(Reply[Value]):
    """A reply that is there."""

    value: Value

    def result(self) -> Value:
        return self.value


def _call(work: Callable[[], Value]) -> Value:
    try:
        return work()
    except (StoreError, SnapshotError) as error:
        raise translate_store_error(error, ADDRESS) from error


class EmbeddedTransport:
    """Both planes to a store of this process. Work is done in the calling thread."""

    def __init__(self) -> None:
        self._store = Store()

    def pull(self, route: int, keys: Keys, *, insert: bool) -> Reply[list[NDArray[np.float32]]]:
        return _Done(_call(lambda: self._store.pull(route, keys, insert=insert)))

    def push(self, route: int, gradients: Gradients, *, step: int) -> Reply[None]:
        return _Done(_call(lambda: self._store.push(route, gradients, step=step)))

    def stats(self) -> Reply[ServerStats]:
        tables = {stats.spec.name: stats for stats in self._store.stats()}
        return _Done(ServerStats(self._store.id, "", self._store.route, tables))

    def create_table(self, spec: TableSpec, route: Route) -> Reply[TableStats]:
        return _Done(_call(lambda: self._store.create_table(spec, route)))

    def drop_table(self, name: str) -> Reply[None]:
        self._store.drop_table(name)
        return _Done(None)

    def save(self, route: int, table: str) -> Iterator[tuple[str, Iterable[bytes]]]:
        for name, data in _call(lambda: self._store.save(route, table)):
            yield name, [data]

    def load(self, route: int, table: str, paths: Sequence[Path]) -> Reply[int]:
        return _Done(_call(lambda: self._store.load(route, table, paths)))

    def export_rows(self, route: int, table: str) -> Rows:
        """Returns a copy of a table's rows, in the order of their keys."""
        return _call(lambda: self._store.export_rows(route, table))

    def import_rows(self, route: int, table: str, rows: Rows) -> None:
        """Replaces a table's rows."""
        _call(lambda: self._store.import_rows(route, table, rows))

    def close(self) -> None:
        """Nothing to give up: the tables go with the process."""
