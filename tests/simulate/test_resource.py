"""Shared cores and queued devices, against who does the sums at each event."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_pipe.simulate.events import Events
from hetero_pipe.simulate.resource import Lock, Queue, Shared


def ends_by_hand(pieces, capacity, speeds):
    """When each of (start, work, weight) ends; `speeds` are (from when, speed)."""
    left = {i: work for i, (_, work, _) in enumerate(pieces)}
    ends, now, speed = {}, 0.0, 1.0
    changes = dict(speeds)
    times = sorted({start for start, _, _ in pieces} | set(changes))
    while left:
        speed = changes.get(now, speed)
        there = [i for i in left if pieces[i][0] <= now]
        load = sum(pieces[i][2] for i in there)
        rate = speed * min(1.0, capacity / load) if load else 0.0
        soonest = min((left[i] / rate for i in there), default=float("inf")) if rate else 1e9
        until = min([now + soonest, *(t for t in times if t > now)])
        for i in there:
            left[i] -= (until - now) * rate
            if left[i] < 1e-9:
                ends[i] = until
                del left[i]
        now = until
    return [ends[i] for i in range(len(pieces))]


# Sixteenths, so that what meets does so to the last bit.
sixteenths = st.integers(1, 64).map(lambda n: n / 16)
piece = st.tuples(st.integers(0, 64).map(lambda n: n / 16), sixteenths, st.integers(1, 3))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(piece, min_size=1, max_size=8),
    st.sampled_from([0.5, 1.0, 2.0, 3.0]),
    st.lists(st.tuples(sixteenths, st.sampled_from([0.5, 1.0, 2.0])), max_size=3),
)
def test_pieces_share_as_they_do_by_hand(pieces, capacity, speeds):
    events = Events()
    shared = Shared(events, "cores", capacity=capacity)
    ends = {}

    def come(i, work, weight):
        shared.use(work, lambda: ends.setdefault(i, events.now), weight)

    for time, speed in dict(speeds).items():
        events.at(time, lambda s=speed: shared.set_speed(s))
    for i, (start, work, weight) in enumerate(pieces):
        events.at(start, lambda i=i, work=work, weight=weight: come(i, work, weight))
    events.run()
    assert [ends[i] for i in range(len(pieces))] == pytest.approx(
        ends_by_hand(pieces, capacity, speeds), abs=1e-6
    )
    # Never held beyond its capacity, and no work is lost.
    assert shared.used <= capacity * events.now + 1e-6
    if not speeds:
        assert shared.used == pytest.approx(sum(work * weight for _, work, weight in pieces))


def test_two_pieces_on_one_core_take_turns_of_no_length():
    """::

             0    1    2    3    4
    first    |====|----|----|         alone, then at half speed
    second        |----|----|====|    2 s of work from 1 on
    """
    events = Events()
    core = Shared(events, "core")
    ends = []
    core.use(2.0, lambda: ends.append(("first", events.now)))
    events.at(1.0, lambda: core.use(2.0, lambda: ends.append(("second", events.now))))
    events.run()
    assert ends == [("first", pytest.approx(3.0)), ("second", pytest.approx(4.0))]


def test_a_speed_of_none_holds_all_until_it_is_back():
    events = Events()
    core = Shared(events, "core")
    ends = []
    core.use(2.0, lambda: ends.append(events.now))
    events.at(1.0, lambda: core.set_speed(0.0))
    events.run()
    assert ends == []
    assert events.now == 2.0, "when it would have ended"
    core.set_speed(1.0)
    events.run()
    assert ends == [pytest.approx(3.0)]


def test_what_ends_begins_the_next_on_the_same_core():
    events = Events()
    core = Shared(events, "core")
    ends = []

    def again():
        ends.append(events.now)
        if len(ends) < 3:
            core.use(1.0, again)

    core.use(1.0, again)
    events.run()
    assert ends == pytest.approx([1.0, 2.0, 3.0])


def test_a_device_takes_one_piece_at_a_time_in_their_order():
    events = Events()
    device = Queue(events, "device")
    ends = []
    for name, work in (("a", 2.0), ("b", 1.0), ("c", 0.5)):
        device.use(work, lambda name=name: ends.append((name, events.now)))
    events.run()
    assert ends == [("a", 2.0), ("b", 3.0), ("c", 3.5)]
    assert device.used == 3.5


def test_a_lock_is_held_by_one_at_a_time_in_the_order_in_which_they_ask():
    """::

             0    1    2    3    4
    a        |====|         |====|    asks again when it is done, behind b and c
    b             |====|
    c                  |====|
    """
    events, begun = Events(), []
    lock = Lock(events)

    def hold(name, times):
        def begin():
            begun.append((name, events.now))
            events.after(1.0, end)

        def end():
            lock.release()
            if times > 1:
                hold(name, times - 1)

        lock.acquire(begin)

    for name, times in (("a", 2), ("b", 1), ("c", 1)):
        hold(name, times)
    events.run()
    assert begun == [("a", 0.0), ("b", 1.0), ("c", 2.0), ("a", 3.0)]
