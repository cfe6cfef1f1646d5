"""TrainLoop: runs epochs of training and knows where they stand."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from hetero_pipe.client import Client
from hetero_pipe.data import Batch, Reader
from hetero_pipe.errors import NonFiniteError, WorkerLost
from hetero_pipe.nn import Averager, DenseStep, average_statistics
from hetero_pipe.pipeline import Executor
from hetero_pipe.plan import Plan
from hetero_pipe.trainer.build import Teamwork, build_training
from hetero_pipe.trainer.callbacks import Callback, StepReport
from hetero_pipe.trainer.checkpoint import Position
from hetero_pipe.trainer.epoch import EpochMetrics
from hetero_pipe.trainer.record import Record
from hetero_pipe.trainer.run import RunSettings, check_resume, settings_of
from hetero_pipe.trainer.sparse import SparseWorker
from hetero_pipe.trainer.stages import StepSaver, Trained
from hetero_pipe.trainer.team import Team
from ps_server.spans import SpanRing

__all__ = ["TrainLoop"]

logger = logging.getLogger(__name__)


class TrainLoop:
    """Runs epochs as a plan says. However one ends, what it trained is known.

    Args:
        plan: What runs where.
        client: Holds the tables.
        dense: The dense part, or the way to it.
        step: Steps that the tables have seen.
        model: What `dense` trains.
        team: This worker and the others; it is alone by default.

    Attributes:
        step: Steps trained: dense part and tables.
        position: The next batch of this worker's share.
        metrics: Of the epoch in progress, or else the last one trained.
        run: How it is read and trained, or was by the run that was loaded; None
            if that is not known.
        is_resuming: Whether the next run goes on where the loaded one stood.
        is_torn: Whether a step was applied in part, so that this is the state
            after no number of steps. It stays, until a checkpoint is loaded.
        is_running: Whether steps are under way: nothing can be saved or
            evaluated between them.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        client: Client,
        dense: DenseStep | SparseWorker,
        step: int,
        model: Any,
        team: Team,
    ) -> None:
        self._plan = plan
        self._client = client
        self._dense = dense
        self._model = model  # a paddle.nn.Layer
        self._team = team
        self._is_alone = team.size == 1
        self._is_sync = plan.workers.is_sync and not self._is_alone
        self.step = step
        self.position = Position()
        self.metrics = EpochMetrics()
        self.run: RunSettings | None = None
        self.is_resuming = False
        self.is_torn = False
        self.is_running = False

    def begin_run(self, reader: Reader) -> None:
        """Stands where a loaded run does, if `reader` has its batches, or else at the start.

        Raises:
            CheckpointError: The loaded run stands within an epoch of other batches.
        """
        num_readers = self._plan.workers.num_readers
        run = settings_of(reader, staleness=self._plan.staleness, num_readers=num_readers)
        if self.is_resuming:
            check_resume(self.run, run, batch=self.position.batch)
        else:
            self.position = Position()
            self.metrics = EpochMetrics()
        self.is_resuming = False
        self.run = run

    def run_epoch(
        self,
        reader: Reader,
        *,
        max_steps: int | None,
        record: Record,
        callbacks: Sequence[Callback],
        saver: StepSaver | None = None,
        ring: SpanRing | None = None,
    ) -> bool:
        """Trains from the position to the end of its epoch, at most `max_steps`.

        Several workers end it together.

        Args:
            reader: Has the batches of this worker.
            max_steps: Stop after so many; None is no limit.
            record: Counts the steps.
            callbacks: Told of each step.
            saver: Saves after some of the steps; None saves nothing.
            ring: Records what each stage does when; None records nothing.

        Returns:
            Whether the epoch has ended. The position is then the next one's.
        """
        if self.position.batch == 0:
            self.metrics = EpochMetrics()
        batches = _Counted(
            reader.batches(self.position.epoch, skip=self.position.batch),
            max_steps,
            is_endless=self._is_sync,
        )
        stopping = threading.Event()
        with ExitStack() as stack:
            team = self._begin_together(stopping, stack)
            executor, gate = build_training(
                self._plan,
                batches,
                client=self._client,
                dense=self._dense,
                first_step=self.step,
                count=self._counting(record),
                team=team,
                saver=saver,
                ring=ring,
            )
            first_step, num_dense = self.step, self._dense.num_steps
            waited = self._waiting_for_credit()
            self.is_running = True
            stopped_by: BaseException | None = None
            try:
                with executor:
                    # In `sync`, the others take no step without this worker: they stop as well.
                    stop = stopping.set if self._is_sync else executor.stop
                    stopped_by = self._take_results(executor, callbacks, stop)
            except BaseException as error:
                is_of_replicas = self._is_sync and isinstance(self._dense, DenseStep)
                if is_of_replicas and isinstance(error, NonFiniteError):
                    self._team.agreed = error
                # Asked when every thread has ended. A step that the dense part has seen and that
                # was not counted was pushed to no server, or to some.
                num_trained = self._dense.num_steps - num_dense
                self.is_torn |= num_trained != self.step - first_step
                raise
            finally:
                self.is_running = False
                record.max_staleness = gate.largest_seen
                record.num_missed = gate.num_missed
                record.timeline = executor.timeline(
                    waiting_at_gate={"pull": gate.seconds_waited},
                    waiting_for_credit={"send": self._waiting_for_credit() - waited},
                )
            if isinstance(stopped_by, WorkerLost):
                raise stopped_by
            if isinstance(self._dense, SparseWorker):
                self._dense.end("epoch")
            is_whole = batches.is_exhausted
            if self._team.has_joined:  # an ended clock holds nobody up
                self._client.end()
            if team is not None:
                is_whole = self._end_together(team, is_whole, stopped_by)
        if stopped_by is not None:  # of a worker that reads alone
            self._team.agreed = stopped_by
            raise stopped_by
        if is_whole:
            self.position = Position(self.position.epoch + 1)
        return is_whole

    def _waiting_for_credit(self) -> float:
        """Returns the seconds that this worker has waited for dense ones to have room."""
        return self._dense.waiting_for_credit if isinstance(self._dense, SparseWorker) else 0.0

    def _begin_together(self, stopping: threading.Event, stack: ExitStack) -> Teamwork | None:
        """Starts this worker's clock once all are here; None for a worker alone."""
        self.step = max(self._team.gather(self.step))
        if self._team.has_joined:
            self._client.begin(self.step)
        if self._is_alone:
            return None
        group = averager = None
        if isinstance(self._dense, DenseStep):
            group = self._team.groups.dense.branch("steps")
        if group is not None and not self._is_sync:
            every = self._plan.workers.average_every
            averager = stack.enter_context(Averager(group, self._model, every=every))
        # Nobody pulls before every clock has begun, or it would not be waited for.
        self._team.gather(None)
        return Teamwork(group if self._is_sync else None, averager, stopping.is_set)

    def _end_together(
        self, team: Teamwork, is_whole: bool, stopped_by: BaseException | None
    ) -> bool:
        """Makes the replicas equal and returns whether all workers have come to the end."""
        if team.averager is not None:
            team.averager.finish()
        elif team.group is not None:
            average_statistics(self._team.groups.dense, self._model)
        return self._team.end_epoch(is_whole=is_whole, stopped_by=stopped_by)

    def _counting(self, record: Record) -> Callable[[int, Trained], StepReport]:
        """Returns what counts a step that was applied and says where training then stands."""
        start, epoch, metrics = time.perf_counter(), self.position.epoch, self.metrics

        def count(step: int, trained: Trained) -> StepReport:
            if len(trained.labels):
                loss = metrics.count(trained.loss, trained.labels, trained.probabilities)
            else:  # a step of other workers' samples
                loss = metrics.loss() or 0.0
            self.step = step + 1
            self.position = Position(epoch, self.position.batch + 1)
            record.num_steps += 1
            record.num_samples += len(trained.labels)
            record.seconds = time.perf_counter() - start
            return StepReport(epoch, step, loss, metrics.auc, record.speed())

        return count

    def _take_results(
        self, executor: Executor, callbacks: Sequence[Callback], stop: Callable[[], None]
    ) -> BaseException | None:
        """Tells the callbacks of every step that comes out, and returns what stopped them.

        That is Ctrl-C, an error of a callback, or either of another worker.
        """
        stopped_by: BaseException | None = None
        is_own = False
        while True:
            try:
                for _, report in executor.results():
                    for callback in callbacks:
                        callback.on_step(report)
                    if stopped_by is None and (stopped_by := self._team.groups.news()) is not None:
                        stop()
                return stopped_by
            except BaseException as error:
                if error is executor.failure:  # every step before it has come out
                    if stopped_by is not None and isinstance(error, WorkerLost):
                        raise stopped_by from error  # a Ctrl-C comes to all workers of a terminal
                    raise
                if is_own:
                    if isinstance(error, KeyboardInterrupt):  # the second one: at once
                        self.is_torn = True
                        self._client.close()
                        if isinstance(self._dense, SparseWorker):
                            self._dense.fail(error, step=self.step)
                    raise
                stopped_by, is_own = error, True
                self._team.groups.ask_to_stop(error)
                if isinstance(error, KeyboardInterrupt):
                    logger.warning(
                        "interrupted at step %d; finishing the steps under way "
                        "(Ctrl-C again gives them up)",
                        self.step,
                    )
                else:  # a callback that failed is not told again
                    callbacks = ()
                stop()


class _Counted:
    """The first `limit` batches; knows whether it came to the end of all.

    If it is endless, None follows them for ever: a step of other workers' batches.

    It is read by the executor's thread and asked after that thread has ended.
    """

    def __init__(self, batches: Iterator[Batch], limit: int | None, *, is_endless: bool) -> None:
        self._batches = batches
        self._limit = limit
        self._is_endless = is_endless
        self._num_read = 0
        self.is_exhausted = False

    def __iter__(self) -> Iterator[Batch | None]:
        return self

    def __next__(self) -> Batch | None:
        batch = None if self.is_exhausted or self._num_read == self._limit else self._read()
        if batch is None and not self._is_endless:
            raise StopIteration
        return batch

    def _read(self) -> Batch | None:
        try:
            batch = next(self._batches)
        except StopIteration:
            self.is_exhausted = True
            return None
        self._num_read += 1
        return batch

    def close(self) -> None:
        """Ends the reading, if that is a generator's."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
