"""Simulated runs, against recurrences and against slower simulations."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hetero_pipe as hp
from hetero_pipe.pipeline import merge
from hetero_pipe.plan import ProcessPlan
from hetero_pipe.simulate import Conditions, Straggler, simulate
from hetero_pipe.simulate.events import Events
from hetero_pipe.simulate.intake import Intake
from hetero_pipe.simulate.work import InTurn
from tests.oracles.max_plus import STAGES, ends_of_steps
from tests.oracles.slow_pipeline import Slow
from tests.simulate.plans import CAPACITIES, cluster, cost, dense_plan, plan, prediction
from tests.traces import Trace

SECONDS = {"read": 1.0, "route": 2.0, "pull": 3.0, "dense": 5.0, "push": 2.0}

# Sixteenths of a second, so that what meets does so to the last bit.
seconds = st.integers(0, 64).map(lambda n: n / 16)
stage_times = st.lists(seconds, min_size=5, max_size=5).filter(any)
capacities = st.lists(st.integers(1, 3), min_size=4, max_size=4)


def run(mode="bounded", *, costs=None, staleness=0, num_steps=20, cores=1000, **shape):
    held = shape.pop("capacities", {})
    record = shape.pop("is_recorded", True)
    num_workers = shape.get("machines", 1) * shape.get("per_machine", 1)
    conditions, rng = shape.pop("conditions", None), shape.pop("rng", None)
    return simulate(
        plan(mode, staleness=staleness, capacities=held, **shape),
        cluster=cluster(cores=cores, machines=shape.get("machines", 1)),
        num_steps=num_steps,
        prediction=prediction(num_workers=num_workers, **(costs or SECONDS)),
        conditions=conditions,
        rng=rng,
        is_recorded=record,
    )


def ends(simulation):
    return [worker.ends.tolist() for worker in simulation.readers]


# ------------------------------------------------------------------ what theory says


def test_staleness_0_is_the_serial_sum_of_pull_dense_and_push():
    found = run(staleness=0)
    assert ends(found)[0][0] == sum(SECONDS.values())
    assert found.step_seconds == pytest.approx(3.0 + 5.0 + 2.0)
    assert found.readers[0].max_staleness == 0


def test_a_large_staleness_is_the_longest_stage():
    found = run(staleness=9, capacities={"pull": 10})
    assert found.step_seconds == pytest.approx(5.0)
    assert found.bottleneck == "dense"


def test_staleness_1_is_drawn_in_the_docs():
    """docs/pipeline.md; a tick is a second ::

    pull   0 1   2   3   4
    dense    0 0 1 1 2 2 3 3
    push         0   1   2   3
    """
    costs = {"read": 0.0, "route": 0.0, "pull": 1.0, "dense": 2.0, "push": 1.0}
    spans = run(staleness=1, costs=costs, num_steps=4, capacities={"pull": 2}).spans[0]
    trace = Trace(merge([spans]))
    begins = {
        name: [s.start // 10**9 for s in trace.slices("trainer", name)]
        for name in ("dense", "push")
    }
    # A pull's span has its wait at the gate within it.
    pulls = [s.end // 10**9 - 1 for s in trace.slices("trainer", "pull")]
    assert pulls == [0, 1, 4, 6]
    assert begins == {"dense": [1, 3, 5, 7], "push": [3, 5, 7, 9]}


@settings(max_examples=150, deadline=None)
@given(
    stage_times,
    st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=1, max_size=3),
    capacities,
    st.integers(0, 3),
    st.sampled_from(["sync", "bounded", "async"]),
)
def test_on_cores_of_their_own_workers_follow_the_recurrences(
    times, factors, room, staleness, mode
):
    staleness = 0 if mode == "sync" else staleness
    found = run(
        mode,
        costs=dict(zip(STAGES, times, strict=True)),
        staleness=staleness,
        num_steps=8,
        capacities=dict(zip(STAGES, room, strict=False)),
        per_machine=len(factors),
        conditions=Conditions(stragglers=tuple(Straggler(i, f) for i, f in enumerate(factors))),
        is_recorded=False,
    )
    slow = [[each * factor for each in times] for factor in factors]
    expected, blocked = ends_of_steps(slow, room, num_steps=8, staleness=staleness, mode=mode)
    assert ends(found) == [pytest.approx(each, abs=1e-6) for each in expected]
    for worker, waited in zip(found.readers, blocked, strict=True):
        told = [stage.waiting_for_output for stage in worker.timeline.stages]
        assert told == pytest.approx(waited, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    stage_times,
    st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=1, max_size=3),
    capacities,
    st.sampled_from(["bounded", "async"]),
    st.tuples(st.integers(1, 3), st.integers(0, 2)),
)
def test_on_few_cores_workers_do_what_a_slow_simulation_does(
    times, factors, room, mode, cores_and_staleness
):
    cores, staleness = cores_and_staleness
    found = run(
        mode,
        costs=dict(zip(STAGES, times, strict=True)),
        staleness=staleness,
        num_steps=6,
        cores=cores,
        capacities=dict(zip(STAGES, room, strict=False)),
        per_machine=len(factors),
        conditions=Conditions(stragglers=tuple(Straggler(i, f) for i, f in enumerate(factors))),
        is_recorded=False,
    )
    slow = Slow(
        [[[each * factor] * 6 for each in times] for factor in factors],
        room,
        cores=cores,
        staleness=staleness,
        mode=mode,
    )
    assert ends(found) == [pytest.approx(each, abs=1e-6) for each in slow.run()]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(stage_times.filter(lambda t: t[2] and t[4]), min_size=2, max_size=2),
    st.integers(0, 2),
    st.sampled_from(["bounded", "async"]),
)
def test_without_contention_nothing_faster_is_ever_slower(times, staleness, mode):
    """True of chains on cores of their own: recurrences of max and + do not fall.

    It is not true of shared cores or devices: a stage that is done sooner may then
    take a core from the one that all wait for (Graham's anomalies).
    """
    costs = [dict(zip(STAGES, each, strict=True)) for each in times]
    slower = {name: max(each[name] for each in costs) for name in STAGES}
    quick = run(mode, costs=costs[0], staleness=staleness)
    assert quick.seconds <= run(mode, costs=slower, staleness=staleness).seconds + 1e-6
    more = run(mode, costs=costs[0], staleness=staleness + 1)
    assert more.seconds <= quick.seconds + 1e-6
    roomy = {name: capacity + 1 for name, capacity in CAPACITIES.items()}
    loose = run(mode, costs=costs[0], staleness=staleness, capacities=roomy)
    assert loose.seconds <= quick.seconds + 1e-6


# ------------------------------------------------------------------ what is never lost


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["sync", "bounded", "async"]),
    st.integers(0, 2),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(0, 2**32),
)
def test_every_step_passes_every_stage_once_and_in_order(mode, staleness, machines, cores, seed):
    found = run(
        mode,
        staleness=0 if mode == "sync" else staleness,
        machines=machines,
        per_machine=2,
        cores=cores,
        conditions=Conditions(variation={"read": 2.0, "dense": 0.5}),
        rng=np.random.default_rng(seed),
    )
    trace = Trace(merge(found.spans))
    trace.check()
    for rank, worker in enumerate(found.readers):
        for name in STAGES:
            assert trace.steps(f"worker {rank} ", name) == list(range(20))
        for before, after in pairwise(STAGES):
            done = [s.end for s in trace.slices(f"worker {rank} ", before)]
            begun = [s.start for s in trace.slices(f"worker {rank} ", after)]
            assert all(a <= b for a, b in zip(done, begun, strict=True))
        busy = worker.timeline.stage("dense")
        assert busy.num_steps == 20
        held = sum(stage.busy + stage.waiting + stage.blocked for stage in worker.timeline.stages)
        assert held <= 5 * found.seconds + 1e-6
    # Work on cores is what the stages say they had of them, and never more than there are.
    for machine in range(machines):
        name = f"trainer-{machine}" if machines > 1 else "trainer"
        there = [worker for worker in found.readers if worker.machine == name]
        cpu = sum(stage.cpu for worker in there for stage in worker.timeline.stages)
        share = {each.name: each.busy for each in found.resources}[f"cores of {name}"]
        assert share <= 1 + 1e-9
        assert share * found.seconds * cores == pytest.approx(cpu)


def test_hand_offs_hold_what_they_may():
    """A dense stage of 5 s behind a pull of 3 s, with room for one: it holds the others up."""
    found = run("async", capacities={"pull": 1})
    trace = Trace(merge(found.spans))
    pulled = [s.end for s in trace.slices("trainer", "pull")]
    taken = [s.start for s in trace.slices("trainer", "dense")]
    # When pull i is done, all but two before it are taken: one waits, and it itself.
    assert all(pulled[i] >= taken[i - 2] for i in range(2, 20))
    assert found.readers[0].timeline.stage("pull").blocked > 0


# ------------------------------------------------------------------ what parts hold


def test_cores_are_shared_by_what_runs_at_once():
    """Read to push take 13 s on one core, however they overlap."""
    found = run(staleness=9, cores=1, capacities={"pull": 10}, num_steps=50)
    assert found.seconds == pytest.approx(50 * sum(SECONDS.values()))
    assert found.resources[0].name == "cores of trainer"
    assert found.resources[0].busy == pytest.approx(1.0)
    assert "keep 1 cores busy" in found.summary().advice


def test_a_device_and_a_wait_hold_no_core():
    waits = cost((5.0, "device"), (2.0, "wait"))
    costs = {"read": 0.0, "route": 0.0, "pull": 1.0, "dense": waits, "push": 1.0}
    found = run(staleness=4, cores=1, costs=costs)
    assert found.step_seconds == pytest.approx(7.0)
    assert found.readers[0].timeline.stage("dense").cpu == 0.0


def test_the_interpreter_is_of_one_thread_of_a_process_at_a_time():
    costs = dict.fromkeys(STAGES, 1.0)
    free = run(staleness=9, costs=costs, capacities={"pull": 10}, num_steps=40)
    held = run(
        staleness=9,
        costs=costs,
        capacities={"pull": 10},
        num_steps=40,
        conditions=Conditions(interpreter=dict.fromkeys(STAGES, 1.0)),
    )
    assert free.step_seconds == pytest.approx(1.0)
    assert held.seconds == pytest.approx(40 * 5.0)


def test_a_thread_that_waited_takes_a_while_to_go_on():
    """At staleness 0 three of them wait in turn: dense, push, and pull at the gate."""
    found = run(staleness=0, conditions=Conditions(wake_seconds=0.5))
    assert found.step_seconds == pytest.approx(3.0 + 5.0 + 2.0 + 3 * 0.5)


def served(num_workers, *, servers, seconds=1.0):
    costs = {name: 0.0 for name in STAGES} | {
        "pull": cost((seconds, "server")),
        "push": cost((seconds, "server")),
    }
    return simulate(
        plan("async", staleness=3, per_machine=num_workers, servers=servers),
        cluster=cluster(server_cores=1, servers=servers),
        num_steps=30,
        prediction=prediction(num_workers=num_workers, **costs),
    )


def test_servers_hold_up_workers_who_ask_for_more_than_they_have():
    """A core serves two requests of 1 s a step: one worker 2 s, four workers 8 s."""
    assert served(1, servers=1).step_seconds == pytest.approx(2.0, rel=0.05)
    assert served(4, servers=1).step_seconds == pytest.approx(8.0, rel=0.05)


def test_one_server_stands_for_all_that_do_the_same():
    one, many = served(3, servers=1), served(3, servers=50)
    assert ends(one) == ends(many)


def test_servers_beside_workers_take_cores_from_them():
    costs = {"pull": cost((1.0, "server")), "push": cost((1.0, "server"))}
    costs = {"read": 0.0, "route": 0.0, "pull": costs["pull"], "dense": 2.0, "push": costs["push"]}
    found = simulate(
        replace(
            plan("async", staleness=3),
            processes=(
                ProcessPlan("server", "trainer", "cpu"),
                ProcessPlan("whole", "trainer", "cpu"),
            ),
        ),
        cluster=cluster(cores=1),
        num_steps=40,
        prediction=prediction(**costs),
    )
    assert found.seconds == pytest.approx(40 * 4.0)


def transferred(num_workers, *, gbit=10, **shape):
    bytes_in = cost((1.0, "network", "network"))
    costs = {name: 0.0 for name in STAGES} | {"pull": bytes_in}
    return simulate(
        plan("async", staleness=3, servers=shape.get("servers", 1), **_only(shape)),
        cluster=cluster(gbit=gbit, **shape),
        num_steps=30,
        prediction=prediction(num_workers=num_workers, **costs),
    ).step_seconds


def _only(shape):
    return {"machines": shape.get("machines", 1)}


def test_links_are_shared_at_both_ends():
    """A pull is 1 s of the worker's link, and of the link of the only server."""
    assert transferred(1) == pytest.approx(1.0)
    assert transferred(3, machines=3) == pytest.approx(3.0, rel=0.05)
    # Three servers send a third of each.
    assert transferred(3, machines=3, servers=3) == pytest.approx(1.0, rel=0.05)


# ------------------------------------------------------------------ workers that wait for workers


def test_modes_are_drawn_in_the_docs():
    """docs/pipeline.md: worker 0 takes one tick for a step, worker 1 three ::

    sync     worker 0  0   .   .   1   .   .   2
    bounded  worker 0  0   1   .   2   .   .   3        k = 1
    async    worker 0  0   1   2   3   4   5   6
             worker 1  0   0   0   1   1   1   2
    """
    costs = dict.fromkeys(STAGES, 0.0) | {"dense": 1.0}
    slow = Conditions(stragglers=(Straggler(1, 3.0),))
    begun = {}
    for mode, staleness in (("sync", 0), ("bounded", 1), ("async", 0)):
        found = run(
            mode, costs=costs, staleness=staleness, per_machine=2, num_steps=5, conditions=slow
        )
        trace = Trace(merge(found.spans))
        for worker in (0, 1):
            slices = trace.slices(f"worker {worker} ", "dense")
            begun[mode, worker] = [s.start // 10**9 for s in slices]
    assert begun["sync", 0] == begun["sync", 1] == [0, 3, 6, 9, 12]
    assert begun["bounded", 0] == [0, 1, 3, 6, 9]
    assert begun["async", 0] == [0, 1, 2, 3, 4]
    assert begun["bounded", 1] == begun["async", 1] == [0, 3, 6, 9, 12]


def test_servers_tell_how_long_pulls_wait_for_workers():
    costs = dict.fromkeys(STAGES, 0.0) | {"pull": cost((0.125, "server")), "dense": 1.0}
    found = simulate(
        plan("bounded", staleness=1, per_machine=2, servers=1),
        cluster=cluster(),
        num_steps=30,
        prediction=prediction(num_workers=2, **costs),
        conditions=Conditions(stragglers=(Straggler(1, 3.0),)),
    )
    (server,) = found.summary().servers
    assert server.waiting > 0.4
    assert "servers wait" in found.summary().advice
    assert found.readers[0].step_seconds == pytest.approx(3.0)


# ------------------------------------------------------------------ sparse and dense workers


def dense_run(mode="bounded", *, sparse=1, dense=1, capacity=3, staleness=2, **costs):
    costs = {"read": 0.0, "route": 0.0, "pull": 1.0, "send": 1.0, "dense": 4.0} | costs
    costs |= {"recv": 1.0, "push": 1.0}
    return simulate(
        dense_plan(mode, sparse=sparse, dense=dense, capacity=capacity, staleness=staleness),
        cluster=cluster(),
        num_steps=20,
        prediction=prediction(num_workers=sparse, role="sparse", **costs),
    )


def test_at_staleness_0_a_batch_passes_sparse_and_dense_workers_in_turn():
    found = dense_run(staleness=0)
    assert found.step_seconds == pytest.approx(1 + 1 + 4 + 1 + 1)
    assert found.readers[0].timeline.stage("recv").busy == pytest.approx(20 * (4 + 1))


def test_a_dense_worker_takes_the_batches_of_all_sparse_ones():
    found = dense_run(sparse=3)
    assert found.step_seconds == pytest.approx(3 * 4.0, rel=0.05)
    assert found.workers[-1].timeline.stage("dense").num_steps == 60
    assert dense_run(sparse=3, dense=3).step_seconds == pytest.approx(4.0, rel=0.05)


def test_few_readers_reach_few_dense_workers_at_a_time():
    """Steps t and t + 1 of 2 readers are with 3 of 4 dense workers."""
    times = dict.fromkeys(("read", "route", "pull", "send", "recv", "push"), 1.0)
    found = simulate(
        dense_plan("bounded", sparse=2, dense=4, capacity=3, staleness=1),
        cluster=cluster(),
        num_steps=20,
        prediction=prediction(num_workers=2, role="sparse", dense=100.0, **times),
    )
    assert found.step_seconds == pytest.approx(2 * 100 / 3, rel=0.1)


def test_batches_go_to_dense_workers_in_turn():
    """Batch i of sparse worker s is of dense worker (s + i) % 2."""
    found = dense_run(sparse=3, dense=2)
    trace = Trace(merge(found.spans))
    for dense in (0, 1):
        for sparse in range(3):
            steps = trace.steps(
                f"dense worker {dense} ", "dense", f"batch of sparse worker {sparse}"
            )
            assert steps == [i for i in range(20) if (sparse + i) % 2 == dense]
    arrows = trace.crossings()
    assert len(arrows) == 60
    assert arrows["sparse worker 1.0"] == [
        ("sparse worker 1", "send"),
        ("dense worker 1", "dense"),
        ("sparse worker 1", "recv"),
    ]


def test_sparse_workers_wait_for_credit_of_one_that_is_slow():
    found = dense_run("async", capacity=2, sparse=3, pull=0.0, send=0.0)
    sends = [worker.timeline.stage("send") for worker in found.readers]
    assert all(send.waiting_for_credit > 0 for send in sends)
    assert "add dense workers" in found.summary().advice
    assert found.step_seconds == pytest.approx(3 * 4.0, rel=0.05)


def test_credits_are_drawn_in_the_docs():
    """docs/pipeline.md ::

    capacity 2     sparse   send 0   send 1   waits    send 2   waits    send 3
                   dense                      take 0            take 1
                   credits  1        0        1        0        1        0
    """
    events = Events()
    intake = Intake(events, [0], capacity=2, way=InTurn([]))
    told = []

    def send(step):
        def go():
            told.append(f"send {step}")
            intake.deliver(0, step)

        if intake.credit(0, go):
            go()
        else:
            told.append("waits")

    class Taker:
        item = None

    intake.receiver = Taker

    def take():
        assert intake.take(Taker)
        told.append(f"take {Taker.item[0][1]}")
        events.run()

    for step in (0, 1, 2):
        send(step)
    take()
    send(3)
    take()
    assert told == ["send 0", "send 1", "waits", "take 0", "send 2", "waits", "take 1", "send 3"]


def test_in_sync_a_dense_worker_takes_one_step_of_all_at_once():
    found = dense_run("sync", staleness=0, sparse=2)
    assert found.workers[-1].timeline.stage("dense").num_steps == 20
    # Two batches are computed as one step, 4 s each.
    assert found.step_seconds == pytest.approx(1 + 1 + 8 + 1 + 1)


# ------------------------------------------------------------------ of one's own making


def test_a_seed_is_a_run():
    varied = Conditions(variation={"dense": 0.3})
    first, again, other = (
        run(conditions=varied, rng=np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert ends(first) == ends(again) != ends(other)


def test_times_that_vary_have_the_predicted_mean():
    found = run(
        conditions=Conditions(variation={"dense": 0.5}),
        rng=np.random.default_rng(0),
        num_steps=4000,
        is_recorded=False,
    )
    assert found.readers[0].timeline.stage("dense").busy / 4000 == pytest.approx(5.0, rel=0.03)


def test_what_cannot_be_simulated_is_refused():
    good = {"cluster": cluster(), "num_steps": 3, "prediction": prediction(**SECONDS)}
    with pytest.raises(hp.PlanError, match=r"CostModel\.predict"):
        simulate(plan(), **(good | {"prediction": None}))
    with pytest.raises(hp.ConfigError, match="num_steps=0"):
        simulate(plan(), **(good | {"num_steps": 0}))
    with pytest.raises(hp.ConfigError, match="rng=None"):
        simulate(plan(), conditions=Conditions(variation={"dense": 1.0}), **good)
    with pytest.raises(hp.ConfigError, match="got 'dens'"):
        simulate(plan(), conditions=Conditions(interpreter={"dens": 1.0}), **good)
    with pytest.raises(hp.ConfigError, match=r"1 whole.*rank=1"):
        simulate(plan(), conditions=Conditions(stragglers=(Straggler(1, 2.0),)), **good)
    with pytest.raises(hp.PlanError, match="has 1 machines"):
        simulate(plan(machines=2), **good)
