"""Averager: replicas that train apart stay together, and nobody waits while it trains."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import paddle
import pytest
from paddle import nn

from hetero_pipe.errors import WorkerLost
from hetero_pipe.nn import Averager, Group, average_statistics
from hetero_pipe.pipeline import Closed
from tests.oracles.thread_group import ThreadGroup

LATER = 30.0


def replica(value):
    model = nn.Linear(2, 1)
    fill(model, value)
    return model


def fill(model, value):
    for parameter in model.parameters():
        parameter.set_value(paddle.full_like(parameter, value))


def values(model):
    return {float(v) for p in model.parameters() for v in p.numpy().ravel()}


def add(model, value):
    for parameter in model.parameters():
        parameter.set_value(parameter + value)


def test_what_was_learned_since_the_snapshot_is_kept():
    """The drawing of the module, in numbers."""
    one, other = replica(0.0), replica(8.0)
    groups = ThreadGroup.members(2)
    with Averager(groups[0], one, every=2) as averager:
        averager.after_step()  # too early for a snapshot
        add(one, 2.0)
        averager.after_step()  # the snapshot: 2
        add(one, 1.0)
        averager.after_step()  # nobody else is there, and this does not wait
        assert values(one) == {3.0}
        groups[1].gather(False)
        groups[1].sum([p.numpy() for p in other.parameters()])
        done = averager._changed
        with done:
            assert done.wait_for(lambda: averager._average is not None, LATER)
        assert values(one) == {3.0}  # changed between two steps alone
        averager.after_step()
        assert values(one) == {3.0 + (2 + 8) / 2 - 2}


def test_replicas_are_equal_in_the_end_however_many_steps_each_took():
    """Ended ones take part until the last has ended."""
    rng = np.random.default_rng(0)
    steps = [3, 50, 17]
    models = [replica(float(i)) for i in range(3)]
    groups = ThreadGroup.members(3)
    learned = [rng.normal(size=n).astype(np.float32) for n in steps]

    def train(rank):
        with Averager(groups[rank], models[rank], every=2) as averager:
            for change in learned[rank]:
                add(models[rank], float(change))
                averager.after_step()
            averager.finish()
            return averager.num_rounds

    with ThreadPoolExecutor(3) as pool:
        rounds = list(pool.map(train, range(3)))
    assert rounds[0] == rounds[1] == rounds[2]
    arrays = [[p.numpy() for p in model.parameters()] for model in models]
    for each in arrays[1:]:
        for mine, first in zip(each, arrays[0], strict=True):
            np.testing.assert_array_equal(mine, first)
    # What each learned counts for a third of it, whenever it was averaged.
    expected = (0 + 1 + 2 + sum(float(each.sum()) for each in learned)) / 3
    np.testing.assert_allclose(arrays[0][0], expected, rtol=1e-4, atol=1e-4)


def test_closing_ends_a_wait_for_the_others():
    groups = ThreadGroup.members(2)
    with Averager(groups[0], replica(0.0), every=1) as averager, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(averager.finish)
        averager.close()
        with pytest.raises(Closed):
            waits.result(LATER)


def test_the_loss_of_a_worker_comes_to_the_one_that_trains():
    class Lost(ThreadGroup):
        def gather(self, value):
            raised.set()
            raise WorkerLost("worker 1 is lost")

    raised = threading.Event()
    with Averager(Lost.members(2)[0], replica(0.0), every=1) as averager:
        averager.after_step()
        assert raised.wait(LATER)
        with averager._changed:
            assert averager._changed.wait_for(lambda: averager._failure is not None, LATER)
        with pytest.raises(WorkerLost, match="worker 1"):
            averager.after_step()


def test_one_replica_is_left_as_it_is():
    model = replica(1.0)
    with Averager(Group.solo(), model, every=1) as averager:
        averager.after_step()
        averager.finish()
    assert values(model) == {1.0}


def test_running_statistics_become_the_mean_and_weights_stay():
    models = [nn.BatchNorm1D(2) for _ in range(2)]
    for i, model in enumerate(models):
        model._mean.set_value(paddle.full([2], 4.0 * i))
        model.weight.set_value(paddle.full([2], 1.0 + i))
    groups = ThreadGroup.members(2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(average_statistics, groups, models))
    for i, model in enumerate(models):
        np.testing.assert_array_equal(model._mean.numpy(), [2.0, 2.0])
        np.testing.assert_array_equal(model.weight.numpy(), [1.0 + i] * 2)
