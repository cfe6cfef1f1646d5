"""What one model can be trained with on this machine: measured, all of it, and planned."""

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hetero_pipe.cluster import Cluster
from hetero_pipe.cost import CostModel, learn
from hetero_pipe.plan import Measured, MeasuredStage, Plan
from hetero_pipe.planner import Space, Strategy, Where, propose

# Before installed packages, of which one may be called `build`, too.
sys.path.insert(1, str(Path(__file__).parents[1] / "cost_error"))

from config import Config
from example import model_of
from predict import workload_of
from run import run_config

Runs = dict[str, list[dict[str, Any]]]
"""By candidate, what `run.Measured` had of each run."""

MOST_STALENESS, MOST_SERVERS = 2, 1


@dataclass(frozen=True)
class Setting:
    """A model to train; what is left to choose are servers and staleness.

    Attributes:
        model: One of examples/ctr.
        batch_size: Samples of a step.
        dim: Weights of an embedding.
        rows: Of each table.
    """

    model: str
    batch_size: int
    dim: int = 16
    rows: int = 200_000

    @property
    def name(self) -> str:
        """Of the setting."""
        return f"{self.model}-{self.batch_size}-dim{self.dim}"

    def candidate(self, servers: int, staleness: int) -> Config:
        """Returns the configuration with so many servers and so stale pulls."""
        return Config(
            f"{self.name}-{servers}-servers-k{staleness}",
            self.model,
            self.batch_size,
            dim=self.dim,
            rows=self.rows,
            servers=servers,
            staleness=staleness,
        )

    @property
    def candidates(self) -> tuple[Config, ...]:
        """All that a planner can choose from."""
        choices = product(range(MOST_SERVERS + 1), range(MOST_STALENESS + 1))
        return tuple(self.candidate(*choice) for choice in choices)


SETTINGS = (
    Setting("deepfm", 512),
    Setting("wide_deep", 2048, dim=8),
    Setting("dlrm", 1024, dim=32),
    Setting("dcn", 256),
)


def measure(settings: Sequence[Setting], cache: Path | None, *, rounds: int, end: float) -> Runs:
    """Returns at least `rounds` runs of each candidate, those of a cache among them.

    All candidates take turns in each round, those of a setting one after another, so that
    what else the machine does hits all.

    Args:
        settings: To measure.
        cache: File of runs, which each new one is added to.
        rounds: Runs of each candidate.
        end: No run starts after this time, of `time.monotonic`; then some have fewer.
    """
    runs: Runs = json.loads(cache.read_text()) if cache is not None and cache.exists() else {}
    for number, setting in product(range(1, rounds + 1), settings):
        for config in setting.candidates:
            found = runs.setdefault(config.name, [])
            if len(found) >= number or time.monotonic() > end:
                continue
            found.append(asdict(run_config(config)))
            print(f"{config.name}: {1e3 * found[-1]['step']:.2f} ms", flush=True)
            if cache is not None:
                cache.write_text(json.dumps(runs))
    return runs


def compare(setting: Setting, cluster: Cluster, runs: Runs) -> dict[str, Any]:
    """Returns what a planner picks beside what was measured of all that it could pick.

    Then it learns from the runs of its pick, as a Trainer has it do, and picks again,
    until that is the same one.
    """
    steps = {each.name: [run["step"] for run in runs[each.name]] for each in setting.candidates}
    medians = {name: statistics.median(each) for name, each in steps.items()}
    config = setting.candidates[0]
    model = CostModel(cluster, workload_of(config, model_of(config)))
    predicted = _predictions(model, setting)
    picks = []
    while not picks or (len(picks) < 4 and picks[-1] not in picks[:-1]):
        plan = _pick(model, setting)
        servers = sum(each.count for each in plan.processes_of("server"))
        picks.append(setting.candidate(servers, plan.staleness).name)
        for run in runs[picks[-1]]:
            model = model.corrected(learn(model, plan, _measured(run, setting)))
    fastest = min(medians, key=medians.__getitem__)
    return {
        "name": setting.name,
        "picks": picks,
        "fastest": fastest,
        "pick_over_fastest": medians[picks[0]] / medians[fastest],
        "last_pick_over_fastest": medians[picks[-1]] / medians[fastest],
        "slowest_over_fastest": max(medians.values()) / medians[fastest],
        "spread": max(_spread(each) for each in steps.values()),
        "candidates": {
            name: {
                "predicted_s": predicted[name],
                "predicted_after_learning_s": after,
                "measured_s": medians[name],
                "repeats_s": steps[name],
            }
            for name, after in _predictions(model, setting).items()
        },
    }


def _pick(model: CostModel, setting: Setting) -> Plan:
    space = Space(
        (setting.batch_size,),
        max_staleness=MOST_STALENESS,
        modes=("bounded",),
        splits=("whole",),
        max_machines=1,
        max_per_machine=MOST_SERVERS,
    )
    return propose(model, space).plan


def _predictions(model: CostModel, setting: Setting) -> Mapping[str, float]:
    """Returns the step time of each candidate."""
    found = {}
    for servers, staleness in product(range(MOST_SERVERS + 1), range(MOST_STALENESS + 1)):
        plan = _plan(model, setting, servers=servers, staleness=staleness)
        name = setting.candidate(servers, staleness).name
        found[name] = model.predict(plan).step_seconds
    return found


def _plan(model: CostModel, setting: Setting, *, servers: int, staleness: int) -> Plan:
    host, graph = model.cluster.hosts[0].name, model.workload.graph
    where = (Where("whole", host, "cpu"), *(Where("server", host, "cpu") for _ in range(servers)))
    homes = tuple((table.name, "host") for table in graph.tables)
    strategy = Strategy(where, "bounded", setting.batch_size, homes=homes)
    return strategy.plan(graph, {each.role: (1, 1) for each in where}, staleness=staleness)


def _measured(run: Mapping[str, Any], setting: Setting) -> Measured:
    """Returns a run as a Trainer tells a planner of it."""
    stages = run["stages"].items()
    return Measured(
        step_seconds=run["step"],
        samples=setting.batch_size,
        stages=tuple(MeasuredStage(name, each["busy"], each["cpu"]) for name, each in stages),
        num_steps=100,  # as good as: all of its steps are steady ones
        num_cores=os.cpu_count() or 1,
    )


def _spread(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return max(abs(value - middle) for value in values) / middle
