"""SparseWorker: what a sparse worker does between pull and push."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.client import RoutedKeys
from hetero_pipe.data import Batch, Cut
from hetero_pipe.errors import ConfigError, NonFiniteError
from hetero_pipe.nn import Embedding, SparseForward, SparseStep, TableRows
from hetero_pipe.pipeline import (
    CREDIT,
    CutBatch,
    Failure,
    Finished,
    Stage,
    StageLink,
    worker_name,
)
from hetero_pipe.plan import Worker, WorkersPlan
from hetero_pipe.trainer.stages import Prediction, Pulled, Trained
from ps_server.spans import SpanRing

__all__ = ["SparseWorker"]


@dataclass(frozen=True, eq=False)
class _Sent:
    """A batch that a dense worker has, and the way back of its gradients; None if it is empty."""

    keys: Mapping[str, RoutedKeys]
    forward: SparseForward | None
    labels: NDArray[np.float32] | None


class SparseWorker:
    """Pools what was pulled, has the dense workers do the rest, takes the gradients back.

    A context manager: it holds a link to each dense worker.

    ::

        pull ──▶ send: pool, wait for a credit ─ ─▶ dense worker (rank + step) % num_dense
                                                      │
        push ◀── recv: gradients of the rows ◀─ ─ ─ ─ ╯

    Args:
        workers: Of the plan.
        worker: This one.
        embeddings: Of the model, by table.
        job: What the dense workers must have alike, by name.
        connect_timeout: Seconds to wait for dense workers that are not there yet.

    Attributes:
        num_steps: Batches sent to be trained.
        waiting_for_credit: Seconds that they waited for a dense worker to have room.
    """

    def __init__(
        self,
        workers: WorkersPlan,
        worker: Worker,
        *,
        embeddings: Mapping[str, Embedding],
        job: Mapping[str, str],
        connect_timeout: float,
    ) -> None:
        self._rank = worker.rank
        self._name = worker_name("sparse", worker.rank)
        self._step = SparseStep(embeddings)
        self._links = [
            StageLink(
                address,
                dense_rank=rank,
                rank=worker.rank,
                worker=self._name,
                job=job,
                wire=workers.wire,
                connect_timeout=connect_timeout,
            )
            for rank, address in enumerate(workers.dense)
        ]
        self._open = ExitStack()
        self._is_failed = False
        self.num_steps = 0
        self.waiting_for_credit = 0.0

    def __enter__(self) -> "SparseWorker":
        with ExitStack() as undo:
            for link in self._links:
                undo.enter_context(link)
            self._open = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def training_stages(
        self, *, is_stopping: Callable[[], bool], ring: SpanRing | None = None
    ) -> Sequence[Stage]:
        """Returns the stages that stand where a whole worker trains.

        Args:
            is_stopping: Whether, in `sync`, this worker takes no step more.
            ring: Records the waits for credit; None records none.
        """
        send = _SendStage(self, is_training=True, is_stopping=is_stopping, ring=ring)
        return [send, _ReceiveStage(self, is_training=True)]

    def predicting_stages(self) -> Sequence[Stage]:
        """Returns the stages that stand where a whole worker predicts."""
        return [_SendStage(self, is_training=False), _ReceiveStage(self, is_training=False)]

    def link_of(self, step: int) -> StageLink:
        """Returns the link to the dense worker that has the batch of a step."""
        return self._links[(self._rank + step) % len(self._links)]

    def forward(
        self, batch: Batch, tables: Mapping[str, TableRows], *, is_training: bool
    ) -> SparseForward:
        """Returns what crosses of a batch."""
        return self._step.forward(batch, tables, with_gradient=is_training)

    def backward(
        self, step: int, forward: SparseForward, gradients: Mapping[str, NDArray[np.float32]]
    ) -> dict[str, NDArray[np.float32]]:
        """Returns the gradients of the rows of each table, `[u, dim]`.

        Raises:
            NonFiniteError: One is not finite, though those of the cuts were.
        """
        of_rows = self._step.backward(forward, gradients)
        for table, gradient in of_rows.items():
            if not np.isfinite(gradient).all():
                raise NonFiniteError(
                    f"gradients must be finite, got infinity where those of one row of table "
                    f"{table!r} add up in step {step}; its dense part was applied, so load a "
                    "checkpoint and lower the learning rate"
                )
        return of_rows

    def wake(self) -> None:
        """Makes what waits for a dense worker ask whether it is given up."""
        for link in self._links:
            link.wake()

    def end(self, call: str) -> None:
        """Says to all dense workers that a call, such as `fit`, has no more batches."""
        for link in self._links:
            link.end(call)

    def fail(self, error: BaseException, *, step: int) -> None:
        """Tells all workers that this one, or another, cannot go on. The first counts.

        Args:
            error: Why.
            step: Of this worker.
        """
        if self._is_failed:
            return
        self._is_failed = True
        failure = Failure.of(error, worker=self._name, stage="sparse", step=step)
        for link in self._links:
            link.fail(failure)


class _SendStage:
    """Pools a batch and sends what is cut."""

    name = "send"

    def __init__(
        self,
        worker: SparseWorker,
        *,
        is_training: bool,
        is_stopping: Callable[[], bool] = lambda: False,
        ring: SpanRing | None = None,
    ) -> None:
        self._worker = worker
        self._is_training = is_training
        self._is_stopping = is_stopping
        self._ring = ring
        self._is_given_up = False

    def run(self, step: int, pulled: Pulled) -> _Sent:
        batch = pulled.batch
        if batch is None:  # in `sync`: a step of other workers' samples
            nothing = np.empty(0, np.float32)
            self._send(step, Batch({}, nothing.reshape(0, 0), nothing), {})
            return _Sent(pulled.keys, None, nothing)
        if self._is_training and batch.label is None:
            raise ConfigError("training needs labels, got a reader with label=None")
        forward = self._worker.forward(batch, pulled.tables, is_training=self._is_training)
        samples = Batch({}, batch.dense, batch.label, batch.dense_names)
        self._send(step, samples, forward.cuts)
        return _Sent(pulled.keys, forward, batch.label)

    def _send(self, step: int, samples: Batch, cuts: Mapping[str, Cut]) -> None:
        batch = CutBatch(step, self._is_training, samples, cuts, is_stopping=self._is_stopping())
        link = self._worker.link_of(step)
        start, end = link.send(batch, is_given_up=lambda: self._is_given_up)
        if self._is_training:
            self._worker.num_steps += 1
            self._worker.waiting_for_credit += end - start
        if self._ring is not None:
            self._ring.record(self.name, CREDIT, step, start, end)

    def close(self) -> None:
        """Gives up a wait for a credit."""
        self._is_given_up = True
        self._worker.wake()


class _ReceiveStage:
    """Waits for what a batch gave, and takes its gradients back to the rows."""

    name = "recv"

    def __init__(self, worker: SparseWorker, *, is_training: bool) -> None:
        self._worker = worker
        self._is_training = is_training
        self._is_given_up = False

    def run(self, step: int, sent: _Sent) -> Trained | Prediction:
        link = self._worker.link_of(step)
        result = link.receive(step, is_given_up=lambda: self._is_given_up)
        if result.is_over:
            raise Finished
        if not self._is_training:
            return Prediction(result.probabilities, sent.labels)
        assert sent.labels is not None, "the send stage refuses a batch without labels"
        gradients = {}
        if sent.forward is not None:
            gradients = self._worker.backward(step, sent.forward, result.gradients)
        return Trained(sent.keys, gradients, result.loss, result.probabilities, sent.labels)

    def close(self) -> None:
        """Gives up a wait for a result."""
        self._is_given_up = True
        self._worker.wake()
