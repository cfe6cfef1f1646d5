"""What others do for a stage beside its own time, in times that are computed by hand."""

import pytest

from hetero_pipe.pipeline import merge
from hetero_pipe.simulate import Conditions, Straggler, simulate
from tests.simulate.plans import cluster, cost, dense_plan, plan, prediction
from tests.traces import Trace

NOTHING = {"read": 0.0, "route": 0.0}
COSTS = NOTHING | {"pull": 1.0, "dense": cost((4.0, "device")), "push": 1.0}


def run(mode="bounded", *, costs=COSTS, aside=(), cores=1000, servers=0, num_steps=40, **shape):
    return simulate(
        plan(mode, staleness=0 if mode == "bounded" else 9, servers=servers, **shape),
        cluster=cluster(cores=cores, server_cores=1, servers=servers or 1),
        num_steps=num_steps,
        prediction=prediction(aside=aside, **costs),
    )


def mean_step(found):
    """Seconds of a step, with those at the start and the end."""
    return found.seconds / found.num_steps


def starts(found, process, stage):
    """Seconds at which a stage began its steps."""
    return [s.start / 1e9 for s in Trace(merge(found.spans)).slices(process, stage)]


# ------------------------------------------------------------------ cores


def test_what_is_aside_takes_cores_from_others():
    """A step has 3 s of stages on the only core, and 2 s of others: more than the device."""
    costs = COSTS | {"pull": 2.0}
    aside = {"push": cost((2.0, "worker"))}
    assert run("async", costs=costs, cores=1).step_seconds == pytest.approx(4.0)
    found = run("async", costs=costs, cores=1, aside=aside)
    assert mean_step(found) == pytest.approx(5.0, rel=0.05)
    assert run("async", costs=costs, cores=3, aside=aside).step_seconds == pytest.approx(4.0)


def test_a_stage_does_not_wait_for_what_is_aside_of_it():
    aside = {"pull": cost((0.5, "worker")), "dense": cost((3.0, "worker"))}
    found = run(aside=aside)
    assert found.step_seconds == pytest.approx(1.0 + 4.0 + 1.0)
    dense = found.readers[0].timeline.stage("dense")
    assert (dense.busy, dense.cpu) == pytest.approx((40 * 4.0, 0.0))


def test_it_begins_with_the_stage():
    """Of one core a stage of 2 s and 1 s aside have a half each, until the latter is over."""
    costs = COSTS | {"dense": 2.0}
    found = run(costs=costs, cores=1, aside={"dense": cost((1.0, "worker"))})
    assert found.step_seconds == pytest.approx(1.0 + 3.0 + 1.0)
    # A push of 1 s has what is left of 4 s beside it: 2 s, of which half is the push's.
    found = run(costs=costs, cores=1, aside={"dense": cost((4.0, "worker"))}, num_steps=1)
    assert found.seconds == pytest.approx(1.0 + 4.0 + 2.0)


def test_a_pull_that_waits_at_the_gate_has_nothing_aside_yet():
    """The dense stage has the core for itself."""
    costs = COSTS | {"dense": 2.0}
    found = run(costs=costs, cores=1, aside={"pull": cost((1.0, "worker"))})
    assert found.step_seconds == pytest.approx(2.0 + 2.0 + 1.0)


def test_a_stage_waits_for_what_is_aside_of_the_step_before():
    assert run("async", aside={"dense": cost((7.0, "worker"))}).step_seconds == pytest.approx(7.0)


def test_servers_do_their_part_aside_too():
    """Their core has 1 s of a pull and 2 s aside of each push."""
    costs = NOTHING | {"pull": cost((1.0, "server")), "dense": 0.0, "push": 0.5}
    aside = {"push": cost((2.0, "server"))}
    assert run("async", costs=costs, servers=3).step_seconds == pytest.approx(1.0)
    found = run("async", costs=costs, aside=aside, servers=3)
    assert mean_step(found) == pytest.approx(3.0, rel=0.05)


# ------------------------------------------------------------------ on a batch's way


def test_rows_are_copied_to_the_device_while_nobody_waits_but_the_batch():
    """A tick is a second ::

    pull   0 1 2 ...
    copy     0 0 1 1
    dense        0 0 0 0 1
    """
    aside = {"pull": cost((2.0, "network", "upload"))}
    found = run("async", aside=aside)
    assert starts(found, "trainer", "pull")[:3] == pytest.approx([0.0, 1.0, 2.0])
    assert found.step_seconds == pytest.approx(4.0)
    assert run(aside=aside).step_seconds == pytest.approx(1.0 + 2.0 + 4.0 + 1.0)


SPARSE = NOTHING | {"pull": 1.0, "send": 1.0, "dense": cost((4.0, "device"))}
SPARSE |= {"recv": 1.0, "push": 1.0}
MOVED = {
    "dense": cost(
        (2.0, "worker", "message"), (0.5, "network", "upload"), (0.25, "network", "download")
    )
}


def dense_run(mode="bounded", *, sparse=1, aside=MOVED, conditions=None, staleness=0):
    return simulate(
        dense_plan(mode, sparse=sparse, staleness=staleness, capacity=10),
        cluster=cluster(server_cores=1),
        num_steps=40,
        prediction=prediction(num_workers=sparse, role="sparse", aside=aside, **SPARSE),
        conditions=conditions,
    )


def test_a_dense_worker_unpacks_a_batch_before_it_takes_it_and_packs_what_it_gave():
    found = dense_run()
    assert starts(found, "dense", "dense")[0] == pytest.approx(1 + 1 + (1 + 0.5))
    assert found.step_seconds == pytest.approx(1 + 1 + (1 + 0.5) + 4 + (0.25 + 1) + 1 + 1)


def test_a_dense_worker_unpacks_while_it_computes():
    assert dense_run(staleness=9).step_seconds == pytest.approx(4.0)


def test_what_a_dense_worker_unpacks_and_packs_shares_its_cores():
    """A batch has 6 s on the only core, where the device takes 4 s for it."""
    aside = {"dense": cost((6.0, "worker", "message"))}
    assert mean_step(dense_run(aside=aside, staleness=9)) == pytest.approx(6.0, rel=0.05)


def test_in_sync_a_work_is_taken_when_its_last_batch_is_unpacked():
    """Two batches share the core for 1 s each; their work is of 8 s."""
    found = dense_run("sync", sparse=2)
    assert starts(found, "dense", "dense")[0] == pytest.approx(1 + 1 + (2 + 0.5))
    assert found.step_seconds == pytest.approx(1 + 1 + (2 + 0.5) + 8 + (0.25 + 2) + 1 + 1)


def test_what_is_aside_of_a_dense_stage_is_so_much_of_each_batch():
    """7 s aside of each batch, on the only core."""
    aside = {"dense": cost((7.0, "worker", "step"))}
    alone, both = (dense_run("async", sparse=n, aside=aside, staleness=9) for n in (1, 2))
    assert alone.step_seconds == pytest.approx(7.0, rel=0.02)
    assert both.step_seconds == pytest.approx(14.0, rel=0.02)
    # In sync, the two are one work of 8 s on the device.
    found = dense_run("sync", sparse=2, aside=aside)
    assert found.step_seconds == pytest.approx(14.0, rel=0.02)


def test_a_slow_dense_worker_unpacks_slowly():
    slow = Conditions(stragglers=(Straggler(0, 2.0, role="dense"),))
    found = dense_run(conditions=slow)
    expected = 1 + 1 + (2 * 1 + 0.5) + 2 * 4 + (0.25 + 2 * 1) + 1 + 1
    assert found.step_seconds == pytest.approx(expected)
