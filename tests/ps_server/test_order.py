"""Order: who is in beside whom, and who waits."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from ps_server.order import Order

SOON = 0.05
LATER = 10.0


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def enter(gate, *, inside, leave):
    """Goes in, says so, and leaves when it is told to."""
    with gate():
        inside.set()
        assert leave.wait(LATER)


def assert_blocks(future):
    with pytest.raises(TimeoutError):
        future.result(SOON)


def test_those_that_share_are_in_at_once(threads):
    order, meeting = Order(), threading.Barrier(3)

    def meet():
        with order.shared():
            meeting.wait(LATER)

    for each in [threads.submit(meet) for _ in range(3)]:
        assert each.result(LATER) is None


def test_one_alone_waits_for_those_that_are_in_and_holds_up_those_that_come_later(
    threads, wait_until
):
    order = Order()
    inside = [threading.Event() for _ in range(3)]
    leave = [threading.Event() for _ in range(3)]
    with ExitStack() as stack:
        for each in leave:
            stack.callback(each.set)  # a test that fails ends too
        gates = [order.shared, order.alone, order.shared]
        visits = []
        for number, gate in enumerate(gates):
            visit = threads.submit(enter, gate, inside=inside[number], leave=leave[number])
            visits.append(visit)
            if number == 0:
                assert inside[0].wait(LATER)
            if number == 1:
                wait_until(order._entrance.locked)
        assert_blocks(visits[1])
        assert not inside[1].is_set()
        assert not inside[2].is_set(), "it came later than one that wants to be alone"
        leave[0].set()
        assert inside[1].wait(LATER)
        assert_blocks(visits[2])
        assert not inside[2].is_set(), "the other is alone"
        leave[1].set()
        assert inside[2].wait(LATER)


@pytest.mark.parametrize("gate", ["shared", "alone"])
def test_who_fails_inside_is_out(threads, gate):
    order = Order()

    def fail():
        with getattr(order, gate)():
            raise KeyError

    def pass_alone():
        with order.alone():
            return True

    with pytest.raises(KeyError):
        threads.submit(fail).result(LATER)
    assert threads.submit(pass_alone).result(LATER)


def test_nobody_is_in_beside_one_that_is_alone():
    order, inside, failures = Order(), [], []

    def share(number):
        for _ in range(100):
            with order.shared():
                inside.append(number)
                inside.remove(number)

    def be_alone():
        for _ in range(100):
            with order.alone():
                failures.extend(inside)

    with ThreadPoolExecutor(4) as threads:
        works = [threads.submit(share, number) for number in range(2)]
        works += [threads.submit(be_alone) for _ in range(2)]
        for work in works:
            work.result(LATER)
    assert failures == []
