"""Corrections: what training has shown of stages, against what was predicted of them."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from hetero_pipe.errors import ConfigError
from hetero_pipe.plan import (
    Breakdown,
    Measured,
    Plan,
    ProcessPlan,
    StagePrediction,
)

__all__ = ["Corrections", "StageKey"]

NEWEST = 0.5
"""How much a new measurement counts beside all before it: half, so that a machine may change."""

MOST = 20.0
"""What is this much slower, or faster, than predicted is another thing than what was predicted."""


@dataclass(frozen=True, order=True)
class StageKey:
    """A stage where it runs.

    Attributes:
        stage: Its name.
        role: Of the worker that has it.
        host: Of the cluster.
        device: On which the worker computes.
    """

    stage: str
    role: str
    host: str
    device: str

    @staticmethod
    def of(stage: StagePrediction, processes: ProcessPlan) -> "StageKey":
        """Returns the key of a stage of some processes."""
        return StageKey(stage.name, stage.role, processes.host, processes.device)


@dataclass(frozen=True)
class Corrections:
    """Factors of the seconds of stages. Frozen; to and from JSON.

    A factor is the weighted geometric mean of what was measured by what was
    predicted, the newest by half: twice and half as long cancel out.

    Attributes:
        factors: By stage, from 1 / 20 to 20; of one that is not there, 1.
    """

    factors: Mapping[StageKey, float] = field(default_factory=dict)

    def corrected(self, cost: Breakdown, key: StageKey) -> Breakdown:
        """Returns the seconds of a stage, each part as much more as was measured of all."""
        factor = self.factors.get(key, 1.0)
        return cost if factor == 1 else cost.times(factor)

    def learned(self, plan: Plan, measured: Measured) -> "Corrections":
        """Returns these and what a run has shown of the stages of its worker.

        Args:
            plan: That ran, with what was predicted of it under these corrections.
            measured: Of one of its workers.
        """
        if plan.predicted is None:
            return self
        stages = {stage.name: stage for stage in plan.predicted.stages}
        places = {each.role: each for each in plan.processes}
        factors = dict(self.factors)
        for found in measured.stages:
            stage = stages.get(found.name)
            if stage is None or stage.role not in places or not (stage.busy and found.busy):
                continue
            key = StageKey.of(stage, places[stage.role])
            # What was predicted had the factor so far in it.
            shown = math.log(factors.get(key, 1.0) * found.busy / stage.busy)
            before = math.log(factors[key]) if key in factors else shown
            mean = (1 - NEWEST) * before + NEWEST * shown
            factors[key] = min(max(math.exp(mean), 1 / MOST), MOST)
        return Corrections(factors)

    def to_json(self) -> str:
        """Returns the corrections as indented JSON."""
        found = [{**asdict(key), "factor": self.factors[key]} for key in sorted(self.factors)]
        return json.dumps({"corrections": found}, indent=2)

    @staticmethod
    def from_json(text: str) -> "Corrections":
        """Returns the corrections that `to_json` wrote.

        Raises:
            ConfigError: The text is none.
        """
        try:
            factors = {}
            for each in json.loads(text)["corrections"]:
                factor = float(each.pop("factor"))
                if not 1 / MOST <= factor <= MOST:
                    raise ValueError(f"factor={factor}")
                key = StageKey(**each)
                if not all(isinstance(name, str) for name in asdict(key).values()):
                    raise ValueError(f"{key}")
                factors[key] = factor
            return Corrections(factors)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"corrections are JSON as Corrections.to_json writes it, got {error!r}"
            ) from error
