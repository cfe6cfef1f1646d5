"""The workers of a job on this host: they start together, and if one fails, all end."""

import math
import signal
from collections.abc import Callable, Mapping, Sequence

from hetero_pipe.launch.process import FIRST_SECONDS, KILL_SECONDS, Ended, Process
from hetero_pipe.launch.run import FOLLOWED

__all__ = ["Workers"]


class Workers:
    """Processes of which none goes on without the others.

    All times are seconds of one clock that never goes back.

    Args:
        spawn: Starts one, of a name and the arguments of its Python.
        are_alone: Whether each goes on without the others after all: then who fails
            is started again by itself, and nobody fails because another has.

    Attributes:
        processes: Those that run, by name.
        started: When they were, all at once.
    """

    def __init__(
        self, spawn: Callable[[str, Sequence[str]], Process], *, are_alone: bool = False
    ) -> None:
        self._spawn = spawn
        self._are_alone = are_alone
        self.processes: dict[str, Process] = {}
        self.started = -math.inf
        self.is_stopping = False
        self._followed: Ended | None = None  # the first that failed because another had
        self._tell_at = math.inf  # that one, if no other ends before
        self._kill_at = math.inf

    def start(self, commands: Mapping[str, Sequence[str]], *, now: float) -> None:
        """Starts them, all by name; none may run."""
        assert not self.processes
        self.is_stopping, self._followed = False, None
        self.started, self._tell_at, self._kill_at = now, math.inf, math.inf
        for name, command in commands.items():
            self.processes[name] = self._spawn(name, command)

    def start_again(self, name: str, command: Sequence[str]) -> None:
        """Starts one that has failed."""
        assert name not in self.processes
        self.processes[name] = self._spawn(name, command)

    def stop(self, number: int, *, now: float, seconds: float = KILL_SECONDS) -> None:
        """Sends all a signal; those that are left after so many seconds are killed."""
        self.is_stopping = True
        self._kill_at = min(self._kill_at, now + seconds)
        self._send(number)

    def note(self, ended: Ended, *, now: float) -> Ended | None:
        """Notes the end of one; returns it if it is a failure, the first one.

        One that failed because of another is not, until `check` says so.
        """
        del self.processes[ended.name]
        if self.is_stopping or ended.code == 0:
            return None
        if ended.code != FOLLOWED or self._are_alone:
            return ended
        if self._followed is None:
            self._followed, self._tell_at = ended, now + FIRST_SECONDS
        return None

    def check(self, *, now: float) -> Ended | None:
        """Kills those whose time is up; returns who failed because of another, if no other did."""
        if now >= self._kill_at:
            self._kill_at = math.inf
            self._send(signal.SIGKILL)
        if self.is_stopping or (self.processes and now < self._tell_at):
            return None
        return self._followed

    @property
    def are_done(self) -> bool:
        """Whether all have ended well by themselves."""
        has_run = self.started > -math.inf and not self.processes
        return has_run and not self.is_stopping and self._followed is None

    @property
    def next_check(self) -> float:
        """When `check` has something to do, infinity if nothing."""
        return min(self._kill_at, math.inf if self.is_stopping else self._tell_at)

    def _send(self, number: int) -> None:
        for process in self.processes.values():
            process.send(number)
