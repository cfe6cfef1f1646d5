"""Ctrl-C and SIGTERM as events, none of which is missed."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["told_of_signals"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def told_of_signals(tell: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Has `tell` called with each SIGINT and SIGTERM, in a thread; entered by the main thread.

    A handler in Python runs when the main thread runs next. One that has just begun
    to wait for a lock, as a queue does, sleeps on; what the interpreter writes to a
    socket wakes somebody at once.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def read() -> None:
        for number in iter(lambda: reader.recv(1), b""):
            if number[0] in SIGNALS:  # a handler of somebody else's may write, too
                tell(signal.Signals(number[0]))

    thread = threading.Thread(target=read, name="signals", daemon=True)
    thread.start()
    handlers = [(number, signal.signal(number, lambda *_: None)) for number in SIGNALS]
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers:
            signal.signal(number, handler)
        writer.close()
        thread.join()
        reader.close()
