"""WorkersPlan: the training processes, and how they keep step; Worker: one of them."""

import math
from dataclasses import dataclass

from hetero_pipe.errors import PlanError
from hetero_pipe.plan.check import is_count

__all__ = ["MODES", "RETRY_SECONDS", "WIRES", "Worker", "WorkersPlan"]

MODES = ("sync", "bounded", "async", "elastic", "cpu_only", "gpu_only")
"""How workers keep step; docs/pipeline.md says what each guarantees."""

WIRES = ("float32", "float16", "bfloat16")
"""What tensors between sparse and dense workers are sent as."""

RETRY_SECONDS = 120.0
"""How long a worker waits, by default, for a durable server that is away."""


@dataclass(frozen=True)
class WorkersPlan:
    """The training processes, and how they keep step.

    A whole worker runs every stage. With `dense`, those that read are sparse
    workers: they hand what they have pulled and pooled to the dense workers and
    push the gradients that come back.

    Attributes:
        mode: One of `MODES`. `sync` applies the sample-weighted mean over the
            workers of a step's gradients as one update, before any pull of the
            next step. In `bounded`, each push is applied as sent, and a pull
            misses at most `Plan.staleness` steps of any worker; in `async`, any
            number. In `elastic`, workers come and go: the dense part is on the
            servers, too, which lease out the batches. `cpu_only` and `gpu_only` hold
            the tables on each worker's own device, without servers, and keep step as
            `sync` does.
        num_readers: Whole or sparse workers.
        dense: HOST:PORT of each dense worker; empty means whole workers.
        wire: One of `WIRES`.
        average_every: Steps between two averages of the dense parameters, in
            `bounded` and `async`.
        range_batches: Batches that a worker gets at once in `elastic`.
        lease_seconds: How long a worker may be silent in `elastic` until its
            batches go to others.

    Raises:
        PlanError: A value is none of these.
    """

    mode: str = "bounded"
    num_readers: int = 1
    dense: tuple[str, ...] = ()
    wire: str = "float32"
    average_every: int = 16
    range_batches: int = 64
    lease_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PlanError(f"mode is one of {', '.join(MODES)}, got mode={self.mode!r}")
        if self.wire not in WIRES:
            raise PlanError(f"wire is one of {', '.join(WIRES)}, got wire={self.wire!r}")
        if not (math.isfinite(self.lease_seconds) and self.lease_seconds > 0):
            raise PlanError(
                f"lease_seconds is above 0, got lease_seconds={self.lease_seconds} "
                "(--lease-seconds)"
            )
        for name, flag in (
            ("num_readers", "num-workers"),
            ("average_every", "average-every"),
            ("range_batches", "range-batches"),
        ):
            value = getattr(self, name)
            if not is_count(value, least=1):
                raise PlanError(f"{name} is at least 1, got {name}={value!r} (--{flag})")
        if self.has_own_tables and self.dense:
            raise PlanError(
                f"in mode {self.mode} a worker has tables and dense part on one device, got "
                f"{len(self.dense)} dense workers; start whole workers, or use another mode"
            )
        if self.is_elastic and self.dense:
            raise PlanError(
                "in mode elastic the dense part is on the servers and each worker is whole, got "
                f"{len(self.dense)} dense workers; start none, or use another mode"
            )
        if self.mode == "sync" and len(self.dense) > self.num_readers:
            raise PlanError(
                "in mode sync every dense worker gets a batch of every step, got "
                f"{len(self.dense)} dense workers and {self.num_readers} that read; start more of "
                "those, or use mode bounded"
            )
        if len(set(self.dense)) != len(self.dense):
            raise PlanError(f"dense names each worker once, got {', '.join(self.dense)}")

    @property
    def has_own_tables(self) -> bool:
        """Whether each worker has the tables on its device, equal ones."""
        return self.mode in ("cpu_only", "gpu_only")

    @property
    def is_elastic(self) -> bool:
        """Whether workers come and go: any number, of which none waits for another."""
        return self.mode == "elastic"

    @property
    def is_sync(self) -> bool:
        """Whether all workers take each step together."""
        return self.mode == "sync" or self.has_own_tables

    @property
    def num_processes(self) -> int:
        """Whole, sparse and dense workers together."""
        return self.num_readers + len(self.dense)

    @property
    def num_dense(self) -> int:
        """Replicas of the dense part."""
        return len(self.dense) or self.num_readers


@dataclass(frozen=True)
class Worker:
    """Which of a plan's workers a process is.

    Attributes:
        stage: `whole`, `sparse` or `dense`.
        rank: Among the workers of its stage, from 0.
        coordinator: HOST:PORT where all workers of the plan meet; the first one
            that reads listens there. None if there is but one.
    """

    stage: str = "whole"
    rank: int = 0
    coordinator: str | None = None

    def check(self, workers: WorkersPlan) -> None:
        """Refuses a worker that the plan does not have.

        Raises:
            PlanError: It has not.
        """
        stages = {"sparse": workers.num_readers, "dense": len(workers.dense)}
        if not workers.dense:
            stages = {"whole": workers.num_readers}
        if workers.is_elastic and self.stage == "whole" and self.rank >= 0:
            return  # there may be any number of them, and they meet on the servers
        if self.stage not in stages or not 0 <= self.rank < stages[self.stage]:
            held = " and ".join(f"{num} {stage}" for stage, num in stages.items())
            raise PlanError(
                f"the plan has {held} workers, with ranks from 0, got {self.stage} worker "
                f"{self.rank}; say which of them it is (--stage, --worker)"
            )
        if workers.num_processes > 1 and self.coordinator is None:
            raise PlanError(
                f"{workers.num_processes} workers meet somewhere, got no coordinator; name a "
                "HOST:PORT of the first worker's host (--coordinator)"
            )
