"""Workers that start and end together: whose end is the failure, and when the rest is killed."""

import math
import signal
import sys

import pytest

from hetero_pipe.launch.process import FIRST_SECONDS, KILL_SECONDS, Ended, Process
from hetero_pipe.launch.run import FOLLOWED
from hetero_pipe.launch.workers import Workers


@pytest.fixture
def workers():
    """Three of them that read what never comes; they say where their ends go."""
    ends = []

    def spawn(name, arguments):
        return Process(
            [sys.executable, *arguments],
            on_out=print,
            on_err=print,
            on_end=lambda code: ends.append((name, code)),
        )

    workers = Workers(spawn)
    workers.ends = ends
    command = ["-ISc", "import signal; signal.pause()"]
    workers.start(dict.fromkeys("abc", command), now=0.0)
    started = dict(workers.processes)
    yield workers
    for process in started.values():
        process.send(signal.SIGKILL)


def test_the_first_that_fails_of_itself_is_the_failure(workers):
    assert workers.note(Ended("a", FOLLOWED), now=1.0) is None
    assert workers.check(now=1.0) is None
    assert workers.note(Ended("b", 7), now=2.0) == Ended("b", 7)


def test_one_that_followed_is_the_failure_once_no_other_comes(workers):
    workers.note(Ended("a", FOLLOWED), now=1.0)
    workers.note(Ended("b", FOLLOWED), now=5.0)
    assert workers.next_check == 1.0 + FIRST_SECONDS
    assert workers.check(now=workers.next_check - 0.1) is None
    assert workers.check(now=workers.next_check) == Ended("a", FOLLOWED)


def test_if_all_followed_the_first_is_the_failure_at_once_and_they_are_not_done(workers):
    for name in "abc":
        workers.note(Ended(name, FOLLOWED), now=1.0)
    assert not workers.are_done
    assert workers.check(now=1.0) == Ended("a", FOLLOWED)


def test_they_are_done_when_all_have_ended_well(workers):
    for name in "abc":
        assert not workers.are_done
        assert workers.note(Ended(name, 0), now=1.0) is None
    assert workers.are_done
    assert workers.check(now=2.0) is None


def test_those_that_are_stopped_fail_no_more_and_are_not_done(workers):
    workers.stop(signal.SIGCONT, now=1.0)
    for name in "abc":
        assert workers.note(Ended(name, FOLLOWED), now=2.0) is None
    assert workers.check(now=2.0) is None
    assert not workers.are_done


def test_those_that_do_not_stop_are_killed(workers, wait_until):
    workers.stop(signal.SIGCONT, now=1.0, seconds=math.inf)
    assert workers.next_check == math.inf
    workers.stop(signal.SIGCONT, now=2.0)
    assert workers.next_check == 2.0 + KILL_SECONDS
    workers.check(now=2.0 + KILL_SECONDS)
    wait_until(lambda: sorted(workers.ends) == [(name, -signal.SIGKILL) for name in "abc"])
    assert workers.next_check == math.inf
