"""The gate: a pull misses at most the latest k pushes."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from hetero_pipe.pipeline import Closed, StalenessGate

SOON = 0.05
LATER = 30.0


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def assert_blocks(future):
    with pytest.raises(TimeoutError):
        future.result(SOON)


def test_negative_staleness_is_refused():
    with pytest.raises(ValueError, match="at least 0, got staleness=-1"):
        StalenessGate(-1)


@pytest.mark.parametrize("first_step", [0, 1, 1000])
@pytest.mark.parametrize("staleness", [0, 1, 2, 5])
def test_pull_waits_for_the_push_that_it_may_not_miss(threads, staleness, first_step):
    gate = StalenessGate(staleness, first_step=first_step)
    for step in range(first_step, first_step + staleness + 1):
        gate.wait_to_pull(step)
    assert gate.largest_seen == staleness
    for step in range(first_step, first_step + 3):
        blocked = threads.submit(gate.wait_to_pull, step + staleness + 1)
        assert_blocks(blocked)
        gate.acknowledge(step)
        assert blocked.result(LATER) is None
    assert gate.largest_seen == staleness


def test_order_of_pulls_and_pushes_is_that_of_the_drawing(threads):
    """The docstring's drawing, each pull as early as it may be."""
    drawn = {
        0: "pull 0 · push 0 · pull 1 · push 1 · pull 2 · push 2",
        1: "pull 0 · pull 1 · push 0 · pull 2 · push 1 · push 2",
        2: "pull 0 · pull 1 · pull 2 · push 0 · push 1 · push 2",
    }
    for staleness, drawing in drawn.items():
        gate, log, pulled, pushed = StalenessGate(staleness), [], 0, 0
        while pushed < 3:
            if pulled < 3 and pulled - pushed <= staleness:
                gate.wait_to_pull(pulled)
                log.append(f"pull {pulled}")
                pulled += 1
            else:
                gate.acknowledge(pushed)
                log.append(f"push {pushed}")
                pushed += 1
        assert " · ".join(log) == drawing


def test_largest_seen_is_what_was_missed_not_what_was_allowed():
    gate = StalenessGate(5)
    gate.wait_to_pull(0)
    gate.acknowledge(0)
    gate.wait_to_pull(1)
    assert gate.largest_seen == 0
    gate.wait_to_pull(2)
    assert gate.largest_seen == 1


def test_closing_wakes_a_pull_and_refuses_later_ones(threads):
    gate = StalenessGate(0)
    blocked = threads.submit(gate.wait_to_pull, 1)
    assert_blocks(blocked)
    gate.close()
    gate.close()
    with pytest.raises(Closed):
        blocked.result(LATER)
    with pytest.raises(Closed):
        gate.wait_to_pull(0)
    gate.acknowledge(0)  # pushes under way still end


def test_acknowledging_out_of_order_is_a_broken_invariant():
    gate = StalenessGate(1)
    with pytest.raises(AssertionError, match="push 1 acknowledged after -1"):
        gate.acknowledge(1)
