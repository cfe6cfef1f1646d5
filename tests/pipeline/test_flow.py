"""The two ends of a bounded hand-off between hosts: never more waits than was granted."""

import threading
from collections import Counter, deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.errors import ConfigError, StageError, WorkerLost
from hetero_pipe.pipeline import Closed
from hetero_pipe.pipeline.remote import Credits, Intake


def take_or_give_up(credits):
    credits.take(is_given_up=lambda: credits._number == 0)


@given(
    capacity=st.integers(1, 4),
    num_peers=st.integers(1, 4),
    moves=st.lists(
        st.tuples(st.sampled_from(["send", "arrive", "take", "credit"]), st.integers(0))
    ),
)
def test_no_more_waits_than_was_granted_in_any_order(capacity, num_peers, moves):
    """Each message is on its way for as long as it likes; the order of a stream alone is kept."""
    credit_sets = [Credits() for _ in range(num_peers)]
    intake = Intake([f"peer {rank}" for rank in range(num_peers)], capacity=capacity)
    for credits in credit_sets:
        credits.grant(capacity)
    under_way = [deque() for _ in range(num_peers)]  # batches
    returning = [0] * num_peers  # credits
    sent, arrived, taken = Counter(), Counter(), Counter()
    for move, number in moves:
        rank = number % num_peers
        waiting = sum(arrived.values()) - sum(taken.values())
        if move == "send":
            try:  # one that has no credit waits; here it is given up at once
                take_or_give_up(credit_sets[rank])
            except Closed:
                continue
            under_way[rank].append(sent[rank])
            sent[rank] += 1
        elif move == "arrive" and under_way[rank]:
            intake.put(rank, under_way[rank].popleft())  # raises if there is no room
            arrived[rank] += 1
        elif move == "take" and waiting:
            whose, item = intake.take()
            assert item == taken[whose]  # in the order of its stream
            taken[whose] += 1
            returning[whose] += 1
        elif move == "credit" and returning[rank]:
            returning[rank] -= 1
            credit_sets[rank].grant(1)
        for peer in range(num_peers):
            assert sent[peer] - taken[peer] <= capacity
    for rank in range(num_peers):  # nothing is lost: all credits come back
        open_credits = credit_sets[rank]._number + returning[rank] + sent[rank] - taken[rank]
        assert open_credits == capacity


@given(st.lists(st.integers(0, 2), max_size=30))
def test_takes_are_fair(senders):
    """Between two items of a peer whose item waits, every other one that waits has its turn."""
    intake = Intake(["a", "b", "c"], capacity=30)
    for number, rank in enumerate(senders):
        intake.put(rank, number)
    left, order = Counter(senders), []
    while sum(left.values()):
        rank, _ = intake.take()
        order.append((rank, {r for r in left if left[r]}))
        left[rank] -= 1
    for (rank, _), (after, waiting) in pairwise(order):
        assert after != rank or waiting == {rank}


def test_a_peer_that_sends_without_credit_is_an_error():
    intake = Intake(["sparse worker 0"], capacity=2)
    intake.end(0, "fit")  # needs no credit
    intake.put(0, "a")
    intake.put(0, "b")
    with pytest.raises(StageError, match=r"sparse worker 0 may have 2 batches waiting, got one"):
        intake.put(0, "c")


def test_a_call_ends_when_every_peer_has_ended_it_and_the_next_one_waits():
    intake = Intake(["a", "b"], capacity=2)
    intake.end(0, "fit")
    intake.put(0, "evaluated early")
    intake.put(1, "trained late")
    assert intake.take() == (1, "trained late")
    intake.end(1, "fit")
    assert intake.take() == "fit"
    assert intake.take() == (0, "evaluated early")


def test_ends_of_different_calls_are_an_error():
    intake = Intake(["sparse worker 0 (h:1)", "sparse worker 1 (h:2)"], capacity=1)
    intake.end(0, "fit")
    intake.end(1, "predict")
    with pytest.raises(
        ConfigError, match=r"\(h:1\) at the end of fit and .*\(h:2\) at the end of p"
    ):
        intake.take()


@pytest.mark.parametrize("wait", ["take", "credit"])
@pytest.mark.parametrize("how", ["fail", "give up"])
def test_who_waits_is_woken_by_an_error_and_by_the_end(wait, how):
    intake, credits = Intake(["a"], capacity=1), Credits()
    is_given_up = threading.Event()
    waits = {
        "take": lambda: intake.take(is_given_up=is_given_up.is_set),
        "credit": lambda: credits.take(is_given_up=is_given_up.is_set),
    }
    raised = []

    def run():
        try:
            waits[wait]()
        except Exception as error:
            raised.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    if how == "fail":
        intake.fail(WorkerLost("gone"))
        credits.fail(WorkerLost("gone"))
    else:
        is_given_up.set()
        intake.wake()
        credits.wake()
    thread.join(10)
    assert raised == [WorkerLost if how == "fail" else Closed]


def test_the_first_error_stays():
    intake, credits = Intake(["a"], capacity=1), Credits()
    for error in (WorkerLost("the cause"), StageError("what followed")):
        intake.fail(error)
        credits.fail(error)
    with pytest.raises(WorkerLost, match="the cause"):
        intake.take()
    with pytest.raises(WorkerLost, match="the cause"):
        credits.take()
