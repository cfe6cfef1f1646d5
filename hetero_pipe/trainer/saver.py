"""Saver: checkpoints during `fit`, each of one step, written while training goes on.

What a checkpoint has is taken where it stands still::

    dense stage   train t ── dense state, random generators ── train t+1 ...
    push stage                       push t ── position, metrics, freeze ── push t+1 ...
    save thread                                                       └── write ── prune

A freeze comes when all servers have answered the push of step t and before the push of t+1 is
sent, so the tables are of the same step as the rest. Of several workers in `sync`, the first one
freezes: no step is applied without its part. The others give it what is theirs at that step.
Statistics that forwards move are averaged at the steps that are saved, as at the end of an epoch.

Where workers do not take each step together, or dense workers take it, all of them meet at the
steps that are saved, as at the end of an epoch, and go on when the checkpoint is written.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from hetero_pipe.client import Client
from hetero_pipe.errors import CheckpointError, HeteroPipeError, ServerError
from hetero_pipe.nn import Group
from hetero_pipe.trainer.epoch import EpochMetrics
from hetero_pipe.trainer.keeper import Arrays, DensePart, Keeper, Moment
from hetero_pipe.trainer.loop import TrainLoop
from hetero_pipe.trainer.series import Series
from hetero_pipe.trainer.team import Team

__all__ = ["Saver"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Taken:
    """What a worker gives of its dense part, right after it trained a step.

    Attributes:
        own: Of each worker: its random generators.
        dense: Dense state, of the first worker alone; None if nothing is written.
    """

    own: dict[str, Any]
    dense: Arrays | None


class Saver:
    """Saves every so many steps of a `fit`, and at the ends of its epochs.

    A context manager: leaving it waits for what is being written.

    Args:
        series: Where checkpoints go.
        every: Steps from one to the next: those of a multiple of it are saved.
        keeper: Writes them.
        client: Holds the tables.
        loop: Whose steps these are.
        team: This worker and the others that read.
        dense: The dense part here; None if all workers pause to save.
    """

    def __init__(
        self,
        series: Series,
        *,
        every: int,
        keeper: Keeper,
        client: Client,
        loop: TrainLoop,
        team: Team,
        dense: DensePart | None,
    ) -> None:
        self._series = series
        self._every = every
        self._keeper = keeper
        self._client = client
        self._loop = loop
        self._team = team
        self._dense = dense
        self._group = Group.solo()  # of the push stage
        self._replicas = Group.solo()  # of the dense stage
        self._thread: threading.Thread | None = None
        self._giving_up = threading.Event()
        self._failure: CheckpointError | None = None  # of the latest save between two epochs

    def begin(self) -> None:
        """Makes the folder ready. Raises as `Series.begin` does, on all workers."""
        self._team.together(lambda: self._series.begin(self._loop.step), ranks=[0])

    def beside_epoch(self) -> "Saver | None":
        """Returns what saves during an epoch that begins; None if workers pause to save.

        All workers call it.
        """
        if self._dense is None:
            return None
        self._group = self._team.groups.readers.branch("saves")
        self._replicas = self._team.groups.dense.branch("statistics")
        return self

    def steps_to_pause(self) -> int | None:
        """Returns after how many steps all workers meet to save; None if they need not."""
        if self._dense is not None:
            return None
        return self._every - int(max(self._team.gather(self._loop.step))) % self._every

    def take(self, step: int) -> _Taken | None:
        """Returns what a checkpoint has of the dense part; None where none is due.

        One that is due while another is being written is left out, with a line in the log.

        Raises:
            Closed: `close` was called.
            WorkerLost: Another worker is gone.
        """
        if (step + 1) % self._every:
            return None
        assert self._dense is not None, "who pauses does not save beside steps"
        # Also where it is left out, which the others do not know; and in place, so that a run that
        # goes on and one that is resumed have the same.
        self._dense.average(self._replicas)
        own = self._dense.own()
        if self._team.rank > 0:
            return _Taken(own, None)
        if not self._is_writing():
            return _Taken(own, self._dense.state())
        logger.info(
            "step %d is not saved: another checkpoint is still being written; save less often "
            "(save_every=%d)",
            step + 1,
            self._every,
        )
        # The others do not know, and give what is theirs.
        return None if self._team.size == 1 else _Taken(own, None)

    def keep(self, taken: _Taken) -> None:
        """Freezes the tables, takes what is the loop's and has all of it written.

        Raises:
            Closed: `close` was called.
            WorkerLost: Another worker is gone.
        """
        # Before the others go on, whose pulls may make rows.
        freeze = None if taken.dense is None else self._freeze()
        try:
            mine = {**self._keeper.give(), **taken.own, "metrics": self._loop.metrics.state()}
            given = self._group.gather(mine)
        except BaseException:
            self._release(freeze)
            raise
        if taken.dense is None or freeze is None:
            return
        first, *others = (EpochMetrics.of_state(each["metrics"]) for each in given)
        for other in others:
            first = first.plus(other)
        moment = self._keeper.moment(taken.dense, first, given)
        self._thread = threading.Thread(target=self._write, args=(moment, freeze), name="save")
        self._thread.start()

    def close(self) -> None:
        """Makes a `take` or `keep` that waits for other workers give up."""
        self._group.close()
        self._replicas.close()

    def save(self) -> None:
        """Saves when no step is under way, and returns when that is written.

        All workers call it. A checkpoint that cannot be written is told by a warning, and
        by `finish`.

        Raises:
            ServerError: A server failed.
            WorkerLost: Another worker is gone.
        """
        self._wait()
        step = self._loop.step
        try:
            self._keeper.save(self._series.path_of(step))
            self._failure = None
            if self._team.rank == 0:
                self._prune(step)
        except CheckpointError as error:
            self._failure = error
            _warn(step, error)

    def finish(self) -> None:
        """Ends the saving of a `fit` that has trained all that it was to.

        Raises:
            CheckpointError: What was trained last is not saved.
        """
        self._wait()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._wait()
        except KeyboardInterrupt:  # one that is waited for is given up by another Ctrl-C
            self._giving_up.set()
            self._wait()
            raise

    def _is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _freeze(self) -> Sequence[int] | None:
        """Returns what is frozen; None if it failed: that servers are gone, training tells."""
        try:
            return self._client.freeze()
        except ServerError as error:
            _warn(self._loop.step, error)
            return None

    def _release(self, freeze: Sequence[int] | None) -> None:
        if freeze is None:
            return
        try:
            self._client.release(freeze)
        except ServerError as error:  # it goes with the server, or when it freezes again
            logger.debug("what was frozen is not released: %s", error)

    def _write(self, moment: Moment, freeze: Sequence[int]) -> None:
        """Writes a checkpoint, in a thread of its own. No failure of it ends training."""
        path, start = self._series.path_of(moment.step), time.perf_counter()
        try:
            self._keeper.write(path, moment, freeze=freeze, paced=self._paced)
            seconds = time.perf_counter() - start
            logger.info("saved step %d to %s in %.1f s", moment.step, path, seconds)
            self._prune(moment.step)
        except HeteroPipeError as error:
            _warn(moment.step, error)
        except Exception:  # the thread's owner trains: it is told here
            logger.exception("step %d is not saved", moment.step)
        finally:
            self._release(freeze)

    def _paced(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Hands on what is written; stops where it is given up."""
        for piece in pieces:
            if self._giving_up.is_set():
                raise CheckpointError("a checkpoint must be waited for, got Ctrl-C")
            yield piece

    def _prune(self, step: int) -> None:
        try:
            self._series.prune(step)
        except OSError as error:
            logger.warning("an old checkpoint is not removed: %s", error)


def _warn(step: int, error: Exception) -> None:
    logger.warning(
        "step %d is not saved, training goes on: %s; make room or free the path, the next "
        "checkpoint is tried as if nothing had happened",
        step,
        error,
    )
