"""A planner in a training script: what it chooses, and what it learns."""

import numpy as np
import pytest

from hetero_pipe.cluster import Cluster, Device, Host
from hetero_pipe.cost import Constants, CostModel, workload_of
from hetero_pipe.data import Bags, Batch
from hetero_pipe.errors import ConfigError, PlanError
from hetero_pipe.plan import Measured, MeasuredStage
from hetero_pipe.planner import auto_plan
from tests.planner.problems import GB, graph_of

GRAPH = graph_of([16, 4], keys=1.0)
SERVER = "127.0.0.1:7000"
READ = MeasuredStage("read", 1e-5, 1e-5)  # of a worker that reads


def cluster_of(memory=16 * GB):
    return Cluster((Host("here", (Device("cpu", memory=memory, cores=4),)),))


def batch_of(size=256):
    rng = np.random.default_rng(0)
    bags = {f"s{i}": Bags(rng.integers(0, 5000, size).astype(np.uint64)) for i in range(2)}
    return Batch(bags=bags, dense=np.zeros((size, 0), np.float32), label=np.zeros(size, np.float32))


def test_it_takes_the_fastest_of_what_one_process_can_do():
    planning = auto_plan(batch_of(), cluster=cluster_of(), servers=[SERVER], max_staleness=1)
    plan = planning.choose(GRAPH)
    assert plan.batch_size == planning.sample.size == 256
    assert {(p.servers, p.staleness) for p in planning.candidates} == {
        (servers, staleness) for servers in (None, (SERVER,)) for staleness in (0, 1)
    }
    times = [p.predicted.step_seconds for p in planning.candidates]
    assert times == sorted(times)
    assert planning.candidates[0] == plan
    assert plan.stage("pull").capacity == 1 + plan.staleness


def test_without_servers_tables_stay_here():
    planning = auto_plan(batch_of(), cluster=cluster_of(), max_staleness=0)
    assert planning.choose(GRAPH).servers is None
    assert len(planning.candidates) == 1


def test_a_host_that_is_too_small_is_told():
    with pytest.raises(PlanError, match=r"no plan fits here: 2\.1 times its memory is needed"):
        auto_plan(batch_of(), cluster=cluster_of(memory=GB // 5)).choose(GRAPH)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"max_staleness": -1}, "at least 0"), ({"servers": SERVER}, r"write \['127.0.0.1:7000'\]")],
)
def test_wrong_arguments_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        auto_plan(batch_of(), cluster=cluster_of(), **wrong)


def measured_by(model, plan):
    """Returns what a machine that is as `model` says would measure."""
    found = model.predict(plan)
    stages = tuple(MeasuredStage(s.name, s.busy, s.cpu) for s in found.stages)
    return Measured(found.step_seconds, found.samples, stages, num_steps=100, num_cores=4)


def test_a_planted_wrong_rate_is_unlearned(tmp_path):
    profile = tmp_path / "cache" / "profile.json"
    planning = auto_plan(batch_of(), cluster=cluster_of(), max_staleness=0, profile=profile)
    plan = planning.choose(GRAPH)
    real = Constants(core_flops=9e9, pull_row=400e-9, read_value=50e-9, route_key=5e-9)
    from hetero_pipe.data import measure_statistics

    tables = {table.name: tuple(table.slots) for table in GRAPH.tables}
    workload = workload_of(GRAPH, measure_statistics([batch_of()], tables))
    machine = CostModel(cluster_of(), workload, real)
    truth = machine.predict(plan).step_seconds
    assert abs(plan.predicted.step_seconds / truth - 1) > 0.1
    planning.learn(plan, measured_by(machine, plan))
    plan = planning.choose(GRAPH)
    assert plan.predicted.step_seconds == pytest.approx(truth, rel=0.01)
    # Another process on this machine knows it from the start.
    again = auto_plan(batch_of(), cluster=cluster_of(), max_staleness=0, profile=profile)
    assert again.choose(GRAPH).predicted == plan.predicted


def test_a_broken_profile_is_told(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="delete it"):
        auto_plan(batch_of(), cluster=cluster_of(), profile=path)


def test_what_is_learned_counts_at_once():
    planning = auto_plan(batch_of(), cluster=cluster_of(), max_staleness=0)
    plan = planning.choose(GRAPH)
    stages = (MeasuredStage("push", 0.5, 0.5), MeasuredStage("unheard of", 1.0, 1.0))
    for runs in (1, 2):
        planning.learn(plan, Measured(1.0, 256.0, (*stages, READ), num_steps=30, num_cores=4))
        (found,) = (each for each in planning.corrections.found if each.place.stage == "push")
        assert (found.core, found.runs) == (8, runs)
    assert planning.choose(GRAPH).predicted.stage("push").cpu > plan.predicted.stage("push").cpu
