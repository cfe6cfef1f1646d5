"""DenseWorker: serves the dense part to the sparse workers of a plan."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.errors import HeteroPipeError, StageError
from hetero_pipe.metrics import auc, log_loss
from hetero_pipe.nn import DenseStep, Group
from hetero_pipe.pipeline import (
    CutBatch,
    CutResult,
    Executor,
    Failure,
    StageHost,
    Timeline,
    worker_name,
)
from hetero_pipe.plan import Plan, Worker
from hetero_pipe.trainer.epoch import EpochMetrics
from hetero_pipe.trainer.record import Record
from hetero_pipe.trainer.result import Evaluation, FitResult

__all__ = ["DenseWorker"]

# The results of a step are counted by the caller, who may be behind.
RESULTS_CAPACITY = 16


@dataclass(frozen=True, eq=False)
class _Work:
    """Batches that the dense part handles at once.

    Attributes:
        step: Of the sparse workers that sent them.
        is_training: Whether they are trained, as one step; else predicted.
        parts: Each with the rank of its sparse worker, in the order of the ranks.
    """

    step: int
    is_training: bool
    parts: Sequence[tuple[int, CutBatch]]


@dataclass(frozen=True, eq=False)
class _Done:
    """What work gave: a result for each of its parts."""

    work: _Work
    results: Sequence[CutResult]


class DenseWorker:
    """Trains and predicts what sparse workers send, until all have ended a call.

    A context manager; it listens where the plan says from `__enter__` to
    `__exit__`. `recv`, `dense` and `send` each have a thread::

        sparse workers ─ ─▶ recv ──▶ dense: forward, backward, step ──▶ send ─ ─▶ sparse workers

    Args:
        plan: Of all workers.
        worker: This one.
        dense: The dense part here.
        job: What the sparse workers must have alike, by name.
        connect_timeout: Seconds to wait for sparse workers that are not there yet.

    Raises:
        ConfigError: The address cannot be listened on.
        WorkerLost: Sparse workers were not there in time.
    """

    def __init__(
        self,
        plan: Plan,
        worker: Worker,
        *,
        dense: DenseStep,
        job: Mapping[str, str],
        connect_timeout: float,
    ) -> None:
        self._plan = plan
        self._rank = worker.rank
        self._name = worker_name("dense", worker.rank)
        self._dense = dense
        self._connect_timeout = connect_timeout
        self._host = StageHost(
            plan.workers.dense[worker.rank],
            worker=self._name,
            job=job,
            num_sparse=plan.workers.num_readers,
            capacity=plan.stage("pull").capacity,  # what stands in front of the dense stage
            wire=plan.workers.wire,
        )

    def __enter__(self) -> "DenseWorker":
        self._host.__enter__()
        try:
            self._host.wait_for_all(self._connect_timeout)
        except BaseException as error:
            self.fail(error, step=0)
            self._host.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._host.__exit__(None, None, None)

    def fit(self) -> FitResult:
        """Trains until all sparse workers have ended `fit`; predicts meanwhile what they evaluate.

        Returns:
            What was trained here. Loss and AUC are over all of it.

        Raises:
            HeteroPipeError: Some worker failed; it is named, with its traceback.
            WorkerLost: A sparse worker is gone.
        """
        record, metrics = Record(), EpochMetrics()
        start = time.perf_counter()

        def count(done: _Done) -> None:
            if not done.work.is_training:
                return
            record.num_steps += 1
            record.seconds = time.perf_counter() - start
            for (_, batch), result in zip(done.work.parts, done.results, strict=True):
                labels = batch.samples.label
                assert labels is not None, "a sparse worker refuses a batch without labels"
                if len(labels):
                    record.num_samples += len(labels)
                    metrics.count(result.loss, labels, result.probabilities)

        timeline = self._serve("fit", count)
        return FitResult(
            num_steps=record.num_steps,
            num_samples=record.num_samples,
            seconds=record.seconds,
            loss=metrics.loss(),
            auc=metrics.auc(),
            max_staleness=0,  # of pulls, which are the sparse workers'
            mean_staleness=0.0,
            timeline=timeline,
            evaluations=(),
        )

    def evaluate(self) -> Evaluation:
        """Predicts until all sparse workers have ended `evaluate`; scores what was predicted here.

        Raises:
            HeteroPipeError: As `fit`.
        """
        labels: list[NDArray[np.float32]] = []
        probabilities: list[NDArray[np.float32]] = []

        def count(done: _Done) -> None:
            for (_, batch), result in zip(done.work.parts, done.results, strict=True):
                if batch.samples.label is not None:
                    labels.append(batch.samples.label)
                    probabilities.append(result.probabilities)

        self._serve("evaluate", count)
        if not labels:
            return Evaluation(None, float("nan"), 0)
        all_labels, scores = np.concatenate(labels), np.concatenate(probabilities)
        return Evaluation(auc(all_labels, scores), log_loss(all_labels, scores), len(all_labels))

    def predict(self) -> NDArray[np.float32]:
        """Predicts until all sparse workers have ended `predict`, who have the probabilities.

        Returns:
            None of them, `[0]`.

        Raises:
            HeteroPipeError: As `fit`.
        """
        self._serve("predict", lambda done: None)
        return np.empty(0, np.float32)

    def fail(self, error: BaseException, *, step: int) -> None:
        """Tells all workers that this one cannot go on. The first failure counts."""
        self._host.fail(Failure.of(error, worker=self._name, stage="dense", step=step))

    def _serve(self, call: str, count: Callable[[_Done], None]) -> Timeline:
        """Handles all that comes in a call; `count` is told of it in the caller's thread."""
        dense = _DenseStage(self._dense, self._host)
        source = self._steps(call, dense) if self._is_sync else self._singles(call, dense)
        executor = Executor(
            source,
            [dense, _AnswerStage(self._host)],
            capacities=[1, 1, RESULTS_CAPACITY],
            source_name="recv",
        )
        try:
            with executor:
                for _, done in executor.results():
                    count(done)
        except BaseException as error:
            self.fail(error, step=dense.step)
            raise
        return executor.timeline()

    @property
    def _is_sync(self) -> bool:
        return self._plan.workers.mode == "sync"

    def _take(self, call: str, dense: "_DenseStage") -> tuple[int, CutBatch] | None:
        return self._host.take(call, is_given_up=lambda: dense.is_given_up)

    def _singles(self, call: str, dense: "_DenseStage") -> Iterator[_Work]:
        """Yields each batch by itself, as they come, the sparse workers in turns."""
        while (taken := self._take(call, dense)) is not None:
            _, batch = taken
            yield _Work(batch.step, batch.is_training, [taken])

    def _steps(self, call: str, dense: "_DenseStage") -> Iterator[_Work]:
        """Yields the batches of each training step at once, and each other one by itself.

        Every sparse worker has a batch of every step, if an empty one; here are
        those of (rank + step) % num_dense == this one's rank. It sends the next
        one when it has the gradients of this one, so no more than one of each
        waits here.
        """
        workers = self._plan.workers
        waiting: dict[int, dict[int, CutBatch]] = defaultdict(dict)
        while (taken := self._take(call, dense)) is not None:
            rank, batch = taken
            if not batch.is_training:
                yield _Work(batch.step, False, [taken])
                continue
            step, parts = batch.step, waiting[batch.step]
            parts[rank] = batch
            wanted = [
                sparse
                for sparse in range(workers.num_readers)
                if (sparse + step) % len(workers.dense) == self._rank
            ]
            if len(parts) == len(wanted):
                yield _Work(step, True, sorted(waiting.pop(step).items()))


