"""Simulated plans of real predictions: no step is below what bounds it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_pipe.cluster import load_cluster
from hetero_pipe.cost import CostModel
from hetero_pipe.pipeline import merge
from hetero_pipe.simulate import simulate
from tests.cost.problems import plan, servers, workers, workload
from tests.traces import Trace

CLUSTER = load_cluster(Path(__file__).parents[2] / "examples" / "ctr" / "cluster.toml")


def run(planned, *, num_steps=40, is_recorded=False):
    prediction = CostModel(CLUSTER, workload()).predict(planned)
    found = simulate(
        planned,
        cluster=CLUSTER,
        num_steps=num_steps,
        prediction=prediction,
        is_recorded=is_recorded,
    )
    assert found.is_whole
    return found


def bounds_of(prediction):
    """Returns those below which no simulated run is.

    What shared cores add is in the mean of who is where when, and here all are in step. An
    interpreter is one of the conditions of a run, and here there is none.
    """
    return [
        bound
        for bound in prediction.bounds
        if not bound.label.endswith(", cores shared") and not bound.label.startswith("interpreter")
    ]


@st.composite
def plans(draw):
    """Whole workers on CPUs or GPUs, or sparse and dense ones, and servers on other hosts."""
    mode = draw(st.sampled_from(["sync", "bounded", "async"]))
    kind = draw(st.sampled_from(["gpu", "cpu", "sparse"]))
    machines, each = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    if kind == "sparse":
        processes = [
            workers("sparse", "server", machines=machines, per_machine=each),
            workers("dense", device="gpu", per_machine=min(each, 2)),
        ]
    else:
        processes = [workers(device=kind, machines=machines, per_machine=each)]
    return plan(
        servers(machines=draw(st.integers(1, 3))),
        *processes,
        mode=mode,
        staleness=0 if mode == "sync" else draw(st.integers(0, 2)),
        batch=draw(st.sampled_from([200, 5000, 50000])),
    )


@settings(max_examples=40, deadline=None)
@given(plans())
def test_no_step_is_below_what_bounds_it(planned):
    found = run(planned, num_steps=100)  # where workers change places once, 40 are 3% off
    # docs/simulate.md: bytes between machines of one group are left out.
    workers_at, servers_at = (
        {each.host for each in planned.processes if (each.role == "server") == are_servers}
        for are_servers in (False, True)
    )
    left_out = {f"network of {host}" for host in workers_at & servers_at}
    for bound in bounds_of(found.prediction):
        if bound.label not in left_out:
            assert found.step_seconds >= 0.97 * bound.amount, bound


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_worker_by_itself_takes_what_is_predicted(device, staleness):
    planned = plan(servers(), workers(device=device), staleness=staleness, capacity=3)
    found = run(planned, num_steps=400)
    assert found.step_seconds == pytest.approx(bounds_of(found.prediction)[0].amount, rel=0.01)


@pytest.mark.parametrize("home", ["device", "sharded"])
def test_tables_on_devices_need_no_server(home):
    homes = {"users": home, "items": home}
    planned = plan(workers(device="gpu", per_machine=8), homes=homes, mode="gpu_only", staleness=1)
    found = run(planned, is_recorded=True)
    assert [spans.role for spans in found.spans] == [f"worker {rank}" for rank in range(8)]
    Trace(merge(found.spans)).check()
    assert found.step_seconds >= 0.97 * bounds_of(found.prediction)[0].amount


@pytest.mark.parametrize("mode", ["sync", "bounded"])
def test_in_step_the_last_of_a_dense_workers_batches_waits_for_all(mode):
    readers = workers("sparse", "server", machines=4, per_machine=2)
    dense = workers("dense", device="gpu", per_machine=2)
    # A dense part that is far longer than all else, but for the messages.
    planned = plan(servers(machines=1), readers, dense, mode=mode, staleness=0, batch=20000)
    found = run(planned, num_steps=100)
    stage = found.prediction.stage("dense")
    assert found.prediction.bottleneck.startswith("gate")
    rest = found.prediction.bounds[0].amount - 4 * stage.cost.total
    assert rest > 0
    assert found.step_seconds == pytest.approx(found.prediction.step_seconds, rel=0.1)
