"""One process of a job on this host: its lines, its signals and its end."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from hetero_pipe.launch import child
from hetero_pipe.launch.run import FOLLOWED

__all__ = ["FIRST_SECONDS", "KILL_SECONDS", "Ended", "OnLine", "Output", "Process", "copier"]

OnLine = Callable[[bytes], None]

# From SIGTERM, or a second Ctrl-C, to SIGKILL: a ps-server ends within 4.5 s.
KILL_SECONDS = 6.0

# From the end of a process that failed because another had, to that of the other.
FIRST_SECONDS = 10.0

# What is gone has said all it will, unless somebody it started, and who left its session, may.
DRAIN_SECONDS = 5.0


class Output:
    """Where lines of several threads go, whole.

    Args:
        stream: Binary. Once nobody reads it, or while its disk is full, lines
            are dropped: a process must not wait for a reader of its output who
            has left.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._is_closed = False

    def write(self, line: bytes) -> None:
        """Writes a line at once."""
        with self._lock:
            if self._is_closed:
                return
            try:
                self._stream.write(line)
                self._stream.flush()
            except OSError as error:
                self._is_closed = error.errno != errno.ENOSPC


def copier(name: str, output: Output, log: Output | None) -> OnLine:
    """Returns what copies a line, with a name in front and to a log without."""
    prefix = f"[{name}] ".encode()

    def copy(line: bytes) -> None:
        output.write(prefix + line.removesuffix(b"\n") + b"\n")
        if log is not None:
            log.write(line)

    return copy


@dataclass(frozen=True)
class Ended:
    """A process has.

    Attributes:
        name: Of the process.
        code: Its exit code or, negative, the signal that ended it.
        said: The last line of its stderr, if that was listened to.
    """

    name: str
    code: int
    said: str = ""

    def __str__(self) -> str:
        how = (
            f"ended with exit code {self.code}"
            if self.code >= 0
            else f"was ended by signal {-self.code} ({signal.strsignal(-self.code)})"
        )
        because = ", because of another process" if self.code == FOLLOWED else ""
        return f"{self.name} {how}{because}"

    @property
    def shell_code(self) -> int:
        """As a shell gives it: 128 and its number for a signal."""
        return self.code if self.code >= 0 else 128 - self.code


class Process:
    """A child in a session of its own, so that no Ctrl-C reaches it but ours.

    It ends with the thread that made it, and what it has started ends with it.
    Callbacks come in threads of this class.

    Args:
        command: The program's path and its arguments.
        on_out: Called with each line of its stdout; the last may lack its end.
        on_err: The same of its stderr.
        on_end: Called once, after its last line, with its exit code; that of a
            signal is negative.
        inherit: Files that are open in the child, too.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        on_out: OnLine,
        on_err: OnLine,
        on_end: Callable[[int], None],
        inherit: Sequence[int] = (),
    ) -> None:
        self._lock = threading.Lock()
        self._is_reaped = False
        # Paddle's launcher may have started us: its role is not our child's.
        environment = {k: v for k, v in os.environ.items() if k != "TRAINING_ROLE"}
        self._popen = subprocess.Popen(
            [sys.executable, "-IS", child.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(inherit),
            env=environment,
        )
        pipes = ((self._popen.stdout, on_out), (self._popen.stderr, on_err))
        copiers = [_start(_copy, pipe, on_line) for pipe, on_line in pipes]
        _start(self._wait, copiers, on_end)

    @property
    def pid(self) -> int:
        """Its id, until it has ended."""
        return self._popen.pid

    def send(self, number: int) -> None:
        """Sends it a signal, if it has not ended."""
        with self._lock:  # once it is reaped, its id may be another's
            if not self._is_reaped:
                os.kill(self._popen.pid, number)

    def _wait(self, copiers: Sequence[threading.Thread], on_end: Callable[[int], None]) -> None:
        os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)  # its id stays its own
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        with self._lock:
            code = self._popen.wait()
            self._is_reaped = True
        for copier in copiers:
            copier.join(DRAIN_SECONDS)
        on_end(code)


def _start(run: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=run, args=arguments, daemon=True)
    thread.start()
    return thread


def _copy(lines: IO[bytes], on_line: OnLine) -> None:
    with lines:
        for line in lines:
            on_line(line)
