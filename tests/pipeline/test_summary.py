"""What bounds a run and what to do about it, of timelines that are set by hand."""

from dataclasses import replace

import pytest

from hetero_pipe.pipeline import ServerTime, StageTime, Summary, Timeline
from ps_server.spans import SpanRing

STEPS = 100


def run(
    *, seconds=1.0, steps=STEPS, staleness=1, mode="bounded", num_workers=1, num_servers=1, **stages
):
    """Returns the summary of a run; a stage that is not given as `busy` is so for 0.1 s."""
    times = []
    middle = ("send", "recv") if "send" in stages else ("dense",)
    for name in ("read", "route", "pull", *middle, "push"):
        seconds_busy, fields = stages.get(name, (0.1, {}))
        times.append(StageTime(name, steps, **{"busy": seconds_busy, "cpu": 0.01, **fields}))
    return Summary(
        timeline=Timeline(tuple(times)),
        num_samples=steps * 10,
        seconds=seconds,
        staleness=staleness,
        mode=mode,
        num_workers=num_workers,
        num_servers=num_servers,
        num_cores=2,
    )


def busy(seconds, **fields):
    return seconds, fields


SERVED = (ServerTime("ps-server a:1", 0.3), ServerTime("ps-server b:1", 0.62))

ADVICE = {
    "a worker without credit waits for the dense ones, whatever the gate says": (
        run(
            pull=busy(0.3, waiting_at_gate=0.2),
            send=busy(0.1, waiting_for_credit=0.4),
            recv=busy(0.8),
        ),
        "send waits 40% of the time for a dense worker to have room, so the dense workers bound "
        "the run; add dense workers, or give them faster devices",
    ),
    "staleness 0 is the serial sum": (
        run(
            staleness=0,
            pull=busy(0.3, waiting_at_gate=0.7),
            dense=busy(0.4),
            push=busy(0.2),
        ),
        "pull waits 70% of the time for the push of an earlier step, as pull, dense and push of a "
        "step take 9 ms together and staleness is 0; raise staleness to 2, and a step may take "
        "4 ms",
    ),
    "mode sync has no staleness to raise": (
        run(
            staleness=0,
            mode="sync",
            pull=busy(0.3, waiting_at_gate=0.7),
            dense=busy(0.4),
            push=busy(0.2),
        ),
        "pull waits 70% of the time for the push of an earlier step, as pull, dense and push of a "
        "step take 9 ms together and staleness is 0; use mode bounded with staleness 2, and a "
        "step may take 4 ms",
    ),
    "two steps under way are not enough for four": (
        run(
            staleness=1,
            pull=busy(0.5, waiting_at_gate=0.5),
            dense=busy(0.5),
            push=busy(0.5),
        ),
        "pull waits 50% of the time for the push of an earlier step, as pull, dense and push of a "
        "step take 15 ms together and staleness is 1; raise staleness to 2, and a step may take "
        "5 ms",
    ),
    "a gate that holds back though by the means it need not": (
        run(staleness=3, pull=busy(0.3, waiting_at_gate=0.15), dense=busy(0.8), push=busy(0.3)),
        "pull waits 15% of the time for the push of an earlier step, as pull, dense and push of a "
        "step take 14 ms together and staleness is 3; raise staleness to 4, and a step may take "
        "8 ms",
    ),
    "cores that the stages need are a limit to what staleness gains": (
        run(
            staleness=0,
            pull=busy(0.3, cpu=0.3, waiting_at_gate=0.7),
            dense=busy(0.4, cpu=0.4),
            push=busy(0.3, cpu=0.3),
        ),
        "pull waits 70% of the time for the push of an earlier step, as pull, dense and push of a "
        "step take 10 ms together and staleness is 0; raise staleness to 1, and a step may take "
        "5.1 ms",
    ),
    "a gate is no matter where dense is busy all the time": (
        run(staleness=0, pull=busy(0.02, waiting_at_gate=0.95), dense=busy(0.95)),
        "dense bounds the run with 9.5 ms a step: the device is its own limit; use a faster one, "
        "or more workers",
    ),
    "dense that may wait in an all-reduce": (
        run(staleness=0, mode="sync", num_workers=2, dense=busy(0.95)),
        "dense bounds the run with 9.5 ms a step: it waits there for the slowest worker, too; "
        "compare the workers in a trace, then take a faster device for that one, or mode bounded",
    ),
    "a reader on a core": (
        run(read=busy(0.97, cpu=0.9)),
        "read bounds the run with 9.7 ms a step: give it less to parse (Parquet, fewer columns), "
        "or let more workers read",
    ),
    "a reader that waits for its files": (
        run(read=busy(0.97, cpu=0.1)),
        "read bounds the run with 9.7 ms a step: its files come slowly; put them on a faster disk, "
        "or let more workers read",
    ),
    "route": (
        run(route=busy(0.85, cpu=0.8)),
        "route bounds the run with 8.5 ms a step: let more workers share the batches",
    ),
    "a sparse worker that waits for dense ones": (
        run(send=busy(0.1), recv=busy(0.95)),
        "recv bounds the run with 9.5 ms a step: it waits for the dense workers; add dense "
        "workers, or give them faster devices",
    ),
    "a sparse worker that waits for the wire": (
        run(send=busy(0.9, cpu=0.2)),
        "send bounds the run with 9 ms a step: the wire to the dense workers is slow; send float16 "
        "(--wire), or use a faster one",
    ),
    "a sparse worker that pools": (
        run(send=busy(0.9, cpu=0.8)),
        "send bounds the run with 9 ms a step: let more workers share the batches",
    ),
    "a sparse worker whose staleness is low": (
        run(
            staleness=0,
            pull=busy(0.2, waiting_at_gate=0.8),
            send=busy(0.2),
            recv=busy(0.5),
            push=busy(0.1),
        ),
        "pull waits 80% of the time for the push of an earlier step, as pull, send, recv and push "
        "of a step take 10 ms together and staleness is 0; raise staleness to 1, and a step may "
        "take 5 ms",
    ),
    "pull, and nobody traced the servers": (
        run(pull=busy(0.9)),
        "pull bounds the run with 9 ms a step: add servers, or see in a trace whether it is they "
        "or the wire",
    ),
    "pull, and a server is busy": (
        replace(run(pull=busy(0.9)), servers=SERVED),
        "pull bounds the run with 9 ms a step: the busiest server is busy 62% of the time; add "
        "servers",
    ),
    "push, and no server is busy": (
        replace(run(push=busy(0.9)), servers=SERVED[:1]),
        "push bounds the run with 9 ms a step: no server is busy more than 30% of the time, the "
        "rest is the wire and its two ends; use a faster network, smaller rows, or more workers",
    ),
    "pull in this process": (
        run(pull=busy(0.9), num_servers=0),
        "pull bounds the run with 9 ms a step: the tables are in this process; put them on servers "
        "on other hosts",
    ),
    "push waits for a slow worker in sync": (
        replace(
            run(push=busy(0.9), mode="sync", staleness=0),
            servers=(ServerTime("ps-server a:1", 0.3, waiting=0.4),),
        ),
        "servers wait 40% of the time for the slowest worker; see in the trace which one it is, or "
        "use mode bounded, so that the others need not wait for it at each step",
    ),
    "pull waits for a slow worker": (
        replace(run(pull=busy(0.9)), servers=(ServerTime("ps-server a:1", 0.3, waiting=0.4),)),
        "servers wait 40% of the time for the slowest worker; see in the trace which one it is, or "
        "raise staleness, so that the others need not wait for it at each step",
    ),
    "cores": (
        run(
            dense=busy(0.95, cpu=0.9),
            route=busy(0.5, cpu=0.5),
            read=busy(0.5, cpu=0.5),
            push=busy(0.2),
        ),
        "the stages keep 2 cores busy, so that none can run beside the others; add cores, or "
        "workers on other hosts",
    ),
    "no stage is busy all the time and none waits at a gate": (
        run(dense=busy(0.6), pull=busy(0.5)),
        "dense bounds the run and is busy 60% of the time, as the time of stages varies from step "
        "to step; let more steps wait between them (StagePlan.capacity), with a higher staleness",
    ),
    "async has no gate": (
        run(dense=busy(0.6), pull=busy(0.5, waiting_at_gate=0.4), mode="async", staleness=None),
        "dense bounds the run and is busy 60% of the time, as the time of stages varies from step "
        "to step; let more steps wait between them (StagePlan.capacity)",
    ),
    "a short run": (
        run(steps=19, dense=busy(0.95)),
        "19 steps are too few to tell, as filling and emptying the pipeline is a good part of "
        "them; train 20 and more",
    ),
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice_is(case):
    summary, expected = ADVICE[case]
    assert summary.advice == expected


@pytest.mark.parametrize("times", [(3, 4, 2), (5, 5, 5), (1, 6, 1), (8, 1, 1), (1, 2, 9)])
@pytest.mark.parametrize("staleness", range(4))
def test_the_staleness_that_is_advised_is_the_least_that_keeps_the_bottleneck_busy(
    staleness, times
):
    """Against a pipeline that is stepped through, stage by stage."""
    pull, dense, push = (1e-3 * each for each in times)

    def step_time(k):
        ends = {"pull": 0.0, "dense": 0.0, "push": 0.0}
        pushed = []
        for step in range(200):
            gate = pushed[step - 1 - k] if step > k else 0.0
            ends["pull"] = max(ends["pull"], gate) + pull
            ends["dense"] = max(ends["dense"], ends["pull"]) + dense
            ends["push"] = max(ends["push"], ends["dense"]) + push
            pushed.append(ends["push"])
        return (pushed[-1] - pushed[99]) / 100

    least = next(k for k in range(10) if step_time(k) == pytest.approx(max(pull, dense, push)))
    seconds = step_time(staleness) * STEPS
    summary = run(
        seconds=seconds,
        staleness=staleness,
        pull=busy(pull * STEPS, waiting_at_gate=seconds - pull * STEPS),
        dense=busy(dense * STEPS),
        push=busy(push * STEPS),
    )
    if staleness < least:
        assert f"raise staleness to {least}, and a step may take {max(times)} ms" in summary.advice
    else:
        assert f" bounds the run with {max(times)} ms a step" in summary.advice


def test_the_bound_is_that_of_the_busiest_stage():
    summary = run(seconds=2.0, dense=busy(0.8), pull=busy(0.5))
    assert summary.bound == 1000 / 0.8
    assert summary.reached == 0.4
    assert summary.num_samples / summary.seconds == summary.bound * summary.reached


def test_nothing_that_ran_has_no_bound():
    summary = replace(run(), timeline=Timeline(), num_samples=0, seconds=0.0)
    assert (summary.bound, summary.reached, summary.advice) == (None, 0.0, "nothing was trained")
    assert str(summary) == "where time went: nothing was trained"


def test_a_summary_is_printed_like_this():
    summary = run(
        read=busy(0.02, waiting_for_output=0.9),
        route=busy(0.2, waiting_for_input=0.01, waiting_for_output=0.7),
        pull=busy(0.95, waiting_at_gate=0.02, waiting_for_credit=0.01),
    )
    summary = replace(summary, servers=(ServerTime("ps-server 127.0.0.1:7000", 0.62, 0.05),))
    assert str(summary).splitlines() == [
        "where time went: 100 steps of 10 ms, 1,000 samples/s",
        "                                busy  waiting  blocked  ms a step",
        "read                              2%       0%      90%      0.200",
        "route                            20%       1%      70%      2.000",
        "pull                             95%       2%       1%      9.500  <- bottleneck",
        "dense                            10%       0%       0%      1.000",
        "push                             10%       0%       0%      1.000",
        "ps-server 127.0.0.1:7000         62%       5%",
        "bound 1 / pull: 1,053 samples/s, 95% of it reached",
        "advice: pull bounds the run with 9.5 ms a step: the busiest server is busy 62% of the "
        "time; add servers",
    ]


def server_time(*recorded):
    ring = SpanRing(64)
    for track, name, start, end in recorded:
        ring.record(track, name, 0, start, end)
    return ServerTime.of(ring.spans(role="ps-server a:1"))


def test_a_server_is_busy_while_a_request_is_served_and_does_not_wait():
    """::

    seconds    1    2    3    4    5    6    7    8    9    10   11
    request_0  |-- Pull -|         |-- Push, waits -----|
    request_1       |-- Pull -|              |Pull|               |P|
    """
    found = server_time(
        ("request_0", "Pull", 1.0, 3.0),
        ("request_1", "Pull", 2.0, 4.0),
        ("request_0", "waiting for workers", 5.5, 8.5),
        ("request_1", "Pull", 7.0, 8.0),
        ("request_0", "Push", 5.0, 9.0),
        ("request_1", "Pull", 10.5, 11.0),
    )
    # Busy 1 to 4, 5 to 5.5, 7 to 8, 8.5 to 9, 10.5 to 11; there, but waiting 5.5 to 7, 8 to 8.5.
    assert found.busy == pytest.approx(5.5 / 10)
    assert found.waiting == pytest.approx(2.0 / 10)


def test_a_server_that_was_asked_nothing_is_idle():
    assert server_time() == ServerTime("ps-server a:1", 0.0)
