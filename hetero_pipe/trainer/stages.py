"""The stages of a step after the reader: route, pull, dense, push."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.client import Client, RoutedKeys
from hetero_pipe.data import Batch, Lookup, occurrences
from hetero_pipe.nn import DenseStep, TableRows, Upload
from hetero_pipe.pipeline import StalenessGate

__all__ = [
    "PredictStage",
    "Prediction",
    "PullStage",
    "PushStage",
    "RouteStage",
    "TrainStage",
    "Trained",
]

Result = TypeVar("Result")

UploadBatch = Callable[[Batch, Mapping[str, TableRows]], Upload]
"""`DenseStep.upload`."""


@dataclass(frozen=True, eq=False)
class Routed:
    """A batch with the distinct keys of each table."""

    batch: Batch
    keys: Mapping[str, RoutedKeys]
    lookups: Mapping[str, Lookup]


@dataclass(frozen=True, eq=False)
class Pulled:
    """A batch with the rows of each table, on its way to the device."""

    batch: Batch
    keys: Mapping[str, RoutedKeys]
    tables: Mapping[str, TableRows]
    uploaded: Upload | None = None


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained batch. Predictions are those before the step.

    Attributes:
        keys: Of each table.
        gradients: By table: float32 `[u, dim]`, arrays or tensors as `StepOutput`'s.
        loss: Of the batch.
        probabilities: float32 `[batch]`.
        labels: float32 `[batch]`.
    """

    keys: Mapping[str, RoutedKeys]
    gradients: Mapping[str, Any]
    loss: float
    probabilities: NDArray[np.float32]
    labels: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Prediction:
    """A predicted batch: probabilities `[batch]`, and labels `[batch]` if it has them."""

    probabilities: NDArray[np.float32]
    labels: NDArray[np.float32] | None


class RouteStage:
    """Finds the distinct keys of each table and the server of each.

    Args:
        client: Knows the route.
        slots: Of each table. Tables of the same slots share the work.
    """

    name = "route"

    def __init__(self, client: Client, slots: Mapping[str, tuple[str, ...]]) -> None:
        self._client = client
        self._slots = slots

    def run(self, step: int, batch: Batch) -> Routed:
        routed: dict[tuple[str, ...], RoutedKeys] = {}
        lookups: dict[tuple[str, ...], Lookup] = {}
        for slots in dict.fromkeys(self._slots.values()):
            routed[slots] = self._client.route(occurrences(batch, slots))
            lookups[slots] = Lookup.of(batch, slots, routed[slots].inverse)
        return Routed(
            batch,
            keys={table: routed[slots] for table, slots in self._slots.items()},
            lookups={table: lookups[slots] for table, slots in self._slots.items()},
        )

    def close(self) -> None:
        """Never waits."""


class PullStage:
    """Pulls the rows of each table and sends them on to the device, where others are in work.

    Args:
        client: Pulls.
        insert: Whether missing rows are created.
        gate: Holds a pull that would miss too many pushes; None never does.
        upload: Starts to copy the batch and its rows to the device; None leaves
            that to the dense stage.
    """

    name = "pull"

    def __init__(
        self,
        client: Client,
        *,
        insert: bool,
        gate: StalenessGate | None,
        upload: UploadBatch | None = None,
    ) -> None:
        self._client = client
        self._upload = upload
        self._insert = insert
        self._gate = gate

    def run(self, step: int, routed: Routed) -> Pulled:
        if self._gate is not None:
            self._gate.wait_to_pull(step)
        rows = self._client.pull(routed.keys, insert=self._insert)
        tables = {name: TableRows(rows[name], routed.lookups[name]) for name in rows}
        uploaded = None if self._upload is None else self._upload(routed.batch, tables)
        return Pulled(routed.batch, routed.keys, tables, uploaded)

    def close(self) -> None:
        """Wakes a pull that waits at the gate."""
        if self._gate is not None:
            self._gate.close()


class TrainStage:
    """Trains the dense part and finds the gradients of the rows."""

    name = "dense"

    def __init__(self, dense: DenseStep) -> None:
        self._dense = dense

    def run(self, step: int, pulled: Pulled) -> Trained:
        output = self._dense.train(step, pulled.batch, pulled.tables, uploaded=pulled.uploaded)
        labels = pulled.batch.label
        assert labels is not None, "DenseStep.train refuses a batch without labels"
        return Trained(pulled.keys, output.gradients, output.loss, output.probabilities, labels)

    def close(self) -> None:
        """Never waits."""


class PredictStage:
    """Predicts; changes nothing."""

    name = "dense"

    def __init__(self, dense: DenseStep) -> None:
        self._dense = dense

    def run(self, step: int, pulled: Pulled) -> Prediction:
        probabilities = self._dense.predict(pulled.batch, pulled.tables, uploaded=pulled.uploaded)
        return Prediction(probabilities, pulled.batch.label)

    def close(self) -> None:
        """Never waits."""


class PushStage(Generic[Result]):
    """Pushes the gradients and, once every server has applied them, opens the gate.

    Args:
        client: Pushes.
        gate: Is told of every push that is applied.
        count: Is then told step and batch, here and not in the caller's thread:
            a Ctrl-C comes to that one, and could fall between two lines of the
            count. What it returns comes out of the pipeline.
    """

    name = "push"

    def __init__(
        self, client: Client, gate: StalenessGate, count: Callable[[int, Trained], Result]
    ) -> None:
        self._client = client
        self._gate = gate
        self._count = count

    def run(self, step: int, trained: Trained) -> Result:
        # Servers count updates from 1.
        self._client.push(trained.keys, trained.gradients, step=step + 1)
        self._gate.acknowledge(step)
        return self._count(step, trained)

    def close(self) -> None:
        """Never waits for another stage."""
