"""Steps whose stages share cores, against a step that is tried second by second."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.cluster import Cluster, Device, Host, Rate, Spread
from hetero_pipe.cost import Constants, CostModel
from hetero_pipe.cost.sharing import Sharing, shared_step_time
from tests.cost.problems import plan, workers, workload

SECONDS = st.floats(0.01, 10.0)


def held(*stages):
    """Returns what each stage of one host with so many cores makes of a step, as (rest, own)."""

    def least(i, cores):
        others = {"a": sum(own for j, (_, own) in enumerate(stages) if j != i)}
        sharing = Sharing(stages[i][0], {"a": stages[i][1]})
        return lambda step: sharing.seconds(step, others, {"a": cores})

    return lambda cores: [least(i, cores) for i in range(len(stages))]


def test_a_stage_alone_takes_what_it_takes():
    assert shared_step_time(5.0, held((2.0, 3.0))(2)) == 5.0


def test_on_one_core_stages_take_turns():
    # Each is 1 / (1 - share of the others) as long: 3 and 2 make a step of 5.
    assert shared_step_time(3.0, held((0.0, 3.0), (0.0, 2.0))(1)) == pytest.approx(5.0)


def test_on_two_cores_by_hand():
    # 3 / (1 - (2 / (2 T)) ** 2) = T has the root T = (3 + sqrt(13)) / 2.
    found = shared_step_time(3.0, held((0.0, 3.0), (0.0, 2.0))(2))
    assert found == pytest.approx((3 + 13**0.5) / 2)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=5), st.integers(1, 4))
def test_it_is_the_least_step_that_is_long_enough(stages, cores):
    at_least = held(*stages)(cores)
    bound = max(rest + own for rest, own in stages)
    found = shared_step_time(bound, at_least)
    assert all(least(found) <= found * (1 + 1e-9) for least in at_least)
    shorter = found * (1 - 1e-6)
    assert found == bound or any(least(shorter) > shorter for least in at_least)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=5), st.integers(1, 4), SECONDS)
def test_more_cores_or_less_work_are_never_slower(stages, cores, less):
    def step(stages, cores):
        return shared_step_time(max(a + b for a, b in stages), held(*stages)(cores))

    assert step(stages, cores + 1) <= step(stages, cores) * (1 + 1e-9)
    (rest, own), *others = stages
    lighter = [(rest, own / (1 + less)), *others]
    assert step(lighter, cores) <= step(stages, cores) * (1 + 1e-9)


def test_what_takes_longer_beside_others_is_longer_by_its_factor():
    cluster = Cluster((Host("a", (Device("cpu", memory=10**12, cores=8),)),))
    chosen = plan(workers(host="a"))
    model = CostModel(cluster, workload(), Constants())
    alone = model.predict(chosen).stage("route").cost.total
    rate = Rate("beside", "a", Spread.of([3.0]), device="cpu", kind="route")
    beside = CostModel(cluster.with_rates([rate]), workload(), Constants()).predict(chosen)
    assert beside.stage("route").cost.total == pytest.approx(3 * alone)
    assert beside.stage("pull").cost == model.predict(chosen).stage("pull").cost
