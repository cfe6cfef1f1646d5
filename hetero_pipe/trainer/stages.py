"""The stages of a step after the reader: route, pull, dense, push."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.client import Client, RoutedKeys
from hetero_pipe.data import Batch, Lookup, occurrences
from hetero_pipe.nn import Averager, DenseStep, Group, StepOutput, TableRows, Upload
from hetero_pipe.pipeline import Finished, StalenessGate

__all__ = [
    "PredictStage",
    "Prediction",
    "PullStage",
    "Pulled",
    "PushStage",
    "RouteStage",
    "Routed",
    "StepSaver",
    "TrainStage",
    "Trained",
    "UploadBatch",
]

Result = TypeVar("Result")

UploadBatch = Callable[[Batch, Mapping[str, TableRows]], Upload]
"""`DenseStep.upload`."""


@dataclass(frozen=True, eq=False)
class Routed:
    """A batch with the distinct keys of each table; None, and no keys, takes part in a step."""

    batch: Batch | None
    keys: Mapping[str, RoutedKeys]
    lookups: Mapping[str, Lookup]


@dataclass(frozen=True, eq=False)
class Pulled:
    """A batch with the rows of each table, on its way to the device.

    Of tables in which it looks nothing up, `whole` has the rows, `[n, dim]`, in the order
    in which their keys were routed.
    """

    batch: Batch | None
    keys: Mapping[str, RoutedKeys]
    tables: Mapping[str, TableRows]
    uploaded: Upload | None = None
    whole: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained batch. Predictions are those before the step.

    Attributes:
        keys: Of each table.
        gradients: By table: float32 `[u, dim]`, arrays or tensors as `StepOutput`'s.
        loss: Of the batch.
        probabilities: float32 `[batch]`.
        labels: float32 `[batch]`.
        taken: What a checkpoint after this step has of the dense part; None without one.
    """

    keys: Mapping[str, RoutedKeys]
    gradients: Mapping[str, Any]
    loss: float
    probabilities: NDArray[np.float32]
    labels: NDArray[np.float32]
    taken: Any = None


class StepSaver(Protocol):
    """What saves after some steps, while later ones are under way."""

    def take(self, step: int) -> Any:
        """Returns what a checkpoint has of the dense part, right after it trained a step.

        None where no checkpoint is due. Called by the dense stage, which launches meanwhile.
        """

    def keep(self, taken: Any) -> None:
        """Takes the rest, once the step is applied and counted, before another one is pushed."""

    def close(self) -> None:
        """Makes a wait for other workers give up; called from another thread."""


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

    def run(self, step: int, batch: Batch | None) -> Routed:
        if batch is None:
            none = self._client.route(np.empty(0, np.uint64))
            return Routed(None, keys=dict.fromkeys(self._slots, none), lookups={})
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
        staleness: Pushes of each other worker that a pull may miss; None is any
            number.
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
        staleness: int | None = None,
        upload: UploadBatch | None = None,
    ) -> None:
        self._client = client
        self._upload = upload
        self._insert = insert
        self._gate = gate
        self._staleness = staleness

    def run(self, step: int, routed: Routed) -> Pulled:
        if self._gate is not None:
            self._gate.wait_to_pull(step)
        if routed.batch is None:
            return Pulled(None, routed.keys, tables={})
        after_step = None if self._staleness is None else max(step - self._staleness, 0)
        # Servers count updates from 1; a step that predicts is none of training.
        number = step + 1 if self._insert else 0
        rows = self._client.pull(
            routed.keys, insert=self._insert, after_step=after_step, step=number
        )
        tables = {name: TableRows(rows[name], found) for name, found in routed.lookups.items()}
        whole = {n: rows[n][routed.keys[n].inverse] for n in rows.keys() - tables.keys()}
        uploaded = None if self._upload is None else self._upload(routed.batch, tables)
        return Pulled(routed.batch, routed.keys, tables, uploaded, whole)

    def close(self) -> None:
        """Wakes a pull that waits at the gate."""
        if self._gate is not None:
            self._gate.close()


