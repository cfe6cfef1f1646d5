"""Team: what a trainer does with those of the other workers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hetero_pipe.data import Reader, share
from hetero_pipe.errors import CheckpointError
from hetero_pipe.nn import Group, Groups
from hetero_pipe.trainer.epoch import EpochMetrics
from hetero_pipe.trainer.record import Record
from hetero_pipe.trainer.stages import Prediction

__all__ = ["Team", "agree"]


class Team:
    """The trainers of all workers that read; each calls the same methods in the same order.

    Alone, a trainer is its own team, and waits for nobody.

    Args:
        groups: Of this worker.
        has_joined: Whether its servers know it as a worker, and keep its clock.

    Attributes:
        has_joined: As given.
        groups: Of this worker.
        has_failed: Whether this worker told the others that it cannot go on.
        agreed: What all workers raise, each for itself, after which all can go on.
    """

    def __init__(self, groups: Groups, *, has_joined: bool = False) -> None:
        self.groups = groups
        self.has_joined = has_joined
        self.has_failed = False
        self.agreed: BaseException | None = None

    @property
    def rank(self) -> int:
        """Of this worker, from 0."""
        return self.groups.readers.rank

    @property
    def size(self) -> int:
        """Workers that read."""
        return self.groups.readers.size

    def share(self, reader: Reader) -> Reader:
        """Returns the batches of a reader that are this worker's."""
        return share(reader, self.rank, self.size)

    def gather(self, value: Any) -> list[Any]:  # as a Group's
        """Returns the values of all workers, by rank.

        Raises:
            WorkerLost: One is gone.
        """
        return self.groups.readers.gather(value)

    def together(
        self,
        act: Callable[[], None],
        *,
        ranks: Sequence[int] | None = None,
        with_dense: bool = False,
    ) -> None:
        """Does something with a checkpoint, which all wait for.

        Args:
            act: Done by this worker, if it is one of `ranks`.
            ranks: Those who do it; None is all.
            with_dense: Whether dense workers, which `agree` likewise, wait as well.

        Raises:
            CheckpointError: One of them raised it, and so all do.
            WorkerLost: One is gone.
        """
        group = self.groups.world if with_dense else self.groups.readers
        try:
            agree(group, act if ranks is None or self.rank in ranks else None)
        except CheckpointError as error:
            self.agreed = error
            raise

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tells the others of what is raised in the block, so that they do not wait.

        Raises:
            WorkerLost: In place of one that was raised, if that did not tell who failed
                first.
        """
        try:
            yield
        except BaseException as error:
            found = error if self.has_failed else self.groups.explain(error)
            self.fail(found)
            if found is error:
                raise
            raise found from error

    def fail(self, error: BaseException) -> None:
        """Tells the others that this worker cannot go on, and why, if not all of them raise it."""
        if error is not self.agreed and not self.has_failed and self.groups.world.size > 1:
            self.has_failed = True
            self.groups.fail(error)

    def predictions(self, mine: Iterator[Prediction]) -> list[Prediction]:
        """Returns the predictions of all batches in their order, from those of the own ones."""
        if self.size == 1:
            return list(mine)
        shares = self.gather([{"probabilities": p.probabilities, "labels": p.labels} for p in mine])
        found = []
        for i in range(max(len(part) for part in shares)):
            found += [Prediction(**part[i]) for part in shares if i < len(part)]
        return found

    def metrics(self, mine: EpochMetrics) -> EpochMetrics:
        """Returns the metrics of the samples of all workers."""
        if self.size == 1:
            return mine
        first, *others = (EpochMetrics.of_state(state) for state in self.gather(mine.state()))
        for other in others:
            first = first.plus(other)
        return first

    def record(self, mine: Record) -> Record:
        """Returns what all workers have trained, in the time of the slowest; own timeline."""
        if self.size == 1:
            return mine
        names = ("num_steps", "num_samples", "seconds", "max_staleness", "num_missed")
        told = self.gather({name: getattr(mine, name) for name in names})
        of: Mapping[str, Sequence[Any]] = {name: [each[name] for each in told] for name in names}
        return Record(
            num_steps=max(of["num_steps"]),
            num_samples=sum(of["num_samples"]),
            seconds=max(of["seconds"]),
            max_staleness=max(of["max_staleness"]),
            num_missed=max(of["num_missed"]),
            timeline=mine.timeline,
        )

    def end_epoch(self, *, is_whole: bool, stopped_by: BaseException | None) -> bool:
        """Meets the others at the end of an epoch, or where it stopped.

        Returns:
            Whether all have come to its end.

        Raises:
            KeyboardInterrupt: One was interrupted.
            WorkerLost: One is gone, or was stopped otherwise.
        """
        told = self.gather({"is_whole": is_whole, "is_stopped": stopped_by is not None})
        if any(each["is_stopped"] for each in told):
            self.agreed = stopped_by or self.groups.news()
            assert self.agreed is not None, "who stops has said so before"
            self.groups.forget_stop()
            raise self.agreed
        return all(each["is_whole"] for each in told)

    def close(self) -> None:
        """Says goodbye to the others."""
        self.groups.close()


def agree(group: Group, act: Callable[[], None] | None) -> None:
    """Does something with a checkpoint, which all of a group wait for.

    Args:
        group: Each of which calls this.
        act: Done by this worker; None is nothing.

    Raises:
        CheckpointError: One of them raised it, and so all do.
        WorkerLost: One is gone.
    """
    failure = None
    try:
        if act is not None:
            act()
    except CheckpointError as error:
        failure = error
    for rank, told in enumerate(group.gather(None if failure is None else str(failure))):
        if told is not None and failure is None:
            failure = CheckpointError(f"{told} (on worker {rank})")
            failure.is_of_another = True
    if failure is not None:
        raise failure
