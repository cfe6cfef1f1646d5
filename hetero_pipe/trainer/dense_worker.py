"""DenseWorker: serves the dense part to the sparse workers of a plan."""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.errors import ConfigError, HeteroPipeError, StageError, WorkerLost
from hetero_pipe.nn import Averager, DenseStep, Group, Groups, average_statistics
from hetero_pipe.pipeline import (
    BATCH_OF,
    CutBatch,
    CutResult,
    Executor,
    Failure,
    StageHost,
    Timeline,
    worker_name,
)
from hetero_pipe.plan import Plan, Worker, WorkersPlan
from hetero_pipe.trainer.keeper import DensePart
from hetero_pipe.trainer.result import Evaluation, FitResult, summarize
from hetero_pipe.trainer.tracing import FitTrace
from ps_server.spans import SpanRing

__all__ = ["DenseWorker"]

logger = logging.getLogger(__name__)

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
        part: What a checkpoint has of it.
        model: What `dense` trains.
        groups: Of this worker; closed by `__exit__`.
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
        part: DensePart,
        model: Any,
        groups: Groups,
        job: Mapping[str, str],
        connect_timeout: float,
    ) -> None:
        self._plan = plan
        self._rank = worker.rank
        self._name = worker_name("dense", worker.rank)
        self._dense = dense
        self._part = part
        self._model = model  # a paddle.nn.Layer
        self._groups = groups
        self._is_sync = plan.workers.mode == "sync"
        self._connect_timeout = connect_timeout
        self._num_served = 0  # works since `fit` began
        self._interrupt: KeyboardInterrupt | None = None  # the first Ctrl-C within `fit`
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
            self._groups.world.barrier()  # sparse workers wait for it before they connect
            self._host.wait_for_all(self._connect_timeout)
        except BaseException as error:
            self.fail(error, step=0)
            self._host.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._host.__exit__(None, None, None)
        finally:
            self._groups.close()

    def gather(self, value: Any) -> list[Any]:
        """Returns what all workers give, the sparse ones first."""
        return self._groups.world.gather(value)

    def fit(self, tracing: FitTrace) -> FitResult:
        """Trains until all sparse workers have ended `fit`; predicts meanwhile what they evaluate.

        A first Ctrl-C asks the sparse workers to end their steps and to save, and serves
        them meanwhile; a second one gives them up.

        Args:
            tracing: Of this `fit`.

        Returns:
            What the sparse workers return, but for timeline and summary.

        Raises:
            HeteroPipeError: Some worker failed; it is named, with its traceback.
            WorkerLost: A sparse worker is gone.
        """
        timeline, ended = Timeline(), ""
        self._num_served, self._interrupt = 0, None
        tracing.start()
        while ended != "trace":
            ended, part = self._train_phase(tracing.ring)
            if ended == "epoch":
                timeline = timeline.plus(part)
            elif ended == "evaluate":
                self._learn()
            elif ended == "save":
                with tracing.during("save"):
                    self._part.save(self._groups.world)
        tracing.is_whole = True
        tracing.stop()
        self._serve(["fit"])
        found = self._learn()
        if self._interrupt is not None:  # when they had no step more
            raise self._interrupt
        size = {name: found[name] for name in ("num_samples", "seconds")}
        return FitResult.of_dict(found, summarize(self._plan, timeline, **size))

    def evaluate(self) -> Evaluation:
        """Predicts until all sparse workers have ended `evaluate`; returns what they do.

        Raises:
            HeteroPipeError: As `fit`.
        """
        self._serve(["evaluate"])
        return Evaluation(**self._learn())

    def predict(self) -> NDArray[np.float32]:
        """Predicts until all sparse workers have ended `predict`, who have the probabilities.

        Returns:
            None of them, `[0]`.

        Raises:
            HeteroPipeError: As `fit`.
        """
        self._serve(["predict"])
        self._learn()
        return np.empty(0, np.float32)

    def save(self) -> None:
        """Gives its part to the checkpoint that the first sparse worker writes.

        Raises:
            HeteroPipeError: As `fit`; a CheckpointError is raised by all workers.
        """
        self._serve(["save"])
        self._part.save(self._groups.world)

    def load(self, path: Path, *, resume: bool) -> None:
        """Sets its part of a checkpoint. Raises as `save` does."""
        self._serve(["load"])
        self._part.load(self._groups.world, path, resume=resume)

    def fail(self, error: BaseException, *, step: int) -> None:
        """Tells all workers that this one cannot go on. The first failure counts."""
        self._host.fail(Failure.of(error, worker=self._name, stage="dense", step=step))
        self._groups.fail(error)

    def _learn(self) -> dict[str, Any]:
        """Returns what the first sparse worker found."""
        found: dict[str, Any] = self._groups.world.gather(None)[0]
        return found

    def _train_phase(self, ring: SpanRing | None) -> tuple[str, Timeline]:
        """Serves up to the end of some call within `fit`, after which replicas are equal."""
        dense = self._groups.dense
        with ExitStack() as stack:
            group = averager = None
            if dense.size > 1:
                group = dense.branch("steps")
                if not self._is_sync:
                    every = self._plan.workers.average_every
                    averager = stack.enter_context(Averager(group, self._model, every=every))
                    group = None
            ended = self._serve(
                ["epoch", "save", "evaluate", "trace"], group=group, averager=averager, ring=ring
            )
            if averager is not None:
                averager.finish()
            average_statistics(dense, self._model)
        return ended

    def _serve(
        self,
        calls: Sequence[str],
        *,
        group: Group | None = None,
        averager: Averager | None = None,
        ring: SpanRing | None = None,
    ) -> tuple[str, Timeline]:
        """Handles all that comes up to the end of one of `calls`; returns which."""
        dense = _DenseStage(self._dense, self._host, group=group, averager=averager, ring=ring)
        source = _Source(self._host, dense, self._plan.workers, rank=self._rank)
        executor = Executor(
            source,
            [dense, _AnswerStage(self._host)],
            capacities=[1, 1, RESULTS_CAPACITY],
            source_name="recv",
            first_step=self._num_served,
            ring=ring,
        )
        try:
            with executor:
                self._answer_all(executor, is_training="epoch" in calls)
            if source.ended not in calls:
                raise ConfigError(
                    f"all workers run the same script, got the sparse ones at the end of "
                    f"{source.ended} and {self._name} in {calls[-1]}"
                )
        except BaseException as error:
            found = self._groups.explain(error)
            if self._interrupt is not None and isinstance(found, WorkerLost):
                found = self._interrupt  # the sparse workers have ended because of it
            self.fail(found, step=dense.step)
            if found is error:
                raise
            raise found from error
        return source.ended, executor.timeline()

    def _answer_all(self, executor: Executor, *, is_training: bool) -> None:
        """Serves until there is no more; while it is training, also after a first Ctrl-C."""
        while True:
            try:
                for number, _ in executor.results():
                    self._num_served = number + 1
                return
            except KeyboardInterrupt as error:
                is_first = self._interrupt is None and error is not executor.failure
                if not (is_training and is_first):
                    raise
                self._interrupt = error
                logger.warning(
                    "interrupted; the sparse workers end the steps under way (Ctrl-C again gives "
                    "them up)"
                )
                self._groups.ask_to_stop(error)


