"""The stages of a worker of mode `elastic`, whose dense part is pulled and pushed as rows are."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.client import Client, RoutedKeys
from hetero_pipe.data import Batch
from hetero_pipe.nn import DenseRows, DenseStep
from hetero_pipe.pipeline import StalenessGate
from hetero_pipe.trainer.leased import LeasedBatches, Place
from hetero_pipe.trainer.stages import Pulled, Routed, RouteStage, Trained, TrainStage

__all__ = ["PushRangesStage", "RouteWithDenseStage", "TrainRowsStage"]

Result = TypeVar("Result")


class RouteWithDenseStage:
    """Routes the keys of a batch, and those of the dense rows, all of which are pulled.

    Args:
        route: Of the batch.
        client: Knows the route.
        keys: Of the dense rows, by table.
        batches: Are told to stop when the stage is closed: they may wait for other
            workers' ranges.
    """

    name = "route"

    def __init__(
        self,
        route: RouteStage,
        *,
        client: Client,
        keys: Mapping[str, NDArray[np.uint64]],
        batches: LeasedBatches,
    ) -> None:
        self._route = route
        self._client = client
        self._keys = keys
        self._batches = batches

    def run(self, step: int, batch: Batch) -> Routed:
        routed = self._route.run(step, batch)
        dense = {name: self._client.route(keys) for name, keys in self._keys.items()}
        return replace(routed, keys={**routed.keys, **dense})

    def close(self) -> None:
        """Has the batches end."""
        self._batches.stop()
        self._route.close()


class TrainRowsStage:
    """Gives the dense part its rows, runs it, and takes the gradients of both kinds of rows.

    Args:
        dense: The dense part, without an optimizer of its own; `on_gradients` is `rows.take`.
        rows: Of the dense part.
    """

    name = "dense"

    def __init__(self, dense: DenseStep, rows: DenseRows) -> None:
        self._dense = dense
        self._train = TrainStage(dense)
        self._rows = rows

    def run(self, step: int, pulled: Pulled) -> tuple[Trained, Mapping[str, NDArray[np.float32]]]:
        with self._dense.device.launching():
            self._rows.set(pulled.whole)
        trained = self._train.run(step, pulled)
        taken = self._rows.taken()
        return trained, {n: _routed(rows, trained.keys[n]) for n, rows in taken.items()}

    def close(self) -> None:
        """Never waits."""


class PushRangesStage(Generic[Result]):
    """Pushes the gradients of all rows as the batch of the range that they are of.

    Args:
        client: Pushes.
        gate: Is told of every push that is applied.
        batches: Say which batch it is, and complete ranges.
        count: Is told of each batch that is applied; what it returns comes out.
    """

    name = "push"

    def __init__(
        self,
        client: Client,
        gate: StalenessGate,
        *,
        batches: LeasedBatches,
        count: Callable[[int, Place, Trained], Result],
    ) -> None:
        self._client = client
        self._gate = gate
        self._batches = batches
        self._count = count

    def run(self, step: int, found: tuple[Trained, Mapping[str, NDArray[np.float32]]]) -> Result:
        trained, dense = found
        place = self._batches.next_place()
        gradients: dict[str, Any] = {**trained.gradients, **dense}
        self._client.push(trained.keys, gradients, step=place.step, origin=place.origin)
        self._gate.acknowledge(step)
        result = self._count(step, place, trained)
        self._batches.pushed(place)
        return result

    def close(self) -> None:
        """Never waits."""


def _routed(rows: NDArray[np.float32], keys: RoutedKeys) -> NDArray[np.float32]:
    """Returns rows in the order of their servers."""
    ordered = np.empty_like(rows)
    ordered[keys.inverse] = rows
    return ordered
