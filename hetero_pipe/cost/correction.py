"""Corrections: how much longer stages take than is predicted of them, as training has shown."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from hetero_pipe.cluster import Cluster
from hetero_pipe.codec import encode
from hetero_pipe.cost.constants import Constants
from hetero_pipe.cost.roles import Roles
from hetero_pipe.errors import ConfigError
from hetero_pipe.plan import Part, StagePrediction
from ps_server.version import VERSION

__all__ = ["LEAST", "MOST", "Correction", "Corrections", "StagePlace", "basis_of"]

LEAST, MOST = 1 / 8, 8.0
"""What is further off than this is another thing than what was predicted."""

NEWEST = 1 / 3
"""How much a run counts beside all before it: repeats differ by a fifth, and machines change."""


@dataclass(frozen=True, order=True)
class StagePlace:
    """A stage, where it runs and whom it waits for: what a correction is of.

    Attributes:
        stage: Its name.
        role: Of the worker that has it, one of `ROLES`.
        host: Of the cluster, where that worker is.
        device: On which that computes.
        peer: Host of the servers of pull and push, and of the dense workers of send and
            recv; empty of other stages, and of tables in the worker's process.
    """

    stage: str
    role: str
    host: str
    device: str
    peer: str = ""

    @staticmethod
    def of(stage: StagePrediction, roles: Roles) -> "StagePlace":
        """Returns that of a stage among the processes of a plan."""
        worker = roles.dense if stage.role == "dense" else roles.reader
        peer = ""
        if stage.name in ("pull", "push") and roles.servers is not None:
            peer = roles.servers.host
        if stage.name in ("send", "recv"):
            peer = roles.dense.host
        return StagePlace(stage.name, stage.role, worker.host, worker.device, peer)


@dataclass(frozen=True)
class Correction:
    """Factors by which the seconds of a stage are predicted.

    Attributes:
        place: Of the stage.
        core: Of its seconds on a core of its worker.
        rest: Of all others: on a server, a device or the network, or waited.
        runs: That have shown them.

    Raises:
        ConfigError: A factor is out of bounds, or nothing has shown it.
    """

    place: StagePlace
    core: float = 1.0
    rest: float = 1.0
    runs: int = 1

    def __post_init__(self) -> None:
        if not (LEAST <= self.core <= MOST and LEAST <= self.rest <= MOST and self.runs >= 1):
            raise ConfigError(
                f"a correction is from {LEAST} to {MOST:g} and of at least one run, got {self}"
            )

    def applied(self, stage: StagePrediction) -> StagePrediction:
        """Returns a stage with each part of its cost as much longer, as busy as it costs."""

        def seconds(part: Part) -> float:
            return part.amount * (self.core if part.resource == "worker" else self.rest)

        cost = stage.cost.map(seconds)
        return replace(stage, cost=cost, busy=cost.total)

    def blended(self, shown: "Correction") -> "Correction":
        """Returns it after one more run, which has shown others: a mean in proportion.

        The first runs count alike, and later ones `NEWEST`, so that twice as long and
        half as long cancel out and what is long ago fades.
        """
        share = max(1 / (self.runs + 1), NEWEST)

        def mean(before: float, now: float) -> float:
            return bounded(before ** (1 - share) * now**share)

        return Correction(
            self.place, mean(self.core, shown.core), mean(self.rest, shown.rest), self.runs + 1
        )


def bounded(factor: float) -> float:
    """Returns the factor nearest to this that a correction may have."""
    return min(max(factor, LEAST), MOST)


@dataclass(frozen=True)
class Corrections:
    """What training has shown of stages. Frozen; to and from JSON by `hetero_pipe.codec`.

    Attributes:
        basis: Of what they correct, as `basis_of` has it: of another they say nothing.
        found: One for each place.
    """

    basis: str = ""
    found: tuple[Correction, ...] = ()

    @cached_property
    def _by_place(self) -> Mapping[StagePlace, Correction]:
        return {each.place: each for each in self.found}

    def of(self, place: StagePlace) -> Correction | None:
        """Returns that of a place; None if no run has shown any."""
        return self._by_place.get(place)

    def applied(
        self, stages: tuple[StagePrediction, ...], roles: Roles
    ) -> tuple[StagePrediction, ...]:
        """Returns the stages of a plan, corrected."""
        places = (StagePlace.of(stage, roles) for stage in stages)
        return tuple(
            correction.applied(stage) if (correction := self.of(place)) else stage
            for stage, place in zip(stages, places, strict=True)
        )

    def told(self, stages: tuple[StagePrediction, ...], roles: Roles) -> Iterator[str]:
        """Yields what is corrected of the stages of a plan, for people.

        Args:
            stages: Not corrected.
            roles: Of the plan.
        """
        for stage in stages:
            place = StagePlace.of(stage, roles)
            correction = self.of(place)
            if correction is not None and stage.cost.total:
                factor = correction.applied(stage).cost.total / stage.cost.total
                runs = "a run" if correction.runs == 1 else f"{correction.runs} runs"
                yield f"{stage.name} on {place.host} by {factor:.2f}, as {runs} showed"

    def replaced(self, others: Iterable[Correction]) -> "Corrections":
        """Returns these with others in the places of which there are others."""
        found = {**self._by_place, **{each.place: each for each in others}}
        return Corrections(self.basis, tuple(found[place] for place in sorted(found)))

    def with_run(self, shown: Iterable[Correction]) -> "Corrections":
        """Returns these and what one more run has shown."""
        before = self._by_place
        return self.replaced(
            before[each.place].blended(each) if each.place in before else each for each in shown
        )


def basis_of(cluster: Cluster, constants: Constants) -> str:
    """Returns a digest of what a prediction is made of but for the plan and the workload.

    That is what devices and links can do, what was measured of them, what is assumed,
    and this version. How many machines there are, what they cost and how they are
    reached is not.
    """
    hosts = [(host.name, encode(host.devices), encode(host.links)) for host in cluster.hosts]
    parts = (VERSION, hosts, encode(cluster.links), encode(cluster.rates), encode(constants))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
