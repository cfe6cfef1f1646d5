"""Keeper: saves what the workers of a plan have learned, and sets it again.

Who gives what, and takes it, is one table::

    tables                      the servers' rows, by the first worker that reads
    parameters and optimizer    the first worker that has a dense part
    random generators           each worker that has a dense part, where Dropout draws
    metrics, position           each worker that reads

So a checkpoint does not tell whole workers from sparse and dense ones.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.client import Client
from hetero_pipe.errors import CheckpointError, RouteMismatch
from hetero_pipe.nn import (
    Embedding,
    Group,
    average_statistics,
    dense_state,
    load_dense_state,
    load_random_state,
    random_state,
)
from hetero_pipe.trainer.checkpoint import (
    Checkpoint,
    Position,
    writing_checkpoint,
)
from hetero_pipe.trainer.epoch import EpochMetrics
from hetero_pipe.trainer.loop import TrainLoop
from hetero_pipe.trainer.run import RunSettings
from hetero_pipe.trainer.series import read_newest
from hetero_pipe.trainer.sparse import SparseWorker
from hetero_pipe.trainer.team import Team, agree

__all__ = ["Arrays", "DensePart", "Keeper", "Moment"]

logger = logging.getLogger(__name__)

Arrays = Mapping[str, NDArray[Any]]

MAX_WRITES = 10  # of a checkpoint, should rows move while it is read

METRICS, RANDOM, BATCH = "metrics/", "random/", "batch"


@dataclass(frozen=True, eq=False)
class Moment:
    """What a checkpoint has beside the tables, all of it after the same step.

    Attributes:
        step: Steps trained.
        position: Of the first worker that reads.
        run: How it is read and trained; None if that is not known.
        dense: Dense state by name.
        progress: Metrics of the epoch, random generators, and batches of other workers.
    """

    step: int
    position: Position
    run: RunSettings | None
    dense: Arrays
    progress: Arrays


class DensePart:
    """What a worker with a dense part gives to a checkpoint and takes of one.

    Args:
        model: A `paddle.nn.Layer`.
        optimizer: Of its parameters, as Paddle's; None if they are not trained.
        embeddings: Of the model, by table.
        rank: Among the workers with a dense part.
    """

    def __init__(
        self, model: Any, optimizer: Any, embeddings: Mapping[str, Embedding], *, rank: int
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._embeddings = embeddings
        self._rank = rank

    def state(self) -> dict[str, NDArray[Any]]:
        """Returns copies of the dense state, by name."""
        return dense_state(self._model, self._optimizer)

    def average(self, group: Group) -> None:
        """Averages what forwards have changed, such as a BatchNorm's statistics, over replicas.

        Raises:
            Closed: The group was closed.
            WorkerLost: One is gone.
        """
        average_statistics(group, self._model)

    def own(self) -> dict[str, Any]:
        """Returns what is this worker's own: the random generators."""
        return {"random": _named(RANDOM, random_state())}

    def take(self, checkpoint: Checkpoint) -> None:
        """Sets the dense state.

        Raises:
            CheckpointError: It is of another model; nothing has changed.
        """
        check_tables(checkpoint, self._embeddings)
        load_dense_state(self._model, self._optimizer, checkpoint.dense)

    def take_random(self, checkpoint: Checkpoint) -> None:
        """Sets the random generators to where the saved run goes on."""
        if checkpoint.progress is not None:
            load_random_state(_under(RANDOM, _under(_own(self._rank), checkpoint.progress)))

    def save(self, world: Group) -> None:
        """Gives what a checkpoint has of a dense worker, which the first sparse one writes.

        Raises:
            CheckpointError: It could not; all workers raise it.
            WorkerLost: One is gone.
        """
        world.gather({**self.own(), "dense": self.state() if self._rank == 0 else None})
        agree(world, None)

    def load(self, world: Group, path: Path, *, resume: bool) -> None:
        """Sets what a checkpoint has of a dense worker, as the others set theirs.

        Raises:
            CheckpointError: One of them could not; all workers raise it.
            WorkerLost: One is gone.
        """
        held: list[Checkpoint] = []

        def read() -> None:
            held.append(read_newest(path))
            self.take(held[0])

        agree(world, read)
        agree(world, None)  # the tables
        if resume:
            self.take_random(held[0])


