"""Intervals: a set of numbers, whatever the order in which they come."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from ps_server.intervals import Intervals

NUMBERS = st.lists(st.integers(0, 20), max_size=30)


def intervals(numbers):
    found = Intervals()
    for number in numbers:
        found.add(number)
    return found


def runs_of(numbers):
    """First and last of each run, by the slow way."""
    firsts = sorted(n for n in numbers if n - 1 not in numbers)
    lasts = sorted(n for n in numbers if n + 1 not in numbers)
    return [list(pair) for pair in zip(firsts, lasts, strict=True)]


@given(NUMBERS)
@example([1, 3, 2])
@example([3, 2, 1])
def test_it_is_the_set_of_what_was_added_in_as_few_runs_as_can_be(numbers):
    found = intervals(numbers)
    assert [n for n in range(-1, 23) if n in found] == sorted(set(numbers))
    assert found.state().tolist() == runs_of(set(numbers))


@given(NUMBERS, st.integers(0, 20), st.integers(0, 20))
def test_it_has_a_run_if_it_has_each_of_its_numbers(numbers, first, length):
    run = range(first, first + length + 1)
    assert intervals(numbers).has_run(run[0], run[-1]) == all(n in numbers for n in run)


@given(NUMBERS, NUMBERS)
def test_it_takes_what_another_has(ours, theirs):
    found = intervals(ours)
    found.update(intervals(theirs).state())
    assert found.state().tolist() == runs_of({*ours, *theirs})


def test_numbers_have_64_bits():
    found = intervals([2**64 - 1, 2**64 - 2])
    assert 2**64 - 2 in found
    assert found.state().dtype == np.uint64
    assert found.state().tolist() == [[2**64 - 2, 2**64 - 1]]
