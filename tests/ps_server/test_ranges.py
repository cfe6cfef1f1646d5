"""Ranges: every batch of every epoch is handed out until somebody has trained it."""

import pytest

from ps_server.ranges import RangeKind, Ranges, RangesState
from tests.oracles.state_search import search, stuck


def lease(run, holder):
    """Leases the range that is offered, and returns its number."""
    number = run.offered()
    run.lease(number, holder)
    return number


def opened(size=4):
    """Returns a run whose first range was leased and completed."""
    run = Ranges(RangesState(size))
    run.complete(lease(run, 1), 0)
    return run


def test_ranges_go_out_in_order_and_those_that_were_given_back_first():
    run = opened()
    first, second, third = (lease(run, holder) for holder in (1, 2, 3))
    assert [run.first_batch(number) for number in (first, second, third)] == [0, 4, 8]
    run.give_back(second)
    run.give_back(first)
    assert [lease(run, 4), lease(run, 4), run.offered()] == [first, second, third + 1]


def test_nothing_goes_out_beside_a_range_that_opens():
    run = Ranges(RangesState(4))
    opening = lease(run, 1)
    assert (run.kind_of(opening), run.offered()) == (RangeKind.OPEN, None)
    run.give_back(opening)
    again = lease(run, 2)
    assert (again, run.kind_of(again)) == (opening + 1, RangeKind.OPEN)
    run.complete(again, 0)
    assert run.kind_of(lease(run, 1)) is RangeKind.TRAIN


@pytest.mark.parametrize("num_last", [3, 0])
def test_an_epoch_closes_when_all_before_the_end_of_data_is_complete(num_last):
    run = opened()
    whole, end, beyond = (lease(run, holder) for holder in (1, 2, 3))
    run.complete(beyond, 0)
    run.complete(end, num_last)
    assert run.offered() is None, "one is still trained"
    run.complete(whole, 4)
    closing = lease(run, 1)
    assert (run.kind_of(closing), run.offered(), run.epoch) == (RangeKind.CLOSE, None, 0)
    assert run.num_before == 0
    run.complete(closing, 0)
    assert (run.epoch, run.first_batch(lease(run, 1))) == (1, 0)
    assert run.num_before == 4 + num_last, "so many batches of the epoch before"


def test_a_closing_range_that_is_given_back_closes_again():
    run = opened()
    run.complete(lease(run, 1), 2)
    closing = lease(run, 1)
    run.give_back(closing)
    assert lease(run, 2) == closing
    assert run.kind_of(closing) is RangeKind.CLOSE


def test_a_range_beyond_the_end_of_data_is_not_handed_out_again():
    run = opened()
    end, given_before, given_after = (lease(run, holder) for holder in (1, 2, 3))
    run.give_back(given_before)
    run.complete(end, 2)
    run.give_back(given_after)
    assert run.is_complete(given_before)
    assert run.is_complete(given_after)
    assert run.kind_of(lease(run, 1)) is RangeKind.CLOSE


def test_who_finds_nothing_beyond_the_end_of_data_does_not_move_it():
    run = opened()
    end, between, beyond = (lease(run, holder) for holder in (1, 2, 3))
    run.complete(end, 2)
    run.complete(beyond, 0)
    run.give_back(between)
    assert run.kind_of(lease(run, 1)) is RangeKind.CLOSE


class EveryWay:
    """A run of ranges of one batch, and workers that hold, lose, complete and report late.

    A state is the run, what each worker believes to hold, and the batches that
    were trained. A worker that lost its range goes on, as one does that was stopped.
    """

    def __init__(self, *, batches, workers, epochs):
        self.batches, self.workers, self.epochs = batches, workers, epochs

    def start(self):
        return key_of(Ranges(RangesState(1))), (None,) * self.workers, frozenset()

    def nexts(self, state):
        run_key, beliefs, trained = state
        run = run_of(run_key)
        for number in run.held:
            if not run.is_open and number > 0:
                continue  # each opening that is given up takes a number: one is enough here
            after = run_of(run_key)
            after.give_back(number)
            yield f"range {number} is taken back", SERVER, (key_of(after), beliefs, trained)
        for worker, belief in enumerate(beliefs):
            after = run_of(run_key)
            if belief is not None:
                number, num_batches, batch = belief
                if not after.is_complete(number):
                    after.complete(number, num_batches)
                now = trained if batch is None else trained | {batch}
                believing = (*beliefs[:worker], None, *beliefs[worker + 1 :])
                yield (
                    f"worker {worker} completes {number}",
                    worker,
                    (key_of(after), believing, now),
                )
            elif run.epoch < self.epochs and run.offered() is not None:
                number = lease(after, worker + 1)
                kind, batch, num_batches = after.kind_of(number), None, 0
                if kind is RangeKind.TRAIN and after.first_batch(number) < self.batches:
                    batch, num_batches = (after.epoch, after.first_batch(number)), 1
                new = number, num_batches, batch
                believing = (*beliefs[:worker], new, *beliefs[worker + 1 :])
                yield (
                    f"worker {worker} leases {number}",
                    worker,
                    (key_of(after), believing, trained),
                )

    def wrong(self, state):
        run_key, _, trained = state
        run = run_of(run_key)
        kinds = [run.kind_of(number) for number in run.held]
        if len(kinds) > 1 and kinds.count(RangeKind.TRAIN) < len(kinds):
            return "another range is held beside one that opens or closes"
        left = self.over(run.epoch) - trained
        if RangeKind.CLOSE in kinds:
            left |= self.over(run.epoch + 1) - trained
        return f"an epoch ends without {sorted(left)}" if left else None

    def over(self, epoch):
        """All batches of the epochs before one."""
        return {(each, batch) for each in range(epoch) for batch in range(self.batches)}

    def is_end(self, state):
        return run_of(state[0]).epoch == self.epochs

    def is_cut(self, state):
        """Whether an opening is held that this search, unlike a server, never takes back."""
        run = run_of(state[0])
        return not run.is_open and max(run.held, default=0) > 0


def key_of(run):
    """Returns the run as what can be in a set."""
    *numbers, held, returned = vars(run.state()).values()
    return (*numbers, tuple(sorted(held.items())), returned)


def run_of(key):
    *numbers, held, returned = key
    return Ranges(RangesState(*numbers, dict(held), returned))


SERVER = "server"


@pytest.mark.parametrize(("batches", "workers", "epochs"), [(1, 2, 1), (2, 2, 1), (0, 2, 2)])
def test_no_batch_is_left_out_and_any_worker_alone_comes_to_the_end(batches, workers, epochs):
    ways = EveryWay(batches=batches, workers=workers, epochs=epochs)
    found = search(ways, max_states=200_000)
    assert found.wrong is None, found.trace
    assert any(ways.is_end(state) for state in found.states)
    for alone in range(workers):  # the others are dead: what they hold is taken back
        left = stuck(found, ways.is_end, lambda by, who=alone: by in (SERVER, who))
        assert [state for state in left if not ways.is_cut(state)] == []