class Keeper:
    """Saves and loads on a worker that reads; with it, all others.

    Args:
        client: Holds the tables.
        embeddings: Of the model, by table.
        loop: What stands where the checkpoint does.
        team: This worker and the others that read.
        dense: The dense part; None on a sparse worker.
        feeder: The way to the dense workers, of a sparse one.
        has_own_tables: Whether each worker has a replica of the tables.
    """

    def __init__(
        self,
        *,
        client: Client,
        embeddings: Mapping[str, Embedding],
        loop: TrainLoop,
        team: Team,
        dense: DensePart | None,
        feeder: SparseWorker | None,
        has_own_tables: bool,
    ) -> None:
        self._client = client
        self._embeddings = embeddings
        self._loop = loop
        self._team = team
        self._dense = dense
        self._feeder = feeder
        # Servers are given their rows once; tables of its own, by each worker.
        self._loading_ranks = None if has_own_tables else [0]

    def check_save(self, path: Path) -> None:
        """Refuses a path that `save` would refuse. Raises as `Trainer.check_save` does."""

        def check() -> None:
            with writing_checkpoint(path):
                """Making its folder is the check; it is removed again."""

        self._team.together(check, ranks=[0])

    def save(self, path: Path) -> None:
        """Writes a checkpoint of all workers. Raises as `Trainer.save` does."""
        if self._loop.is_torn:
            raise CheckpointError(
                f"a checkpoint is of whole steps, got step {self._loop.step} applied in part when "
                "training failed; load an earlier checkpoint"
            )
        with self._team.telling():
            self._call("save")
            metrics = self._team.metrics(self._loop.metrics)
            given = self._team.groups.world.gather(self.give())
            if self._dense is not None:
                dense: Arrays = self._dense.state()
            else:
                dense = next(each["dense"] for each in given if each.get("dense") is not None)
            moment = self.moment(dense, metrics, given)
            self._team.together(
                lambda: self._write_where_rows_are(path, moment), ranks=[0], with_dense=True
            )
        logger.info("saved step %d to %s", moment.step, path)

    def _write_where_rows_are(self, path: Path, moment: Moment) -> None:
        """Writes a checkpoint; anew if rows move from server to server meanwhile."""
        for _ in range(MAX_WRITES - 1):
            try:
                return self.write(path, moment)
            except RouteMismatch as error:
                logger.info("saving again: %s", error)
        self.write(path, moment)

    def give(self) -> dict[str, Any]:
        """Returns what this worker gives to a checkpoint that is its own, now."""
        # The first one's is the position that the checkpoint names.
        batch = {BATCH: np.array(self._loop.position.batch, np.int64)} if self._team.rank else {}
        return {"batch": batch, **({} if self._dense is None else self._dense.own())}

    def moment(
        self, dense: Arrays, metrics: EpochMetrics, given: Sequence[Mapping[str, Any]]
    ) -> Moment:
        """Returns what a checkpoint has beside the tables, where the loop stands now.

        Args:
            dense: Dense state by name.
            metrics: Of all workers.
            given: What each worker gave, those that read first.
        """
        progress = _named(METRICS, metrics.state())
        for name in ("random", "batch"):
            states = [each[name] for each in given if name in each]
            for rank, state in enumerate(states):
                # The first one's have their names without a rank, as those of a worker alone.
                progress |= _named(_own(rank), state)
        return Moment(self._loop.step, self._loop.position, self._loop.run, dense, progress)

    def write(
        self,
        path: Path,
        moment: Moment,
        *,
        freeze: Sequence[int] | None = None,
        paced: Callable[[Iterable[bytes]], Iterable[bytes]] = iter,
    ) -> None:
        """Writes a checkpoint; called by the first worker that reads, in any thread.

        Args:
            path: Of the folder.
            moment: What it has beside the tables.
            freeze: Whose rows it has, as `Client.freeze` returned it; None takes those of
                now.
            paced: Hands the pieces of a file on as fast as they may be written.

        Raises:
            CheckpointError: It cannot be written; what was at the path is as it was.
            ServerError: A server failed.
        """
        with writing_checkpoint(path) as writer:
            for name in self._embeddings:
                for file, pieces in self._client.save(name, freeze=freeze):
                    writer.add_snapshot(name, file, paced(pieces))
            writer.finish(
                dense=moment.dense,
                step=moment.step,
                position=moment.position,
                tables=[layer.spec(name) for name, layer in self._embeddings.items()],
                run=moment.run,
                progress=moment.progress,
            )

    def load(self, path: Path, *, resume: bool) -> None:
        """Sets what `save` wrote. Raises as `Trainer.load` does."""
        with self._team.telling():
            self._call("load")
            checkpoint = self._read(path)
            self._loop.is_torn = True  # until every table is there: a server may fail between two
            self._team.together(
                lambda: self._load_tables(checkpoint), ranks=self._loading_ranks, with_dense=True
            )
        self._loop.step = checkpoint.step
        self._loop.position = checkpoint.position if resume else Position()
        self._loop.metrics = EpochMetrics()
        if resume:
            self._load_progress(checkpoint)
        self._loop.run = checkpoint.run if resume else None
        self._loop.is_resuming = resume
        self._loop.is_torn = False
        logger.info("loaded step %d from %s", checkpoint.step, path)

    def _call(self, call: str) -> None:
        """Has the dense workers take part in a call, which they may be asked within `fit`."""
        if self._feeder is not None:
            self._feeder.end(call)

    def _read(self, path: Path) -> Checkpoint:
        """Returns a checkpoint once every worker has set its dense state."""
        held: list[Checkpoint] = []

        def read() -> None:
            held.append(read_newest(path))
            if self._dense is None:
                check_tables(held[0], self._embeddings)
            else:
                self._dense.take(held[0])

        self._team.together(read, with_dense=True)
        return held[0]

    def _load_tables(self, checkpoint: Checkpoint) -> None:
        for name, snapshots in checkpoint.snapshots.items():
            self._client.load(name, snapshots)

    def _load_progress(self, checkpoint: Checkpoint) -> None:
        if checkpoint.progress is None:
            logger.warning(
                "%s was saved by an earlier version, without random generators and metrics: what "
                "Dropout draws, and loss and AUC of its epoch, will differ from an undisturbed run",
                checkpoint.path,
            )
            return
        if self._team.rank == 0:  # it goes on with those of all
            self._loop.metrics = EpochMetrics.of_state(_under(METRICS, checkpoint.progress))
        own = _under(_own(self._team.rank), checkpoint.progress)
        if BATCH in own:
            self._loop.position = Position(self._loop.position.epoch, int(own[BATCH]))
        if self._dense is not None:
            self._dense.take_random(checkpoint)


