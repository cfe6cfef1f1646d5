"""What a simulated run says of itself."""

from dataclasses import replace

import numpy as np
import pytest

from hetero_pipe.pipeline import Timeline
from hetero_pipe.simulate import WorkerRun
from hetero_pipe.simulate.simulation import joined
from ps_server.spans import SpanRing


def worker(ends, **fields):
    return WorkerRun("whole", 0, "here", 2, Timeline(), np.array(ends, np.float64), **fields)


def test_a_step_is_measured_while_the_pipeline_is_full():
    """It fills for a while, is read to the end at 60 s, and then goes twice as fast."""
    filling = [5.0, 6.0, 8.0]
    full = [10.0 + 2 * i for i in range(26)]  # 10 to 60
    draining = [61.0 + i for i in range(5)]
    assert worker([*filling, *full, *draining], source_end=60.0).step_seconds == 2.0


@pytest.mark.parametrize(
    ("ends", "seconds"), [([], 0.0), ([3.0], 3.0), ([3.0, 5.0], 2.0), ([3.0, 5.0, 7.0], 2.0)]
)
def test_a_short_run_has_a_step_too(ends, seconds):
    assert worker(ends, source_end=0.0).step_seconds == seconds


def test_spans_of_two_runs_are_those_of_both_whatever_they_call_first():
    def spans(*recorded):
        ring = SpanRing(8)
        for each in recorded:
            ring.record(*each)
        return ring.spans(role="trainer")

    first = spans(("read", "read", 0, 1.0, 2.0), ("pull", "pull", 0, 2.0, 3.0))
    second = spans(("pull", "waiting", 1, 4.0, 5.0), ("read", "read", 1, 4.0, 6.0))
    both = joined([first, replace(second, num_dropped=2)])
    named = [(both.texts[t], both.texts[n]) for t, n in zip(both.tracks, both.names, strict=True)]
    assert named == [("read", "read"), ("pull", "pull"), ("pull", "waiting"), ("read", "read")]
    assert both.steps.tolist() == [0, 0, 1, 1]
    assert both.ends.tolist() == [2.0, 3.0, 5.0, 6.0]
    assert both.num_dropped == 2
