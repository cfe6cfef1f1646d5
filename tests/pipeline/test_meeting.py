"""Workers meet: nobody goes on alone, and nobody waits for one that is gone."""

import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_pipe.errors import ConfigError, WorkerLost
from hetero_pipe.pipeline import Closed, Meeting
from hetero_pipe.pipeline.message import decode_message, encode_message

LATER = 20.0


def seat(address, rank, num, **options):
    roles = [f"worker {each}" for each in range(num)]
    return Meeting(address, rank=rank, roles=roles, **{"seconds": LATER, **options})


@contextmanager
def meeting(address, num):
    with ThreadPoolExecutor(num) as pool, ExitStack() as stack:
        seats = list(pool.map(lambda rank: seat(address, rank, num), range(num)))
        for each in seats:
            stack.callback(each.leave)
        yield seats, pool


def test_gather_gives_everyone_what_all_said_in_order_of_rank(free_address):
    with meeting(free_address, 3) as (seats, pool):
        channels = [s.channel("all", range(3)) for s in seats]
        said = [None, {"loss": 0.5, "text": "é"}, np.arange(6, dtype=np.float32).reshape(2, 3)]
        for found in pool.map(lambda c, value: c.gather(value), channels, said):
            assert found[:2] == said[:2]
            np.testing.assert_array_equal(found[2], said[2])
            assert found[2].dtype == np.float32


def test_channels_do_not_wait_for_one_another(free_address):
    with meeting(free_address, 2) as (seats, pool):
        waits = pool.submit(seats[0].channel("slow", range(2)).gather, 1)
        quick = [pool.submit(s.channel("quick", range(2)).gather, s.rank) for s in seats[1:]]
        assert seats[0].channel("quick", range(2)).gather(0, seconds=LATER) == [0, 1]
        assert quick[0].result(LATER) == [0, 1]
        assert not waits.done()
        assert seats[1].channel("slow", range(2)).gather(2) == [1, 2]
        assert waits.result(LATER) == [1, 2]


def test_some_workers_meet_without_the_others(free_address):
    with meeting(free_address, 3) as (seats, pool):
        pair = [seats[r].channel("pair", (0, 2)) for r in (0, 2)]
        assert list(pool.map(lambda c: c.gather(c.ranks), pair)) == [[[0, 2], [0, 2]]] * 2


def test_a_worker_that_fails_is_named_to_those_that_wait(free_address):
    with meeting(free_address, 2) as (seats, pool):
        waits = pool.submit(seats[0].channel("all", range(2)).gather, None)
        seats[1].fail("has no bread")
        with pytest.raises(WorkerLost, match=r"worker 1 \(.*:\d+\) has no bread"):
            waits.result(LATER)
        with pytest.raises(WorkerLost, match="no bread"):  # later ones too
            seats[0].channel("other", range(2)).gather(None)


def test_what_failed_first_is_told_in_place_of_what_followed(free_address):
    with meeting(free_address, 4) as (seats, pool):
        seats[1].fail("lost its baker", is_of_another=True)
        waits = pool.submit(seats[0].channel("some", (0, 1)).gather, None)
        other = pool.submit(seats[2].await_failure)  # as one does that a server told of a loss
        seats[3].fail("has no bread")
        with pytest.raises(WorkerLost, match=r"worker 3 .* has no bread"):
            waits.result(LATER)
        assert other.result(LATER).endswith(") has no bread")
        seats[0].fail("dropped a plate")  # what comes later is not the first
        assert seats[2].await_failure().endswith(") has no bread")


def test_one_that_followed_is_told_if_no_other_is(free_address):
    with meeting(free_address, 2) as (seats, _):
        seats[1].fail("lost its baker", is_of_another=True)
        with pytest.raises(WorkerLost, match=r"worker 1 .* lost its baker"):
            seats[0].channel("all", range(2)).gather(None)


def test_why_the_first_worker_failed_is_told_though_it_ends_at_once(free_address):
    with meeting(free_address, 2) as (seats, _):
        for _ in range(500):  # which the hub has not heard all when it is to close
            seats[0].ask_to_stop("was interrupted", is_interrupt=True)
        seats[0].fail("has no bread")
        seats[0].leave()  # and the meeting with it
        with pytest.raises(WorkerLost, match=r"worker 0 \(.*\) has no bread"):
            seats[1].channel("all", range(2)).gather(None)


