"""ElasticFit: how a worker trains that may come and go at any time."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetero_pipe.client import Client, Lease, LeaseKind
from hetero_pipe.data import Reader
from hetero_pipe.nn import DenseRows, DenseStep
from hetero_pipe.pipeline import Executor
from hetero_pipe.plan import Plan
from hetero_pipe.trainer.build import build_elastic
from hetero_pipe.trainer.callbacks import Callback, StepReport
from hetero_pipe.trainer.checkpoint import Position
from hetero_pipe.trainer.epoch import EpochMetrics
from hetero_pipe.trainer.holder import Holder
from hetero_pipe.trainer.leased import LeasedBatches, Place
from hetero_pipe.trainer.loop import TrainLoop
from hetero_pipe.trainer.record import Record
from hetero_pipe.trainer.result import Evaluation, FitResult, summarize
from hetero_pipe.trainer.stages import Trained
from hetero_pipe.trainer.tracing import FitTrace

__all__ = ["Beside", "Elastic"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Beside:
    """What a `fit` does beside training.

    Attributes:
        callbacks: Told of this worker's steps, and of the epochs that it closes.
        tracing: Of this `fit`.
        save: Writes a checkpoint; None is not to.
        evaluate: Returns how good the model is now; None is not to.
    """

    callbacks: Sequence[Callback]
    tracing: FitTrace
    save: Callable[[], None] | None
    evaluate: Callable[[], Evaluation] | None


class Elastic:
    """What a trainer of mode `elastic` does. It holds nothing that could be lost.

    One thing after another, as the servers say::

        OPEN    set the dense rows to what this worker's model has      alone
        TRAIN   the batches of ranges, through the pipeline             beside others
        CLOSE   save, evaluate                                          alone
        END

    Args:
        plan: What runs where.
        client: Holds the tables.
        dense: The dense part, whose gradients `rows` takes.
        rows: The dense part as rows.
        loop: Is told where training stands, for a checkpoint.
    """

    def __init__(
        self, plan: Plan, *, client: Client, dense: DenseStep, rows: DenseRows, loop: TrainLoop
    ) -> None:
        self._plan = plan
        self._client = client
        self._dense = dense
        self._rows = rows
        self._loop = loop
        self._num_steps = 0  # of this worker
        self._is_begun = False  # whether the rows on the servers are the model's

    def refresh(self) -> None:
        """Gives the model the dense rows of this moment, if a run has begun that this worker saw.

        Raises:
            ServerError: A server failed.
        """
        if not self._is_begun:
            return
        routed = {name: self._client.route(keys) for name, keys in self._rows.keys.items()}
        found = self._client.pull(routed, insert=False)
        with self._dense.device.launching():
            self._rows.set({name: found[name][keys.inverse] for name, keys in routed.items()})

    def fit(
        self, reader: Reader, *, epochs: int, max_steps: int | None, beside: Beside
    ) -> FitResult:
        """Trains until the run has `epochs` epochs. Raises as `Trainer.fit` does.

        Args:
            reader: Of all workers' batches.
            epochs: Of the run, whoever trains them.
            max_steps: This worker leaves after so many; None is no limit.
            beside: What else is done.
        """
        total = Record()
        evaluations: list[Evaluation] = []
        beside.tracing.start()
        try:
            with Holder(
                self._client, self._rows.run, workers=self._plan.workers, epochs=epochs
            ) as holder:
                while max_steps is None or total.num_steps < max_steps:
                    limit = None if max_steps is None else max_steps - total.num_steps
                    batches = LeasedBatches(reader, client=self._client, holder=holder, limit=limit)
                    self._train(batches, total, beside)
                    if batches.found is None or not self._do(*batches.found, evaluations, beside):
                        break
                    holder.complete(batches.found[0].number, num_batches=0)
            self.refresh()
            beside.tracing.is_whole = True
        finally:
            beside.tracing.stop()
        return self._result(total, evaluations, beside.tracing)

    def _do(self, lease: Lease, worker: int, evaluations: list[Evaluation], beside: Beside) -> bool:
        """Opens the run or closes an epoch; returns whether there is more to come."""
        self._is_begun |= lease.kind is not LeaseKind.END or lease.epoch > 0
        if lease.kind is LeaseKind.OPEN:
            self._open(lease, worker)
        elif lease.kind is LeaseKind.CLOSE:
            evaluations += self._close(lease, beside)
        return lease.kind is not LeaseKind.END

    def _open(self, lease: Lease, worker: int) -> None:
        """Sets what all workers begin with.

        Who opened before and was given up may wake up: what it sends from then on in its
        range's name is left alone.
        """
        if lease.number:
            self._client.finish(worker - lease.number, worker - 1)
        for name, rows in self._rows.values().items():
            self._client.set_rows(name, self._rows.keys[name], rows, worker=worker)
        logger.info("this worker opens the run: all begin with its dense part")

    def _close(self, lease: Lease, beside: Beside) -> list[Evaluation]:
        """Does what is done between two epochs, while nobody trains."""
        self.refresh()
        self._loop.position = Position(lease.epoch + 1)
        if beside.save is not None:
            with beside.tracing.during("save"):
                beside.save()
        evaluation = None
        if beside.evaluate is not None:
            with beside.tracing.during("evaluate"):
                evaluation = beside.evaluate()
        for callback in beside.callbacks:
            callback.on_epoch(lease.epoch, evaluation)
        return [] if evaluation is None else [evaluation]

    def _train(self, batches: LeasedBatches, total: Record, beside: Beside) -> None:
        """Trains ranges until something else is due, or the limit is reached."""
        record = Record()
        executor, gate = build_elastic(
            self._plan,
            batches,
            client=self._client,
            dense=self._dense,
            rows=self._rows,
            first_step=self._num_steps,
            count=self._counting(record),
            ring=beside.tracing.ring,
        )
        self._loop.is_running = True
        try:
            with executor:
                stopped_by = self._take_results(executor, batches, beside.callbacks)
        finally:
            self._loop.is_running = False
            record.max_staleness = gate.largest_seen
            record.num_missed = gate.num_missed
            record.timeline = executor.timeline(waiting_at_gate={"pull": gate.seconds_waited})
            total.add(record)
            self._is_begun |= record.num_steps > 0
        if stopped_by is not None:
            raise stopped_by

    def _counting(self, record: Record) -> Callable[[int, Place, Trained], StepReport]:
        start = time.perf_counter()

        def count(step: int, place: Place, trained: Trained) -> StepReport:
            epoch = place.lease.epoch
            if epoch != self._loop.position.epoch or not self._loop.position.batch:
                self._loop.metrics = EpochMetrics()
            metrics = self._loop.metrics
            loss = metrics.count(trained.loss, trained.labels, trained.probabilities)
            self._num_steps = step + 1
            self._loop.step = max(self._loop.step, place.step)
            batch = place.lease.first_batch + place.origin.sequence
            self._loop.position = Position(epoch, batch)
            record.num_steps += 1
            record.num_samples += len(trained.labels)
            record.seconds = time.perf_counter() - start
            return StepReport(epoch, step, loss, metrics.auc, record.speed())

        return count

    def _take_results(
        self, executor: Executor, batches: LeasedBatches, callbacks: Sequence[Callback]
    ) -> BaseException | None:
        """Tells the callbacks of every step, and returns what stopped them: Ctrl-C, or their error.

        The steps under way are finished first; a second Ctrl-C gives them up.
        """
        stopped_by: BaseException | None = None
        while True:
            try:
                for _, report in executor.results():
                    for callback in callbacks:
                        callback.on_step(report)
                return stopped_by
            except BaseException as error:
                if error is executor.failure:
                    raise
                if stopped_by is not None:
                    self._client.close()
                    raise
                stopped_by, callbacks = error, ()
                batches.stop()
                executor.stop()

    def _result(
        self, total: Record, evaluations: Sequence[Evaluation], tracing: FitTrace
    ) -> FitResult:
        return FitResult(
            num_steps=total.num_steps,
            num_samples=total.num_samples,
            seconds=total.seconds,
            loss=self._loop.metrics.loss(),
            auc=self._loop.metrics.auc(),
            max_staleness=total.max_staleness,
            mean_staleness=total.num_missed / max(total.num_steps, 1),
            timeline=total.timeline,
            summary=summarize(
                self._plan,
                total.timeline,
                num_samples=total.num_samples,
                seconds=total.seconds,
                servers=tracing.servers,
            ),
            evaluations=tuple(evaluations),
        )
