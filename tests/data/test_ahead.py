"""What a thread makes early comes in order, and the thread goes with its iterator."""

import threading

import pytest

from hetero_pipe.data.ahead import ahead


def test_items_come_in_order_and_failures_where_they_belong():
    def items():
        yield from range(5)
        raise KeyError("late")

    iterator = ahead(items(), depth=3)
    assert [next(iterator) for _ in range(5)] == list(range(5))
    with pytest.raises(KeyError, match="late"):
        next(iterator)


def test_at_most_depth_items_wait(wait_until):
    made = []

    def items():
        for i in range(10):
            made.append(i)
            yield i

    iterator = ahead(items(), depth=2)
    assert next(iterator) == 0
    wait_until(lambda: len(made) == 3)  # the one that was taken, and two that wait
    assert next(iterator) == 1
    wait_until(lambda: len(made) == 4)
    iterator.close()
    assert made == [0, 1, 2, 3]


def test_closing_closes_the_generator_and_ends_the_thread():
    closed = threading.Event()
    threads = set()

    def items():
        try:
            while True:
                threads.add(threading.current_thread())
                yield 0
        finally:
            closed.set()

    iterator = ahead(items(), depth=2)
    next(iterator)
    iterator.close()
    assert closed.is_set()
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert not thread.is_alive()