def test_a_stop_is_known_to_all_who_meet_after_it_and_can_be_forgotten(free_address):
    with meeting(free_address, 3) as (seats, pool):
        channels = [s.channel("all", range(3)) for s in seats]
        seats[1].ask_to_stop("was interrupted", is_interrupt=True)
        list(pool.map(lambda c: c.gather(None), channels))
        for each in seats:
            assert each.stop.is_interrupt
            assert each.stop.reason.startswith("worker 1 (")
            assert each.stop.reason.endswith(") was interrupted")
            assert each.failure is None
            each.forget_stop()
        list(pool.map(lambda c: c.gather(None), channels))
        assert [each.stop for each in seats] == [None] * 3


def test_one_that_has_left_is_not_waited_for(free_address):
    with meeting(free_address, 2) as (seats, _):
        seats[1].leave()
        with pytest.raises(WorkerLost, match=r"worker 1 .* has left"):
            seats[0].channel("all", range(2)).gather(None)


def test_the_end_of_the_first_worker_ends_the_waits_of_the_others(free_address):
    with meeting(free_address, 2) as (seats, pool):
        waits = pool.submit(seats[1].channel("all", range(2)).gather, None)
        seats[0].leave()
        with pytest.raises(WorkerLost, match=r"worker 0 \(.*\) has left"):
            waits.result(LATER)


def test_closing_a_channel_wakes_its_wait_alone(free_address):
    with meeting(free_address, 2) as (seats, pool):
        channel, other = (seats[0].channel(name, range(2)) for name in ("a", "b"))
        waits, others = pool.submit(channel.gather, 1), pool.submit(other.gather, 1)
        channel.close()
        with pytest.raises(Closed):
            waits.result(LATER)
        seats[1].channel("b", range(2)).gather(2)
        assert others.result(LATER) == [1, 2]


def test_branches_are_channels_of_their_own(free_address):
    with meeting(free_address, 2) as (seats, pool):
        channels = [s.channel("all", range(2)) for s in seats]
        for _ in range(2):
            branches = [c.branch("epoch") for c in channels]
            assert list(pool.map(lambda b: b.gather(7), branches)) == [[7, 7]] * 2
            branches[0].close()


KILLED = """
import sys
from hetero_pipe.pipeline import Meeting
seat = Meeting(sys.argv[1], rank=int(sys.argv[2]), roles=["worker 0", "worker 1"], seconds=20)
seat.channel("all", range(2)).gather(None)
print("ready", flush=True)
seat.channel("never", range(2)).gather(None)
"""


def test_a_worker_that_is_killed_is_named_to_those_that_wait(free_address):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, free_address, "1"], stdout=subprocess.PIPE, text=True
    )
    try:
        one = seat(free_address, 0, 2)
        one.channel("all", range(2)).gather(None)
        assert process.stdout.readline() == "ready\n"
        timer = threading.Timer(0.05, os.kill, (process.pid, signal.SIGKILL))
        timer.start()
        with pytest.raises(WorkerLost, match=rf"worker 1 \(.*:{process.pid}\) is lost"):
            one.channel("other", range(2)).gather(None, seconds=LATER)
        timer.join()
        one.leave()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_those_that_do_not_come_are_named(free_address):
    with pytest.raises(WorkerLost, match=r"3 workers must meet .*worker 1, worker 2; start them"):
        seat(free_address, 0, 3, seconds=0.2)


def test_a_worker_alone_says_where_the_first_one_must_be(free_address):
    with pytest.raises(WorkerLost, match=rf"worker 0 must listen on {free_address}.*--coordinator"):
        seat(free_address, 1, 2, seconds=0.1)


def test_an_address_in_use_is_refused(free_address):
    host, port = free_address.split(":")
    with socket.create_server((host, int(port))), pytest.raises(ConfigError, match="coordinator"):
        seat(free_address, 0, 2)


def test_a_stranger_disturbs_nobody(free_address):
    with meeting(free_address, 2) as (seats, pool):
        host, port = free_address.split(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n")
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""  # hung up on
        assert list(pool.map(lambda s: s.channel("x", range(2)).gather(1), seats)) == [[1, 1]] * 2


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(deadline=None)
@given(plain)
def test_a_message_comes_back_as_it_was(value):
    assert decode_message(encode_message(value)) == value


def test_a_message_refuses_what_only_a_pickle_could_hold():
    with pytest.raises(TypeError, match="plain values and arrays, got object"):
        encode_message({"x": object()})