def check_tables(checkpoint: Checkpoint, embeddings: Mapping[str, Embedding]) -> None:
    """Refuses a checkpoint whose rows do not fit a model's tables.

    Raises:
        CheckpointError: They do not.
    """
    if checkpoint.tables.keys() != embeddings.keys():
        raise CheckpointError(
            f"the checkpoint must be of this model's tables, {', '.join(embeddings)}, "
            f"got {', '.join(checkpoint.tables)} in {checkpoint.path}"
        )
    for name, layer in embeddings.items():
        saved, built = checkpoint.tables[name], layer.spec(name)
        kinds = [type(spec.optimizer).__name__ for spec in (saved, built)]
        if saved.dim != built.dim or kinds[0] != kinds[1]:
            raise CheckpointError(
                f"rows of table {name!r} must fit dim={built.dim} with {kinds[1]}, got "
                f"dim={saved.dim} with {kinds[0]} in {checkpoint.path}; build the model as it "
                "was saved"
            )
        changed = [
            f"{key}={value} saved and {built.to_dict()[key]} built"
            for key, value in saved.to_dict().items()
            if value != built.to_dict()[key]
        ]
        if changed:
            logger.warning("table %s goes on with other settings: %s", name, "; ".join(changed))


def _named(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {prefix + name: array for name, array in arrays.items()}


def _own(rank: int) -> str:
    return f"worker-{rank}/" if rank else ""


def _under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
