"""TrainLoop: runs epochs of training and knows where they stand."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from hetero_pipe.client import Client
from hetero_pipe.data import Batch, Reader
from hetero_pipe.errors import WorkerLost
from hetero_pipe.nn import DenseStep
from hetero_pipe.pipeline import Executor
from hetero_pipe.plan import Plan
from hetero_pipe.trainer.build import build_training
from hetero_pipe.trainer.callbacks import Callback, StepReport
from hetero_pipe.trainer.checkpoint import Position
from hetero_pipe.trainer.epoch import EpochMetrics
from hetero_pipe.trainer.record import Record
from hetero_pipe.trainer.sparse import SparseWorker
from hetero_pipe.trainer.stages import Trained

__all__ = ["TrainLoop"]

logger = logging.getLogger(__name__)


class TrainLoop:
    """Runs epochs as a plan says. However one ends, what it trained is known.

    Args:
        plan: What runs where.
        client: Holds the tables.
        dense: The dense part, or the way to it.
        step: Steps that the tables have seen.

    Attributes:
        step: Steps trained: dense part and tables.
        position: The next batch.
        metrics: Of the epoch in progress, or else the last one trained.
        is_torn: Whether a step was applied in part, so that this is the state
            after no number of steps. It stays, until a checkpoint is loaded.
        is_running: Whether steps are under way: nothing can be saved or
            evaluated between them.
    """

    def __init__(
        self, plan: Plan, *, client: Client, dense: DenseStep | SparseWorker, step: int
    ) -> None:
        self._plan = plan
        self._client = client
        self._dense = dense
        self.step = step
        self.position = Position()
        self.metrics = EpochMetrics()
        self.is_torn = False
        self.is_running = False

    def run_epoch(
        self,
        reader: Reader,
        *,
        max_steps: int | None,
        record: Record,
        callbacks: Sequence[Callback],
    ) -> bool:
        """Trains from the position to the end of its epoch, at most `max_steps`.

        Args:
            reader: Has the batches.
            max_steps: Stop after so many; None is no limit.
            record: Counts the steps.
            callbacks: Told of each step.

        Returns:
            Whether the epoch has ended. The position is then the next one's.
        """
        if self.position.batch == 0:
            self.metrics = EpochMetrics()
        batches = _Counted(reader.batches(self.position.epoch, skip=self.position.batch), max_steps)
        executor, gate = build_training(
            self._plan,
            batches,
            client=self._client,
            dense=self._dense,
            first_step=self.step,
            count=self._counting(record),
        )
        first_step, num_dense = self.step, self._dense.num_steps
        self.is_running = True
        try:
            with executor:
                self._take_results(executor, callbacks)
        except BaseException:
            # Asked when every thread has ended. A step that the dense part has seen and that was
            # not counted was pushed to no server, or to some.
            num_trained = self._dense.num_steps - num_dense
            self.is_torn |= num_trained != self.step - first_step
            raise
        finally:
            self.is_running = False
            record.max_staleness = gate.largest_seen
            record.num_missed = gate.num_missed
            record.timeline = executor.timeline(waiting_at_gate={"pull": gate.seconds_waited})
        if batches.is_exhausted:
            self.position = Position(self.position.epoch + 1)
        return batches.is_exhausted

    def _counting(self, record: Record) -> Callable[[int, Trained], StepReport]:
        """Returns what counts a step that was applied and says where training then stands."""
        start, epoch, metrics = time.perf_counter(), self.position.epoch, self.metrics

        def count(step: int, trained: Trained) -> StepReport:
            loss = metrics.count(trained.loss, trained.labels, trained.probabilities)
            self.step = step + 1
            self.position = Position(epoch, self.position.batch + 1)
            record.num_steps += 1
            record.num_samples += len(trained.labels)
            record.seconds = time.perf_counter() - start
            return StepReport(epoch, step, loss, metrics.auc, record.speed())

        return count

    def _take_results(self, executor: Executor, callbacks: Sequence[Callback]) -> None:
        """Tells the callbacks of every step that comes out, and raises what stopped them."""
        stopped_by: BaseException | None = None
        while True:
            try:
                for _, report in executor.results():
                    for callback in callbacks:
                        callback.on_step(report)
                break
            except BaseException as error:
                if stopped_by is not None:
                    if isinstance(error, WorkerLost):  # a Ctrl-C comes to all workers of a terminal
                        raise stopped_by from error
                    if isinstance(error, KeyboardInterrupt):  # the second one: at once
                        self.is_torn = True
                        self._client.close()
                        if isinstance(self._dense, SparseWorker):
                            self._dense.fail(error, step=self.step)
                    raise
                stopped_by = error
                if isinstance(error, KeyboardInterrupt):
                    logger.warning(
                        "interrupted at step %d; finishing the steps under way "
                        "(Ctrl-C again gives them up)",
                        self.step,
                    )
                else:  # a callback that failed is not told again
                    callbacks = ()
                executor.stop()
        if stopped_by is not None:
            raise stopped_by


class _Counted:
    """The first `limit` batches; knows whether it came to the end of all.

    It is read by the executor's thread and asked after that thread has ended.
    """

    def __init__(self, batches: Iterator[Batch], limit: int | None) -> None:
        self._batches = batches
        self._limit = limit
        self._num_read = 0
        self.is_exhausted = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._num_read == self._limit:
            raise StopIteration
        try:
            batch = next(self._batches)
        except StopIteration:
            self.is_exhausted = True
            raise
        self._num_read += 1
        return batch

    def close(self) -> None:
        """Ends the reading, if that is a generator's."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
