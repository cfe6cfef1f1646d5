"""Where the time of a stage goes, on clocks that are set by hand."""

import pytest

from hetero_pipe.pipeline import Executor, StageTime, StalenessGate, Timeline
from hetero_pipe.pipeline.timeline import StageClock


class Clock:
    """Stands until it is set."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Pass:
    name = "pass"

    def run(self, step, item):
        return item

    def close(self):
        pass


def test_each_second_of_a_stage_goes_to_what_it_did():
    clock, cpu = Clock(), Clock()
    stage = StageClock("pull", clock=clock, cpu_clock=cpu)
    stage.start()
    for waited, ran, on_core, held in [(1, 10, 4, 100), (2, 20, 8, 200)]:
        clock.now += waited
        stage.has_input(0)
        clock.now += ran
        cpu.now += on_core
        stage.has_run(0)
        clock.now += held
        cpu.now += 0.5  # the hand-off's, which is no work
        stage.has_output(0)
    assert stage.time(waiting_at_gate=6.0) == StageTime(
        "pull",
        num_steps=2,
        busy=24.0,
        cpu=12.0,
        waiting_for_input=3.0,
        waiting_for_output=300.0,
        waiting_at_gate=6.0,
    )


def test_a_stage_that_never_ran_took_no_time():
    assert StageClock("push").time() == StageTime("push")


def test_gate_counts_the_seconds_and_the_pushes_that_pulls_missed():
    clock = Clock()
    gate = StalenessGate(2, clock=clock)
    gate.wait_to_pull(0)
    gate.wait_to_pull(1)
    gate.wait_to_pull(2)
    gate.acknowledge(0)
    gate.wait_to_pull(3)
    assert gate.num_missed == 0 + 1 + 2 + 2
    assert gate.seconds_waited == 0

    ticks = iter([5.0, 7.5])
    gate = StalenessGate(0, clock=lambda: next(ticks))
    gate.wait_to_pull(0)
    assert gate.seconds_waited == 2.5


def test_executor_tells_the_steps_of_source_and_stages():
    with Executor(iter(range(5)), [Pass(), Pass()], capacities=[1, 1, 1]) as executor:
        assert len(list(executor.results())) == 5
    timeline = executor.timeline()
    assert [(stage.name, stage.num_steps) for stage in timeline.stages] == [
        ("read", 5),
        ("pass", 5),
        ("pass", 5),
    ]
    for stage in timeline.stages:
        assert min(stage.busy, stage.waiting_for_input, stage.waiting_for_output) >= 0


def test_executor_takes_the_gate_off_the_work():
    with Executor(iter(range(5)), [Pass()], capacities=[1, 1]) as executor:
        list(executor.results())
    stage = executor.timeline(waiting_at_gate={"pass": 1e6}).stage("pass")
    assert (stage.busy, stage.waiting_at_gate) == (0, 1e6)


def test_bottleneck_is_the_stage_that_was_busy_longest():
    timeline = Timeline((StageTime("pull", 1, busy=2.0), StageTime("dense", 1, busy=3.0)))
    assert timeline.bottleneck == "dense"
    assert Timeline().bottleneck is None


def test_runs_add_up_stage_by_stage():
    one = Timeline((StageTime("pull", 1, 1, 2, 3, 4, 5), StageTime("push", 1, 6)))
    other = Timeline((StageTime("pull", 2, 10, 20, 30, 40, 50), StageTime("push", 2, 60)))
    assert one.plus(other) == Timeline(
        (StageTime("pull", 3, 11, 22, 33, 44, 55), StageTime("push", 3, 66))
    )
    assert one.plus(Timeline()) == Timeline().plus(one) == one
    with pytest.raises(KeyError):
        one.stage("dense")


def test_printed_timeline_is_a_table_of_milliseconds_a_step():
    timeline = Timeline((StageTime("pull", 4, 0.008, 0.004, 0.002, 0.4, 0.012), StageTime("push")))
    assert str(timeline).splitlines() == [
        "stage       steps    busy     cpu   input  output    gate",
        "pull            4   2.000   1.000   0.500 100.000   3.000",
        "push            0   0.000   0.000   0.000   0.000   0.000",
    ]