class _DenseStage:
    """Runs the dense part.

    Attributes:
        step: Under way, for messages.
        is_given_up: Whether to take no more.
    """

    name = "dense"

    def __init__(self, dense: DenseStep, host: StageHost, *, group: Group | None = None) -> None:
        self._dense = dense
        self._host = host
        self._group = group
        self.step = 0
        self.is_given_up = False

    def run(self, number: int, work: _Work) -> _Done:
        self.step = work.step
        try:
            results = self._train(work) if work.is_training else [self._predict(work.parts[0][1])]
        except HeteroPipeError:
            raise
        except Exception as error:  # the executor would count batches, not a worker's steps
            raise StageError(f"stage dense failed at step {work.step}: {error!r}") from error
        return _Done(work, results)

    def _train(self, work: _Work) -> list[CutResult]:
        batches = [batch for _, batch in work.parts if batch.samples.size]
        parts = [(batch.samples, batch.cuts) for batch in batches]
        outputs = self._dense.train_parts(work.step, parts, group=self._group)
        nothing = CutResult(work.step, 0.0, np.empty(0, np.float32), {}, is_over=outputs is None)
        left = iter(outputs or ())
        results = []
        for _, batch in work.parts:
            if outputs is None or not batch.samples.size:
                results.append(nothing)
                continue
            output = next(left)
            gradients = output.gradients
            results.append(CutResult(work.step, output.loss, output.probabilities, gradients))
        return results

    def _predict(self, batch: CutBatch) -> CutResult:
        probabilities = self._dense.predict(batch.samples, batch.cuts)
        return CutResult(batch.step, 0.0, probabilities, {})

    def close(self) -> None:
        """Gives up the wait for a batch, before this stage."""
        self.is_given_up = True
        self._host.wake()


class _AnswerStage:
    """Sends each sparse worker what its batch gave."""

    name = "send"

    def __init__(self, host: StageHost) -> None:
        self._host = host

    def run(self, number: int, done: _Done) -> _Done:
        for (rank, _), result in zip(done.work.parts, done.results, strict=True):
            self._host.answer(rank, result)
        return done

    def close(self) -> None:
        """Never waits."""
