"""What is started again, how soon, and what is given up."""

import signal

import pytest

import hetero_pipe as hp
from hetero_pipe.launch.process import Ended
from hetero_pipe.launch.restart import Restarts

KILLED = Ended("server 0", -signal.SIGKILL)
LONG = 1e5  # seconds from one start to the next death, unless a test says otherwise


def limit(**values):
    return hp.launch.RestartLimit(**{"limit": 3, "within": 600.0, **values})


def failed(said, code=1):
    return Ended("worker 0", code, said)


def test_the_first_restart_is_at_once_and_each_further_one_takes_twice_as_long():
    restarts = Restarts(limit(limit=6, delay=0.5, longest_delay=3.0))
    delays = []
    for second in range(6):
        assert restarts.note(KILLED, at=second, lasted=0.0) is None
        delays.append(restarts.delay)
    assert delays == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    assert restarts.total == 6


def test_restarts_beyond_the_limit_are_refused_until_the_first_are_long_ago():
    restarts = Restarts(limit())
    assert [restarts.note(KILLED, at=at, lasted=0.0) for at in (0, 1, 2)] == [None] * 3
    assert str(restarts) == "restart 3 of 3 within 600 s"
    assert restarts.note(KILLED, at=599, lasted=0) == "restarts are at their limit, 3 within 600 s"
    assert restarts.note(KILLED, at=600, lasted=0.0) is None
    assert restarts.delay == 1.0  # the third within 600 s


def test_a_limit_of_none_restarts_nothing():
    assert Restarts(limit(limit=0)).note(KILLED, at=0.0, lasted=LONG) is not None


@pytest.mark.parametrize("code", [2, 130, 143, -signal.SIGINT, -signal.SIGTERM])
def test_an_end_that_somebody_meant_is_no_reason_to_restart(code):
    assert Restarts(limit()).note(failed("usage", code), at=0.0, lasted=LONG) is not None


@pytest.mark.parametrize(
    ("deaths", "expected"),
    [
        # What each said, and after how many seconds; how many of them are restarted.
        ([("a", 5), ("a", 5)], 1),
        ([("a", 5), ("b", 5), ("a", 5), ("b", 5)], 4),
        ([("a", 5), ("a", 31)], 2),
        ([("a", 31), ("a", 31), ("a", 599)], 2),
        ([("a", 31), ("a", 601), ("a", 31), ("a", 31)], 4),
        ([("", 5), ("", 5), ("", 5)], 3),
    ],
)
def test_one_that_fails_of_the_same_again_is_given_up(deaths, expected):
    restarts = Restarts(limit(limit=10))
    found = [restarts.note(failed(said), at=0.0, lasted=lasted) for said, lasted in deaths]
    assert found[:expected] == [None] * expected
    assert None not in found[expected:]


def test_kills_are_equal_to_nothing():
    restarts = Restarts(limit(limit=10))
    killed = Ended("worker 0", -signal.SIGKILL, "step 7")
    assert [restarts.note(killed, at=0.0, lasted=1.0) for _ in range(5)] == [None] * 5


@pytest.mark.parametrize("name", ["limit", "within", "delay", "longest_delay"])
def test_a_limit_below_0_is_refused(name):
    with pytest.raises(hp.ConfigError, match=f"restarts need {name} of at least 0, got {name}=-1"):
        limit(**{name: -1})
    with pytest.raises(hp.ConfigError, match="within"):
        limit(within=0)
