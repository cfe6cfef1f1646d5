"""Predicted beside measured: what is off, by how much, and why most likely."""

from dataclasses import replace

import pytest

from hetero_pipe.plan import (
    Breakdown,
    Comparison,
    Measured,
    MeasuredStage,
    Part,
    Prediction,
    StagePrediction,
)

PULL = Breakdown.of("message", 0.002, "worker") + Breakdown.of("pull", 0.004, "server")
DENSE = Breakdown.of("matmul", 0.010, "worker")
PREDICTED = Prediction(
    step_seconds=0.010,
    samples=512.0,
    stages=(
        StagePrediction("pull", "whole", PULL, PULL.total),
        StagePrediction("dense", "whole", DENSE, DENSE.total),
    ),
    memory=(),
    bounds=(Part("dense", 0.010), Part("gate", 0.008)),
)
MEASURED = Measured(
    step_seconds=0.010,
    samples=512.0,
    stages=(MeasuredStage("pull", 0.006, 0.002), MeasuredStage("dense", 0.010, 0.010)),
    num_steps=100,
    num_cores=4,
)


def compared(predicted=PREDICTED, *, batch_size=512, step=0.010, pull=None, dense=None, **changes):
    stages = list(MEASURED.stages)
    stages[0] = MeasuredStage("pull", *pull) if pull else stages[0]
    stages[1] = MeasuredStage("dense", *dense) if dense else stages[1]
    measured = replace(MEASURED, step_seconds=step, stages=tuple(stages), **changes)
    return Comparison(predicted, measured, batch_size)


def test_it_is_a_table_of_the_step_and_each_stage():
    text = str(compared(step=0.0095))
    assert text == (
        "predicted and measured         predicted    measured   off by\n"
        "step                               10 ms      9.5 ms      +5%\n"
        "pull                                6 ms        6 ms      +0%\n"
        "dense                              10 ms       10 ms      +0%"
    )


def test_what_is_near_is_not_warned_of():
    assert compared(step=0.0119, dense=(0.0119, 0.0119)).warnings == ()


def test_a_small_stage_that_is_far_off_is_not_warned_of():
    tiny = StagePrediction("read", "whole", Breakdown.of("read", 1e-6, "worker"), 1e-6)
    predicted = replace(PREDICTED, stages=(tiny, *PREDICTED.stages))
    measured = replace(MEASURED, stages=(MeasuredStage("read", 9e-5, 9e-5), *MEASURED.stages))
    assert Comparison(predicted, measured).warnings == ()


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"step": 0.02, "dense": (0.02, 0.02), "num_cores": 1}, "keep 110% of 1 cores busy"),
        ({"step": 0.02, "pull": (0.018, 0.002)}, "the servers or the wire to them are slower"),
        ({"step": 0.02, "dense": (0.02, 0.009)}, "waited for a core or for Python's lock"),
        ({"step": 0.02, "dense": (0.02, 0.02)}, "something else ran on the machine"),
        ({"step": 0.004, "dense": (0.004, 0.004)}, "something else ran on the machine"),
        ({"step": 0.02, "samples": 1024.0}, "a step had 1,024 samples, planned were 512"),
    ],
)
def test_a_difference_has_its_likely_reason(case, said):
    warnings = compared(**case).warnings
    assert said in warnings[-1], warnings


def test_what_was_assumed_is_named_before_the_machine_is_blamed():
    predicted = replace(PREDICTED, assumed=("the rate of a matmul on here/cpu",))
    step, dense = compared(predicted, step=0.02, dense=(0.02, 0.02)).warnings
    assert step == "step took 20 ms, predicted were 10 ms: most of it is dense"
    assert "the rate of a matmul on here/cpu was assumed, not measured" in dense