class _Source:
    """What the dense part is to do next, from what sparse workers send.

    In `sync`, the batches of a training step at once; each other one by itself, as
    they come. Every sparse worker has a batch of every step, if an empty one; here
    are those of (rank + step) % num_dense == this one's rank. It sends the next one
    when it has the gradients of this one, so no more than one of each waits here.

    Attributes:
        ended: The call that all have come to the end of.
    """

    def __init__(
        self, host: StageHost, dense: "_DenseStage", workers: WorkersPlan, *, rank: int
    ) -> None:
        self._host = host
        self._dense = dense
        self._workers = workers
        self._rank = rank
        self._waiting: dict[int, dict[int, CutBatch]] = defaultdict(dict)
        self.ended = ""

    def __iter__(self) -> Iterator[_Work]:
        return self

    def __next__(self) -> _Work:
        while not isinstance(
            taken := self._host.take(is_given_up=lambda: self._dense.is_given_up), str
        ):
            rank, batch = taken
            if not (batch.is_training and self._workers.mode == "sync"):
                return _Work(batch.step, batch.is_training, [taken])
            parts = self._waiting[batch.step]
            parts[rank] = batch
            if len(parts) == self._num_parts(batch.step):
                return _Work(batch.step, True, sorted(self._waiting.pop(batch.step).items()))
        self.ended = taken
        raise StopIteration

    def _num_parts(self, step: int) -> int:
        """Returns how many batches of a step come here."""
        workers = self._workers
        senders = range(workers.num_readers)
        return sum((rank + step) % len(workers.dense) == self._rank for rank in senders)


class _DenseStage:
    """Runs the dense part.

    Args:
        dense: The dense part.
        host: Whose batches it has.
        group: Of the dense workers that take each step together.
        averager: Of dense workers that step by themselves.
        ring: Records whose batches are at work; None records nothing.

    Attributes:
        step: Under way, for messages.
        is_given_up: Whether to take no more.
    """

    name = "dense"

    def __init__(
        self,
        dense: DenseStep,
        host: StageHost,
        *,
        group: Group | None,
        averager: Averager | None,
        ring: SpanRing | None,
    ) -> None:
        self._dense = dense
        self._host = host
        self._group = group
        self._averager = averager
        self._ring = ring
        self.step = 0
        self.is_given_up = False

    def run(self, number: int, work: _Work) -> _Done:
        self.step, start = work.step, time.perf_counter()
        try:
            results = self._train(work) if work.is_training else [self._predict(work.parts[0][1])]
        except HeteroPipeError as error:
            error.place = error.place or f"stage dense at step {work.step}"
            raise
        except Exception as error:  # the executor would count batches, not a worker's steps
            raise StageError(f"stage dense failed at step {work.step}: {error!r}") from error
        self._record(work, start)
        return _Done(work, results)

    def _record(self, work: _Work, start: float) -> None:
        """Records whose batches they were, with the steps of those who sent them."""
        if self._ring is None:
            return
        end, step = time.perf_counter(), work.step if work.is_training else -1
        for rank, _ in work.parts:
            self._ring.record(self.name, f"{BATCH_OF}sparse worker {rank}", step, start, end)

    def _train(self, work: _Work) -> list[CutResult]:
        batches = [batch for _, batch in work.parts if batch.samples.size]
        parts = [(batch.samples, batch.cuts) for batch in batches]
        outputs = self._dense.train_parts(
            work.step,
            parts,
            group=self._group,
            is_stopping=any(batch.is_stopping for _, batch in work.parts),
        )
        if self._averager is not None:
            self._averager.after_step()
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
        """Gives up the wait for a batch, before this stage, and that for other dense workers."""
        self.is_given_up = True
        self._host.wake()
        if self._group is not None:
            self._group.close()


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
