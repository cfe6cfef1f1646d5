"""Leases: who gets which range, who loses it, and what a server knows of that after a kill."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ps_server.change import NotLogged
from ps_server.leases import Ask, LeaseKind, Leases
from ps_server.order import Order
from tests.oracles.list_log import ListLog

LATER = 10.0
SECONDS = 5.0
TABLE = "user"
ONE, TWO, THREE = 11, 12, 13  # holders


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Desk:
    """Leases of one table on a clock that is set by hand, with a log."""

    def __init__(self):
        self.clock, self.log, order = Clock(), ListLog(), Order()
        order.keep(self.log)
        self.leases = Leases(order, clock=self.clock)

    def ask(self, holder, *, held=(), epochs=1, wait_seconds=0.0):
        return self.leases.acquire(
            TABLE,
            Ask(holder, frozenset(held), size=4, seconds=SECONDS, epochs=epochs),
            wait_seconds=wait_seconds,
            check=lambda: None,
        )

    def complete(self, lease, num_batches=4):
        self.leases.complete(TABLE, lease.number, num_batches=num_batches)


@pytest.fixture
def desk():
    """Leases whose run is open."""
    desk = Desk()
    desk.complete(desk.ask(ONE), 0)
    return desk


def test_each_gets_its_own_range(desk):
    leases = [desk.ask(holder) for holder in (ONE, TWO)]
    assert [lease.kind for lease in leases] == [LeaseKind.TRAIN] * 2
    assert [(lease.epoch, lease.first_batch, lease.size) for lease in leases] == [
        (0, 0, 4),
        (0, 4, 4),
    ]


def test_range_whose_answer_was_lost_is_given_to_its_holder_again(desk):
    lease = desk.ask(ONE)
    assert desk.ask(ONE) == lease
    assert desk.ask(ONE, held=[lease.number]).number == lease.number + 1


def test_range_of_a_silent_holder_goes_to_the_next_and_not_a_moment_sooner(desk):
    lease, other = desk.ask(ONE), desk.ask(TWO)
    desk.clock.now += SECONDS / 2
    desk.leases.renew(TWO, SECONDS)
    desk.clock.now += SECONDS / 2 - 0.25
    assert desk.ask(THREE).number == other.number + 1
    desk.clock.now += 0.25
    assert desk.ask(THREE, held=[other.number + 1]) == lease


def test_range_that_was_lost_can_still_be_completed_but_not_given_back(desk):
    lease = desk.ask(ONE)
    desk.clock.now += SECONDS
    assert desk.ask(TWO) == lease
    desk.leases.give_back(TABLE, lease.number, holder=ONE)
    assert desk.ask(THREE) != lease
    desk.complete(lease)
    changes = list(desk.log.changes)
    desk.complete(lease)  # the other one's
    assert desk.log.changes == changes


def test_range_that_is_given_back_goes_out_at_once(desk):
    lease = desk.ask(ONE)
    desk.leases.give_back(TABLE, lease.number, holder=ONE)
    assert desk.ask(TWO) == lease


def test_after_all_epochs_there_is_nothing_more(desk):
    desk.complete(desk.ask(ONE), 1)
    closing = desk.ask(ONE)
    assert (closing.kind, desk.ask(TWO).kind) == (LeaseKind.CLOSE, LeaseKind.WAIT)
    desk.complete(closing, 0)
    assert desk.ask(TWO).kind is LeaseKind.END
    assert (desk.ask(TWO, epochs=2).kind, desk.ask(TWO, epochs=2).epoch) == (LeaseKind.TRAIN, 1)


@pytest.mark.parametrize("end", ["complete", "give_back", "close", "drop"])
def test_who_waits_is_told_when_something_changes(end):
    desk = Desk()
    opening = desk.ask(ONE)
    with ThreadPoolExecutor(1) as pool:
        checked = threading.Event()
        asked = pool.submit(
            desk.leases.acquire,
            TABLE,
            Ask(TWO, frozenset(), size=4, seconds=SECONDS, epochs=1),
            wait_seconds=1000.0,
            check=checked.set,
        )
        assert checked.wait(LATER)
        if end == "complete":
            desk.complete(opening, 0)
        elif end == "give_back":
            desk.leases.give_back(TABLE, opening.number, holder=ONE)
        elif end == "close":
            desk.leases.close()
        else:
            desk.leases.drop(TABLE)
        kind = asked.result(LATER).kind
    told = {"complete": LeaseKind.TRAIN, "close": LeaseKind.WAIT}
    assert kind is told.get(end, LeaseKind.OPEN)


def test_a_run_ends_with_its_table(desk):
    desk.ask(ONE)
    desk.leases.drop(TABLE)
    assert desk.ask(TWO).kind is LeaseKind.OPEN


def test_log_has_all_that_a_server_is_to_know_again(desk):
    first, second = desk.ask(ONE), desk.ask(TWO)
    desk.complete(second, 2)
    desk.leases.give_back(TABLE, first.number, holder=ONE)
    again = Desk()
    for change in desk.log.changes:
        again.leases.replay(change)
    assert again.leases.state() == desk.leases.state()
    restored = Desk()
    restored.leases.restore(desk.leases.state())
    assert restored.ask(THREE) == first


def test_holders_have_all_of_their_time_again_after_a_kill(desk):
    lease = desk.ask(ONE)
    again = Desk()
    again.leases.restore(desk.leases.state())
    other = again.ask(TWO)
    assert other.number == lease.number + 1
    again.leases.renew(ONE, SECONDS)
    again.clock.now += SECONDS - 0.25
    assert again.ask(TWO, held=[other.number]).number == other.number + 1


def test_lease_that_cannot_be_logged_is_not_given(desk):
    before = desk.leases.state()
    desk.log.is_full = True
    with pytest.raises(NotLogged):
        desk.ask(ONE)
    assert desk.leases.state() == before


@pytest.mark.parametrize("wrong", [{"holder": 0}, {"size": 0}, {"seconds": 0.0}, {"epochs": -1}])
def test_an_ask_that_makes_no_sense_is_refused(wrong):
    good = {"holder": ONE, "held": frozenset(), "size": 4, "seconds": SECONDS, "epochs": 1}
    with pytest.raises(ValueError, match="a lease needs a holder"):
        Ask(**good | wrong)
