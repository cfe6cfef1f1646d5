"""DenseWorker: serves the dense part to the sparse workers of a plan."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.errors import ConfigError, WorkerLost
from hetero_pipe.nn import Averager, DenseStep, Group, Groups, average_statistics
from hetero_pipe.pipeline import Executor, Failure, StageHost, Timeline, worker_name
from hetero_pipe.plan import Plan, Worker
from hetero_pipe.trainer.dense_stages import AnswerStage, DenseStage, WorkSource
from hetero_pipe.trainer.keeper import DensePart
from hetero_pipe.trainer.result import Evaluation, FitResult, summarize
from hetero_pipe.trainer.tracing import FitTrace
from ps_server.spans import SpanRing

__all__ = ["DenseWorker"]

logger = logging.getLogger(__name__)

RESULTS_CAPACITY = 16


class DenseWorker:
    """Trains and predicts what sparse workers send, until all have ended a call.

    A context manager; it listens where the plan says from `__enter__` to
    `__exit__`.

    Args:
        plan: Of all workers.
        worker: This one.
        dense: The dense part here.
        part: What a checkpoint has of it.
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
        groups: Groups,
        job: Mapping[str, str],
        connect_timeout: float,
    ) -> None:
        self._plan = plan
        self._rank = worker.rank
        self._name = worker_name("dense", worker.rank)
        self._dense = dense
        self._part = part
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
                    averager = stack.enter_context(Averager(group, self._dense.model, every=every))
                    group = None
            ended = self._serve(
                ["epoch", "save", "evaluate", "trace"], group=group, averager=averager, ring=ring
            )
            if averager is not None:
                averager.finish()
            average_statistics(dense, self._dense.model)
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
        stage = DenseStage(self._dense, self._host, group=group, averager=averager, ring=ring)
        source = WorkSource(
            self._host, stage, dense=self._dense, workers=self._plan.workers, rank=self._rank
        )
        executor = Executor(
            source,
            [stage, AnswerStage(self._host)],
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
            self.fail(found, step=stage.step)
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
