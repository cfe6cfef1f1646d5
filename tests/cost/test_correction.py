"""Corrections: means in proportion, within bounds, to and from JSON."""

import pytest

from hetero_pipe.cost import Corrections
from hetero_pipe.cost.correction import StageKey
from hetero_pipe.errors import ConfigError
from hetero_pipe.plan import Breakdown, Measured, MeasuredStage, ProcessPlan
from tests.plan.test_plan import PREDICTED, plan_of

KEY = StageKey("pull", "whole", "trainer", "gpu")


def learned(corrections, busy):
    from dataclasses import replace

    plan = replace(
        plan_of(()),
        processes=(ProcessPlan("whole", "trainer", "gpu"),),
        predicted=PREDICTED,  # the pull is busy for 4 ms
    )
    stages = (MeasuredStage("pull", busy, busy),)
    return corrections.learned(plan, Measured(1.0, 512.0, stages, num_steps=1, num_cores=2))


def test_the_first_measurement_is_taken_whole():
    assert learned(Corrections(), 0.012).factors == {KEY: pytest.approx(3.0)}


def test_a_later_one_counts_half_in_proportion():
    # The prediction had the factor 4 in it, and 4 ms came true: 4 stays.
    assert learned(Corrections({KEY: 4.0}), 0.004).factors[KEY] == pytest.approx(4.0)
    # A quarter of that was measured: from 4 to 1, the middle of which is 2.
    assert learned(Corrections({KEY: 4.0}), 0.001).factors[KEY] == pytest.approx(2.0)


def test_factors_stay_within_bounds():
    assert learned(Corrections(), 10.0).factors[KEY] == 20.0
    assert learned(Corrections(), 1e-9).factors[KEY] == 1 / 20


def test_nothing_is_learned_of_nothing():
    assert learned(Corrections(), 0.0).factors == {}


def test_each_part_is_corrected():
    cost = Breakdown.of("a", 1.0, "worker") + Breakdown.of("b", 2.0, "server")
    found = Corrections({KEY: 3.0}).corrected(cost, KEY)
    assert [(part.label, part.amount) for part in found.parts] == [("a", 3.0), ("b", 6.0)]
    other = StageKey("push", "whole", "trainer", "gpu")
    assert Corrections({KEY: 3.0}).corrected(cost, other) == cost


def test_json_gives_them_back():
    found = Corrections({KEY: 1.7, StageKey("push", "whole", "trainer", "gpu"): 0.2})
    assert Corrections.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"corrections": [{"stage": "pull"}]}',
        '{"corrections": [{"stage": "a", "role": "b", "host": "c", "device": "d", "factor": 99}]}',
        '{"corrections": [{"stage": "a", "role": "b", "host": 3, "device": "d", "factor": 1}]}',
        '{"corrections": [{"stage": "a", "role": "b", "host": "c", "device": "d", "factor": "x"}]}',
    ],
)
def test_text_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="corrections are JSON"):
        Corrections.from_json(text)
