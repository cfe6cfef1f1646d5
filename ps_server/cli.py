"""The `ps-server` command. Light: it catches signals before it loads what takes a second."""

import os
import signal
from collections.abc import Sequence

__all__ = ["main"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a server until it is told to stop or its workers have left; returns the exit code.

    A signal that comes while the server still loads ends the process at once,
    with code 0: a launcher that gives up a job stops servers that are not up
    yet and wants to see them end well. The process is the server's own: the
    handlers stay.
    """
    for number in SIGNALS:
        signal.signal(number, lambda *_: os._exit(0))
    # Whoever starts a server with signals blocked loses none, however early it is.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    from ps_server.daemon import run  # noqa: PLC0415  # grpc is slow to load

    return run(arguments)
