"""DeviceTables: what a client is without servers, its tables in the memory of a device."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.client import Client, RoutedKeys, Rows
from hetero_pipe.data import aligned_empty
from hetero_pipe.nn import Device, DeviceTable, Group
from ps_server.spans import Spans
from ps_server.spec import TableSpec

__all__ = ["DeviceTables"]


class DeviceTables:
    """Tables in the memory of the device that trains, for `cpu_only` and `gpu_only`.

    It has the methods of a `Client` that a trainer calls; rows and gradients
    stay on the device. First weights, routes and snapshots are those of a
    client's embedded store, so equal ones: a checkpoint goes from mode to mode.

    Several workers have a replica each. All push what all have found, so that
    replicas stay equal, bit for bit, but for rows that nobody has pushed to.

    Args:
        device: Where the rows are.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._store = Client(None)  # holds rows while they are saved or loaded alone
        self._tables: dict[str, DeviceTable] = {}
        self._specs: dict[str, TableSpec] = {}
        self._frozen: dict[str, Rows] = {}  # on the host
        self._group = Group.solo()

    def replicate(self, group: Group) -> None:
        """Makes these the replica of one of a group of workers; the group is closed with it."""
        self._group = group

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of servers: none."""
        return ()

    def attach(self, specs: Iterable[TableSpec], *, fresh: bool = False) -> int:
        """Creates the tables; they are new. Returns 0, their step."""
        wanted = {spec.name: spec for spec in specs}
        self._store.attach(wanted.values(), fresh=fresh)
        for name, spec in wanted.items():
            self._tables[name] = DeviceTable(
                spec, self._device, first_weights=partial(self._first, name)
            )
            self._specs[name] = spec
        return 0

    def _first(self, table: str, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Returns the weights that the rows of keys start with: the store has none of them."""
        routed = RoutedKeys(keys, np.empty(0, np.int64), np.array([0, len(keys)]))
        return self._store.pull({table: routed}, insert=False)[table]

    def route(self, keys: NDArray[np.uint64]) -> RoutedKeys:
        """Returns the distinct keys of `keys` `[n]`."""
        return self._store.route(keys)

    def pull(
        self,
        keys: Mapping[str, RoutedKeys],
        *,
        insert: bool,
        after_step: int | None = None,
        step: int = 0,
    ) -> dict[str, Any]:
        """Returns the rows of each table's keys, tensors `[u, dim]` on the device.

        No other worker pushes here: there is no step to wait for.

        Raises:
            DeviceOutOfMemory: A table does not fit.
        """
        return {
            name: self._tables[name].pull(routed.keys, insert=insert)
            for name, routed in keys.items()
        }

    def push(
        self,
        keys: Mapping[str, RoutedKeys],
        gradients: Mapping[str, Any],
        *,
        step: int,
        weight: float | None = None,
    ) -> None:
        """Applies the gradients of each table, on the device or not yet.

        With a weight, these are this worker's part of the step, as a `Client`'s.

        Raises:
            DeviceOutOfMemory: A table does not fit.
            WorkerLost: Another worker is gone; nothing of the step was applied.
        """
        if weight is not None and self._group.size > 1:
            keys, gradients = self._of_all(keys, gradients, weight)
        for name, gradient in gradients.items():
            self._tables[name].push(keys[name].keys, gradient, step=step)

    def _of_all(
        self, keys: Mapping[str, RoutedKeys], gradients: Mapping[str, Any], weight: float
    ) -> tuple[dict[str, RoutedKeys], dict[str, NDArray[np.float32]]]:
        """Returns the mean of all workers' parts, by weight, as servers find it."""
        mine = {
            name: {"keys": keys[name].keys, "gradients": self._to_array(gradient)}
            for name, gradient in gradients.items()
        }
        told = self._group.gather({"weight": weight, "tables": mine})
        total = sum(part["weight"] for part in told)
        parts = [
            (np.float32(part["weight"] / total), part["tables"])
            for part in told
            if part["weight"] > 0
        ]
        routed, means = {}, {}
        for name in dict.fromkeys(name for _, tables in parts for name in tables):
            found = [(share, tables[name]) for share, tables in parts if name in tables]
            routed[name], means[name] = self._mean(found)
        return routed, means

    def _mean(
        self, parts: Sequence[tuple[np.float32, Mapping[str, NDArray[Any]]]]
    ) -> tuple[RoutedKeys, NDArray[np.float32]]:
        """Returns the keys of all parts of a table, each once, and their gradients `[u, dim]`.

        The gradients of a key are summed in the order of the ranks.
        """
        routed = self.route(np.concatenate([part["keys"] for _, part in parts]))
        dim = parts[0][1]["gradients"].shape[1]
        mean = aligned_empty((len(routed.keys), dim), np.float32)
        mean[...] = 0
        start = 0
        for share, part in parts:
            end = start + len(part["keys"])
            mean[routed.inverse[start:end]] += part["gradients"] * share  # a part has a key once
            start = end
        return routed, mean

    def _to_array(self, gradient: Any) -> NDArray[np.float32]:
        if isinstance(gradient, np.ndarray):
            return gradient
        with self._device.launching():
            return self._device.to_array(gradient)

    def num_rows(self) -> dict[str, int]:
        """Returns the rows of each table."""
        return {name: table.num_rows for name, table in self._tables.items()}

    def start_trace(self) -> None:
        """There is no server that could record."""

    def stop_trace(self) -> list[Spans]:
        """Returns what servers did: there is none."""
        return []

    def clock_ahead(self) -> float:
        """Returns 0: the clock is this host's."""
        return 0.0

    def freeze(self) -> Sequence[int]:
        """Copies the rows of all tables to the host, for `save`; training waits for it."""
        self.release([])
        for name, table in self._tables.items():
            self._frozen[name] = table.export_rows()
        return []

    def release(self, freeze: Sequence[int]) -> None:
        """Lets the copies go."""
        self._frozen.clear()

    def save(
        self, table: str, *, freeze: Sequence[int] | None = None
    ) -> Iterator[tuple[str, Iterable[bytes]]]:
        """Yields file name and content of each snapshot of a table, as a server would."""
        rows = self._tables[table].export_rows() if freeze is None else self._frozen[table]
        # Not in the store that tells first weights: beside training, rows in it would be told.
        with Client(None) as store:
            store.attach([self._specs[table]])
            store.import_rows(table, rows)
            yield from store.save(table)

    def load(self, table: str, paths: Sequence[Path]) -> int:
        """Replaces a table's rows by those in snapshots, and returns how many there are.

        Raises:
            CheckpointError: A snapshot is broken or of another table. No row has
                changed.
            DeviceOutOfMemory: They do not fit; the table is empty then.
        """
        try:
            number = self._store.load(table, paths)
            self._tables[table].import_rows(self._store.export_rows(table))
        finally:
            self._drop(table)
        return number

    def _drop(self, table: str) -> None:
        self._store.attach([self._specs[table]], fresh=True)

    def close(self) -> None:
        """Gives up the tables; a push that waits for other workers fails."""
        self._group.close()
        self._tables.clear()
        self._store.close()
