"""Hand-offs: order, bound, finish and abort."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hetero_pipe.pipeline import Closed, Handoff

SOON = 0.05  # how long something that must block is watched, in seconds
LATER = 30.0  # within which something that must end ends


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def assert_blocks(future):
    with pytest.raises(TimeoutError):
        future.result(SOON)


def drain(handoff):
    items = []
    while True:
        try:
            items.append(handoff.get())
        except Closed:
            return items


@pytest.mark.parametrize("capacity", [0, -1])
def test_capacity_below_one_is_refused(capacity):
    with pytest.raises(ValueError, match=f"capacity >= 1, got capacity={capacity}"):
        Handoff(capacity)


def test_items_come_out_in_order():
    handoff = Handoff(3)
    for item in "abc":
        handoff.put(item)
    handoff.finish()
    assert drain(handoff) == ["a", "b", "c"]


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_put_blocks_at_capacity_until_an_item_is_taken(threads, capacity):
    handoff = Handoff(capacity)
    for item in range(capacity):
        handoff.put(item)
    blocked = threads.submit(handoff.put, capacity)
    assert_blocks(blocked)
    assert handoff.get() == 0
    assert blocked.result(LATER) is None


def test_get_blocks_until_an_item_comes(threads):
    handoff = Handoff(1)
    blocked = threads.submit(handoff.get)
    assert_blocks(blocked)
    handoff.put("late")
    assert blocked.result(LATER) == "late"


def test_finish_lets_waiting_items_out_then_closes():
    handoff = Handoff(2)
    handoff.put(1)
    handoff.finish()
    with pytest.raises(Closed):
        handoff.put(2)
    assert handoff.get() == 1
    for _ in range(2):
        with pytest.raises(Closed):
            handoff.get()


def test_finish_wakes_a_getter(threads):
    handoff = Handoff(1)
    blocked = threads.submit(handoff.get)
    assert_blocks(blocked)
    handoff.finish()
    with pytest.raises(Closed):
        blocked.result(LATER)


@pytest.mark.parametrize("close", [Handoff.finish, Handoff.abort])
def test_closing_wakes_a_putter(threads, close):
    handoff = Handoff(1)
    handoff.put(1)
    blocked = threads.submit(handoff.put, 2)
    assert_blocks(blocked)
    close(handoff)
    with pytest.raises(Closed):
        blocked.result(LATER)


def test_abort_drops_what_waits_and_wakes_getters(threads):
    handoff = Handoff(4)
    blocked = [threads.submit(handoff.get) for _ in range(3)]
    assert_blocks(blocked[0])
    handoff.abort()
    for future in blocked:
        with pytest.raises(Closed):
            future.result(LATER)
    full = Handoff(4)
    full.put(1)
    full.abort()
    for method in (full.get, lambda: full.put(2)):
        with pytest.raises(Closed):
            method()


def test_abort_after_finish_drops_too():
    handoff = Handoff(4)
    handoff.put(1)
    handoff.finish()
    handoff.abort()
    with pytest.raises(Closed):
        handoff.get()


def test_many_putters_and_getters_lose_and_repeat_nothing(threads):
    handoff = Handoff(2)
    at_once = threading.Barrier(8)

    def put(first):
        at_once.wait(LATER)
        for item in range(first, first + 250):
            handoff.put(item)

    def get():
        at_once.wait(LATER)
        return drain(handoff)

    putters = [threads.submit(put, 250 * i) for i in range(4)]
    getters = [threads.submit(get) for _ in range(4)]
    for putter in putters:
        putter.result(LATER)
    handoff.finish()
    parts = [getter.result(LATER) for getter in getters]
    assert sorted(itertools.chain(*parts)) == list(range(1000))
    for part in parts:  # what one getter sees of one putter is in order
        for first in range(0, 1000, 250):
            mine = [item for item in part if first <= item < first + 250]
            assert mine == sorted(mine)
