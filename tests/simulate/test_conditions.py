"""Stragglers, slow machines and links, failures and what follows them."""

import numpy as np
import pytest

import hetero_pipe as hp
from hetero_pipe.pipeline import merge
from hetero_pipe.simulate import (
    Conditions,
    Failure,
    Restart,
    Slowdown,
    Straggler,
    simulate,
)
from tests.oracles.max_plus import STAGES
from tests.simulate.plans import cluster, cost, plan, prediction
from tests.traces import Trace

DENSE = dict.fromkeys(STAGES, 0.0) | {"dense": 1.0}


def run(mode="bounded", *, staleness=1, num_steps=30, workers=2, conditions=None, costs=DENSE):
    return simulate(
        plan(mode, staleness=staleness, machines=workers),
        cluster=cluster(machines=workers),
        num_steps=num_steps,
        prediction=prediction(num_workers=workers, **costs),
        conditions=conditions,
    )


def test_a_straggler_is_slow_for_the_steps_that_it_is_said_to_be():
    slow = Conditions(stragglers=(Straggler(0, 3.0, first_step=10, last_step=20),))
    found = run(workers=1, conditions=slow)
    steps = np.diff(found.readers[0].ends)
    assert steps == pytest.approx([1.0] * 9 + [3.0] * 10 + [1.0] * 10)


@pytest.mark.parametrize(("mode", "waits"), [("sync", True), ("bounded", True), ("async", False)])
def test_others_wait_for_a_straggler_but_in_async(mode, waits):
    slow = Conditions(stragglers=(Straggler(1, 3.0),))
    found = run(mode, staleness=0 if mode == "sync" else 1, conditions=slow)
    assert found.readers[0].step_seconds == pytest.approx(3.0 if waits else 1.0)


def test_a_slow_machine_is_slow_from_when_to_when():
    slow = Conditions(slowdowns=(Slowdown("trainer-1", 2.0, start=10.0, end=20.0),))
    found = run("async", conditions=slow)
    # Ten seconds at half the speed are five steps fewer.
    assert [worker.ends[-1] for worker in found.readers] == pytest.approx([30.0, 35.0])


def test_a_slow_link_is_slow_for_those_who_use_it():
    costs = DENSE | {"pull": cost((1.0, "network", "network")), "dense": 0.5}
    slow = Conditions(slowdowns=(Slowdown("trainer-0", 3.0, what="network"),))
    found = simulate(
        plan("async", staleness=1, machines=2, servers=2),
        cluster=cluster(machines=2, servers=2),
        num_steps=30,
        prediction=prediction(num_workers=2, **costs),
        conditions=slow,
    )
    assert [worker.step_seconds for worker in found.readers] == pytest.approx([3.0, 1.0])


def test_a_dead_worker_stops_the_others_at_the_bound():
    """Worker 1 has pushed steps 0 to 9; with k = 2, worker 0 pulls up to step 12 and no more."""
    dead = Conditions(failures=(Failure("whole", at=10.5, rank=1),))
    found = run(staleness=2, conditions=dead)
    done = [worker.num_steps for worker in found.readers]
    assert done == [10 + 1 + 2, 10]
    assert not found.is_whole
    assert "not all steps were done: the fewest of a worker are 10" in str(found)


def test_a_dead_worker_stops_nobody_in_async_and_all_in_sync():
    dead = Conditions(failures=(Failure("whole", at=10.5, rank=1),))
    assert [w.num_steps for w in run("async", conditions=dead).readers] == [30, 10]
    # Its part of step 10 never comes to the servers.
    found = run("sync", staleness=0, conditions=dead)
    assert [w.num_steps for w in found.readers] == [10, 10]


def test_all_wait_for_a_server_that_is_away_for_a_while():
    costs = DENSE | {"pull": cost((0.25, "server")), "push": cost((0.25, "server"))}
    away = Conditions(failures=(Failure("server", at=10.0, back_after=7.0),))
    shape = {
        "cluster": cluster(machines=2, servers=2),
        "num_steps": 30,
        "prediction": prediction(num_workers=2, **costs),
    }
    held = plan(staleness=0, machines=2, servers=2)
    found, undisturbed = (simulate(held, conditions=c, **shape) for c in (away, None))
    # What it had in work is done, so up to that much less.
    assert 6.75 <= found.seconds - undisturbed.seconds <= 7.0
    assert found.is_whole


def test_what_was_done_since_a_checkpoint_is_done_again():
    """A failure at 25.5 s, in step 25: steps 20 to 24 are lost, and 4.5 + 10 s ::

    steps 0-9 | 10-19 | 20-24 x                down  | 20-29 | 30-39
    0         10      20      25.5                  35.5     45.5   55.5
    """
    back = Conditions(
        failures=(Failure("whole", at=25.5, rank=1),),
        restart=Restart(after=10.0, checkpoint_every=10),
    )
    found = run(num_steps=40, conditions=back)
    assert found.is_whole
    assert found.seconds == pytest.approx(55.5)
    assert found.num_repeated == 5
    assert found.lost_seconds == pytest.approx(5.5 + 10.0)
    assert found.readers[0].ends[:21] == pytest.approx([*range(1, 21), 36.5])
    steps = Trace(merge(found.spans)).steps("worker 0 ", "dense")
    assert steps == [*range(25), *range(20, 40)]
    assert "5 steps were done again" in str(found)


def test_checkpoints_take_their_time_and_failures_may_follow_one_another():
    costly = Conditions(restart=Restart(after=0.0, checkpoint_every=10, save=2.0))
    assert run(num_steps=30, conditions=costly).seconds == pytest.approx(30 + 2 * 2.0)
    twice = Conditions(
        failures=(Failure("whole", at=12.0), Failure("server", at=25.0)),
        restart=Restart(after=5.0, checkpoint_every=10),
    )
    costs = DENSE | {"pull": cost((0.0, "server"))}
    found = simulate(
        plan(staleness=1, servers=1),
        cluster=cluster(),
        num_steps=20,
        prediction=prediction(**costs),
        conditions=twice,
    )
    # 10, then 12 + 5, then 25 + 5 and the last ten steps.
    assert found.seconds == pytest.approx(40.0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Straggler(0, 0.0), "factor above 0"),
        (lambda: Straggler(0, 2.0, first_step=3, last_step=2), "no less than its first"),
        (lambda: Slowdown("trainer", 2.0, what="disk"), "what='disk'"),
        (lambda: Slowdown("trainer", 2.0, start=2.0, end=1.0), "start <= end"),
        (lambda: Failure("worker", at=1.0), "role='worker'"),
        (lambda: Restart(after=1.0, checkpoint_every=0), "checkpoint_every=0"),
        (lambda: Conditions(wake_seconds=-1.0), "wake_seconds=-1"),
        (lambda: Conditions(variation={"dense": -1.0}), "stage 'dense'"),
        (lambda: Conditions(interpreter={"dense": 1.5}), "from 0 to 1"),
    ],
)
def test_conditions_that_cannot_be_are_refused(make, said):
    with pytest.raises(hp.ConfigError, match=said):
        make()
