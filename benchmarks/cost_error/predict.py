"""What the cost model says of a configuration. The one file here that knows of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import paddle
from config import Config
from example import model_of
from samples import NUM_DENSE, Samples, slots_of

import hetero_pipe as hp
from hetero_pipe.cost import Constants, CostModel, Workload
from hetero_pipe.data import measure_statistics
from hetero_pipe.nn import BatchSpec, trace
from hetero_pipe.plan import Prediction

# What is there before memory is measured: the process, and batches, which are made ahead.
NOT_MEASURED = ("process", "batches read ahead")


@dataclass(frozen=True)
class Predicted:
    """What is expected of a run, as `run.Measured` has it.

    Attributes:
        step: Seconds.
        peak_bytes: Of all processes.
        stages: Seconds a step, by worker and stage.
    """

    step: float
    peak_bytes: int
    stages: Mapping[str, float]


def predict(config: Config, cluster: hp.Cluster) -> Predicted:
    """Returns what is expected of a configuration on one host, without a step."""
    prediction = expect(config, cluster)
    return Predicted(
        prediction.step_seconds,
        int(
            sum(
                part.amount
                for memory in prediction.memory
                if memory.device == "cpu"  # the emulated one computes nothing, and keeps nothing
                for part in memory.peak.parts
                if part.label not in NOT_MEASURED
            )
        ),
        {
            each.name if each.role == "whole" else f"{each.role} {each.name}": each.busy
            for each in prediction.stages
        },
    )


def expect(config: Config, cluster: hp.Cluster) -> Prediction:
    """Returns the cost model's prediction; of the emulated device, the time is stated."""
    model = CostModel(cluster, _workload(config), Constants(read_value=0.0))  # all are read before
    return model.predict(plan_of(config, model_of(config)))


@cache
def _workload(config: Config) -> Workload:
    return workload_of(config, model_of(config))


def workload_of(config: Config, model: paddle.nn.Layer) -> Workload:
    """Returns what is trained, as a planner has it from the model and a sample of the data."""
    samples = Samples.of(config)
    graph = trace(model, BatchSpec.of(samples.steady[0]))
    tables = {table.name: tuple(table.slots) for table in graph.tables}
    found = measure_statistics(samples.steady, tables, batch_size=config.batch_size)
    return Workload(
        graph.with_data(keys={slot: found.keys[slot] for slot in slots_of(config)}),
        rows=dict.fromkeys(tables, config.rows),
        distinct={name: table.distinct.points for name, table in found.tables.items()},
        num_dense=NUM_DENSE,
        device_seconds=config.device_ms / 1e3 if config.is_emulated else None,
        skew=max(
            table.largest_share(config.servers) * config.servers if config.servers else 1.0
            for table in found.tables.values()
        ),
    )


def plan_of(config: Config, model: object) -> hp.Plan:
    """Returns the plan that the workers take, with addresses that nobody has."""
    is_split = config.workers == "split"
    workers = hp.WorkersPlan(dense=("127.0.0.1:7100",) if is_split else (), wire=config.wire)
    servers = [f"127.0.0.1:{7000 + i}" for i in range(config.servers)]
    plan = hp.default_plan(
        model, servers=servers or None, staleness=config.staleness, workers=workers
    )
    device = "emulated:0" if config.is_emulated else "cpu"
    stages = (replace(s, device=device if s.name == "dense" else "cpu") for s in plan.stages)
    return replace(plan, batch_size=config.batch_size, stages=tuple(stages))
