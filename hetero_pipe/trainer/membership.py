"""Membership: what ties a worker to the servers and to the other workers of its plan."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from hetero_pipe.nn import DenseStep, Embedding, Groups, broadcast_model, join_groups
from hetero_pipe.plan import Plan, Worker
from hetero_pipe.trainer.build import build_client
from hetero_pipe.trainer.dense_worker import DenseWorker
from hetero_pipe.trainer.device_tables import DeviceTables
from hetero_pipe.trainer.job import describe_job
from hetero_pipe.trainer.keeper import DensePart
from hetero_pipe.trainer.sparse import SparseWorker
from hetero_pipe.trainer.team import Team
from hetero_pipe.trainer.tracing import FitTrace
from ps_server.spec import TableSpec

__all__ = ["Membership"]


class Membership:
    """Holds a worker's connections, from when all workers have met until `close`.

    All come in one order, so that nobody needs what is not there yet::

        reader 0          other readers     dense workers
        drop, attach
        ──────────── readers ────────────
                          attach
        ──────────── readers ────────────
        ──────────────────── world ────────────────────
                                            attach
        ═══════ replicas take the first one's dense part ═══════
                                            listen
        ──────────────────── world ────────────────────
        connect           connect           wait for all

    Args:
        plan: Of all workers.
        worker: This one; None is the one of a plan of one, whose steps servers
            do not count.
        dense: The dense part; a sparse worker does not run it.
        part: What a checkpoint has of it.
        embeddings: Of the model, by table.
        dense_tables: Those of a dense part that is on the servers.
        fresh: Drop the tables first, if they are there.
        connect_timeout: Seconds to wait for those that are not there yet.
        retry_seconds: To wait for a durable server that is away.

    Attributes:
        client: Holds the tables.
        team: The workers that read. A dense worker serves them, and is alone in
            a team of its own.
        feeder: The way to the dense workers, of a sparse one.
        server: What serves the sparse workers, of a dense one.
        step: Steps that the tables have seen.

    Raises:
        ConfigError: An address, or the plan's mode, does not go with this worker.
        ServerUnavailable: A server did not answer in time.
        SpecMismatch: A server has a table of that name with another spec.
        RouteMismatch: The servers serve as part of another set.
        WorkerLost: Other workers did not come in time.
    """

    def __init__(
        self,
        plan: Plan,
        worker: Worker | None,
        *,
        dense: DenseStep,
        part: DensePart,
        embeddings: Mapping[str, Embedding],
        dense_tables: Sequence[TableSpec] = (),
        fresh: bool,
        connect_timeout: float,
        retry_seconds: float,
    ) -> None:
        self._plan = plan
        self._worker = worker or Worker()
        self._embeddings = embeddings
        self._dense_tables = dense_tables
        self._connect_timeout = connect_timeout
        self.feeder: SparseWorker | None = None
        self.server: DenseWorker | None = None
        with ExitStack() as undo:
            self.client = build_client(
                plan,
                device=dense.device,
                connect_timeout=connect_timeout,
                retry_seconds=retry_seconds,
            )
            undo.callback(self.client.close)
            is_elastic = plan.workers.is_elastic  # then it meets nobody, and nobody waits for it
            groups = (
                Groups.solo()
                if is_elastic
                else join_groups(
                    plan.workers, self._worker, device=dense.device, seconds=connect_timeout
                )
            )
            undo.callback(groups.close)
            if plan.workers.has_own_tables:
                cast(DeviceTables, self.client).replicate(groups.readers.branch("rows"))
            has_joined = worker is not None and plan.servers is not None and not is_elastic
            self.team = (
                Team(Groups.solo())
                if self._worker.stage == "dense"
                else Team(groups, has_joined=has_joined)
            )
            with Team(groups).telling():
                self.step = self._meet(groups, dense, part, fresh=fresh)
            undo.pop_all()

    def _meet(self, groups: Groups, dense: DenseStep, part: DensePart, *, fresh: bool) -> int:
        """Meets the other workers and returns the steps that the tables have seen."""
        stage = self._worker.stage
        is_dense = stage == "dense"
        step = 0 if is_dense else self._attach(fresh=fresh)
        if self._plan.workers.dense:
            groups.world.barrier()  # the tables are there
        if is_dense:
            step = self.client.attach(self._specs())
        if stage != "sparse":
            broadcast_model(groups.dense, dense.model)
        if stage == "whole":
            return step
        job = describe_job(self._plan, dense.model, self._embeddings)
        if is_dense:
            server = DenseWorker(
                self._plan,
                self._worker,
                dense=dense,
                part=part,
                groups=groups,
                job=job,
                connect_timeout=self._connect_timeout,
            )
            self.server = server.__enter__()
        else:
            # Dense workers listen, or one has said why it cannot.
            groups.world.barrier()
            feeder = SparseWorker(
                self._plan.workers,
                self._worker,
                embeddings=self._embeddings,
                job=job,
                connect_timeout=self._connect_timeout,
            )
            self.feeder = feeder.__enter__()
        return step

    def _attach(self, *, fresh: bool) -> int:
        """Meets the others on the servers and returns the steps that the tables have seen."""
        if self._plan.workers.is_elastic:
            return self.client.attach(self._specs(), beside_others=True)
        if self.team.has_joined:
            self.client.join(rank=self.team.rank, num_workers=self.team.size)
        is_first = self.team.rank == 0
        if is_first:  # or another one's new tables would be dropped
            step = self.client.attach(self._specs(), fresh=fresh)
        self.team.gather(None)
        if not is_first:
            step = self.client.attach(self._specs())
        return int(max(self.team.gather(step)))

    def _specs(self) -> list[TableSpec]:
        own = [layer.spec(name) for name, layer in self._embeddings.items()]
        return [*own, *self._dense_tables]

    def tracing(self, path: str | Path | None) -> FitTrace:
        """Returns what records a `fit`; the first worker that reads writes the file."""
        stage, rank = self._worker.stage, self._worker.rank
        if stage != "whole":
            role = f"{stage} worker {rank}"
        else:
            is_one = self.team.size == 1 and not self._plan.workers.is_elastic
            role = "trainer" if is_one else f"worker {rank}"
        return FitTrace(
            path,
            client=self.client,
            role=role,
            gather=self.server.gather if self.server else self._gather_spans,
            is_first=stage != "dense" and rank == 0,
        )

    def _gather_spans(self, mine: Any) -> list[Any]:
        if self.feeder is not None:
            self.feeder.end("trace")  # dense workers give theirs then
        return self.team.groups.world.gather(mine)

    def end(self, call: str, found: Mapping[str, Any]) -> None:
        """Says to the dense workers that a call has ended, and what they return of it."""
        if self.feeder is not None:
            self.feeder.end(call)
            self.team.groups.world.gather(found)

    def fail(self, error: BaseException, *, step: int) -> None:
        """Tells the others that this worker cannot go on, and why. The first failure counts.

        Args:
            error: Why.
            step: Of this worker.
        """
        peers = self.feeder or self.server
        if peers is not None:
            peers.fail(error, step=step)
        self.team.fail(error)

    def close(self) -> None:
        """Gives up the connections; says goodbye, unless this worker failed."""
        try:
            if self.team.has_joined and not self.team.has_failed:
                self.team.has_joined = False
                self.client.goodbye()
        finally:
            for peers in (self.feeder, self.server):
                if peers is not None:
                    peers.__exit__(None, None, None)
            self.client.close()
            self.team.close()