class TrainStage:
    """Trains the dense part and finds the gradients of the rows.

    Args:
        dense: The dense part.
        group: Of the workers that take each step together; None takes it alone.
        averager: Of replicas that step by themselves.
        is_stopping: Whether no step more is to be taken, by any of the group.
        saver: Takes the dense part's state after some steps; None saves nothing.
    """

    name = "dense"

    def __init__(
        self,
        dense: DenseStep,
        *,
        group: Group | None = None,
        averager: Averager | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        saver: StepSaver | None = None,
    ) -> None:
        self._dense = dense
        self._group = group
        self._averager = averager
        self._is_stopping = is_stopping
        self._saver = saver

    def run(self, step: int, pulled: Pulled) -> Trained:
        output = self._train(step, pulled)
        if self._averager is not None:
            self._averager.after_step()
        taken = None
        if self._saver is not None:
            with self._dense.device.launching():
                taken = self._saver.take(step)
        if pulled.batch is None:
            none = np.empty(0, np.float32)
            return Trained(pulled.keys, {}, 0.0, probabilities=none, labels=none, taken=taken)
        labels = pulled.batch.label
        assert labels is not None, "DenseStep refuses a batch without labels"
        assert output is not None, "a batch has an output"
        return Trained(
            pulled.keys, output.gradients, output.loss, output.probabilities, labels, taken
        )

    def _train(self, step: int, pulled: Pulled) -> StepOutput | None:
        """Returns the output of the batch, None without a batch."""
        if self._group is None:
            assert pulled.batch is not None, "a worker that steps by itself has a batch"
            return self._dense.train(step, pulled.batch, pulled.tables, uploaded=pulled.uploaded)
        parts = [] if pulled.batch is None else [(pulled.batch, pulled.tables)]
        outputs = self._dense.train_parts(
            step,
            parts,
            uploaded=None if pulled.uploaded is None else [pulled.uploaded],
            group=self._group,
            is_stopping=self._is_stopping(),
        )
        if outputs is None:  # nobody has a sample, or one of them stops
            raise Finished
        return outputs[0] if outputs else None

    def close(self) -> None:
        """Wakes a step that waits for other workers."""
        if self._group is not None:
            self._group.close()


class PredictStage:
    """Predicts; changes nothing."""

    name = "dense"

    def __init__(self, dense: DenseStep) -> None:
        self._dense = dense

    def run(self, step: int, pulled: Pulled) -> Prediction:
        assert pulled.batch is not None, "a prediction is of a batch"
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
        is_part: Whether the gradients are a part of all workers' step.
        saver: Keeps what a step left that was taken after it; None saves nothing.
    """

    name = "push"

    def __init__(
        self,
        client: Client,
        gate: StalenessGate,
        count: Callable[[int, Trained], Result],
        *,
        is_part: bool = False,
        saver: StepSaver | None = None,
    ) -> None:
        self._client = client
        self._gate = gate
        self._count = count
        self._is_part = is_part
        self._saver = saver

    def run(self, step: int, trained: Trained) -> Result:
        # Servers count updates from 1.
        if self._is_part:
            weight = float(len(trained.labels))
            self._client.push(trained.keys, trained.gradients, step=step + 1, weight=weight)
        else:
            self._client.push(trained.keys, trained.gradients, step=step + 1)
        if self._saver is None or trained.taken is None:
            self._gate.acknowledge(step)
            return self._count(step, trained)
        # Behind the gate a pull may make rows, which would be in the checkpoint or not, by chance.
        result = self._count(step, trained)
        self._saver.keep(trained.taken)
        self._gate.acknowledge(step)
        return result

    def close(self) -> None:
        """Wakes a checkpoint that waits for other workers."""
        if self._saver is not None:
            self._saver.close()
