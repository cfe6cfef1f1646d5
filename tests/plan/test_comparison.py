"""Predicted beside measured: the table, and the reason that is told."""

from dataclasses import replace

import pytest

from hetero_pipe.plan import (
    Breakdown,
    Measured,
    MeasuredStage,
    Part,
    Prediction,
    StagePrediction,
    compare,
)


def predicted(**busy):
    stages = tuple(
        StagePrediction(name, "whole", Breakdown.of("all", seconds, "worker"), seconds)
        for name, seconds in busy.items()
    )
    return Prediction(0.010, 512.0, stages, (), (Part("dense", 0.010),))


def compared(measured, prediction=None, **options):
    options = {"batch_planned": 512, "batch": 512.0, "num_cores": 2} | options
    return compare(prediction or predicted(pull=0.002, dense=0.010), measured, **options)


def run(pull=0.002, dense=0.010, step=0.010, *, cpu=0.5):
    stages = (
        MeasuredStage("pull", pull, cpu * pull * 0.2),
        MeasuredStage("dense", dense, cpu * dense),
    )
    return Measured(step, stages, num_steps=50)


def test_the_table_has_each_stage_and_the_step():
    found = compared(run(pull=0.0022, step=0.011))
    assert str(found).split("\n") == [
        "               predicted    measured   off by",
        "pull                2 ms      2.2 ms     +10%",
        "dense              10 ms       10 ms      +0%",
        "step               10 ms       11 ms     +10%",
    ]
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("measured", "options", "reason"),
    [
        (run(pull=0.004), {}, "the servers, or the way to them, are slower than their profile"),
        (run(dense=0.005, cpu=0.2), {}, "the device is faster than its profile"),
        (run(dense=0.020, step=0.021, cpu=1.0), {"num_cores": 1}, "of 1 cores were busy"),
        (run(dense=0.020, step=0.04, cpu=1.0), {}, "this host is slower than its profile"),
        (run(pull=0.004), {"batch": 1024.0}, "batches had 1,024 samples, and 512 were planned"),
    ],
)
def test_what_is_far_off_has_a_reason(measured, options, reason):
    found = compared(measured, **options)
    assert reason in found.warnings[0]
    assert str(found).count("WARNING: ") == len(found.warnings)


def test_what_was_assumed_is_the_first_suspect():
    prediction = replace(predicted(pull=0.002, dense=0.010), assumed=("the rate of a matmul",))
    found = compared(run(dense=0.020, step=0.020, cpu=0.2), prediction)
    assert found.warnings[0] == (
        "dense took 20 ms, 10 ms were predicted: the rate of a matmul was assumed, not measured; "
        "run `hetero-pipe profile` and give its file to the planner"
    )


def test_a_stage_that_hardly_counts_is_no_warning():
    prediction = predicted(pull=0.00001, dense=0.010)
    assert compared(run(pull=0.0001), prediction).warnings == ()


def test_a_step_alone_points_to_its_stages():
    assert "which see" in compared(run(step=0.02)).warnings[0]


def test_stages_that_one_of_both_lacks_are_left_out():
    found = compared(run(), predicted(dense=0.010, send=0.1))
    assert [name for name, _, _ in found.rows] == ["dense", "step"]
