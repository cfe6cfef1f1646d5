"""A parameter server of one's own, in a process that ends with the block that uses it."""

import queue
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hetero_pipe.errors import ServerUnavailable
from hetero_pipe.launch.process import Process

__all__ = ["LocalServer", "local_server"]

START_SECONDS = 60.0
END_SECONDS = 6.0  # a ps-server ends within 4.5 s of SIGTERM


@dataclass(frozen=True)
class LocalServer:
    """A server of this process.

    Attributes:
        address: HOST:PORT.
        pid: Of its process.
    """

    address: str
    pid: int


@contextmanager
def local_server() -> Iterator[LocalServer]:
    """Runs a ps-server on a free port of 127.0.0.1.

    It ends with the block, and with this thread, whatever ends that.

    Raises:
        ServerUnavailable: It ended before it listened.
    """
    said: queue.SimpleQueue[str | int] = queue.SimpleQueue()
    errors: list[str] = []
    process = Process(
        [sys.executable, "-m", "ps_server", "--listen", "127.0.0.1:0", "--log-level", "error"],
        on_out=lambda line: said.put(line.decode()),
        on_err=lambda line: errors.append(line.decode(errors="replace")),
        on_end=said.put,
    )
    has_ended = False
    try:
        first = said.get(timeout=START_SECONDS)
        if isinstance(first, int):
            has_ended = True
            raise ServerUnavailable(
                f"a ps-server must start, got exit code {first}: {''.join(errors).strip()}"
            )
        yield LocalServer(first.split()[-1], process.pid)
    except queue.Empty:
        raise ServerUnavailable(
            f"a ps-server must listen within {START_SECONDS:.0f} s, got silence"
        ) from None
    finally:
        for number in () if has_ended else (signal.SIGTERM, signal.SIGKILL):
            process.send(number)
            if _ends(said):
                break


def _ends(said: "queue.SimpleQueue[str | int]") -> bool:
    """Returns whether a process says in time that it has ended."""
    try:
        while not isinstance(said.get(timeout=END_SECONDS), int):
            pass
    except queue.Empty:
        return False
    return True
