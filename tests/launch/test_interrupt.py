"""Signals as events."""

import os
import queue
import signal

import pytest

from hetero_pipe.launch.interrupt import told_of_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_told_though_the_main_thread_runs_no_handler(number):
    told = queue.SimpleQueue()
    before = signal.getsignal(number)
    with told_of_signals(told.put):
        os.kill(os.getpid(), number)
        assert told.get(timeout=30) == number
    assert signal.getsignal(number) == before


def test_other_signals_are_not_told():
    told = queue.SimpleQueue()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with told_of_signals(told.put):
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert told.get(timeout=30) == signal.SIGTERM
    finally:
        signal.signal(signal.SIGUSR1, before)
