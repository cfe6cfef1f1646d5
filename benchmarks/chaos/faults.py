"""What goes wrong: kinds of faults, and what does them at random moments to a job that runs."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class Wire(Protocol):
    """What lies between the workers and one server."""

    delay: float  # seconds that what a server sends is held up

    def cut(self) -> None:
        """Closes every connection."""

    def drop_replies(self) -> None:
        """Loses what the server sends over the connections that are there."""


class Job(Protocol):
    """A job as faults see it."""

    def pids(self, kind: str) -> Mapping[str, int]:
        """Returns the processes of a kind, `server` or `worker`, that run now, by name."""

    num_servers: int

    def scale(self, number: int) -> str | None:
        """Begins to bring it to so many servers, or kills who is about it."""


@dataclass(frozen=True)
class Done:
    """A fault that was done.

    Attributes:
        seconds: After the first.
        kind: Of it.
        target: What it was done to.
    """

    seconds: float
    kind: str
    target: str


class Disk:
    """The file system of the servers' folders, small enough to be filled."""

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Takes all that is free."""
        block = bytes(1 << 20)
        with suppress(OSError), self._filler.open("ab", buffering=0) as file:
            while file.write(block):
                pass

    def free(self) -> None:
        """Gives it back."""
        self._filler.unlink(missing_ok=True)


@dataclass
class Faults:
    """Does faults to a job, one after another, at random moments of a Poisson process.

    Each begins and ends by itself: what was stopped goes on, what was filled is freed. What a
    fault needs and is not there now (a worker that is being started) makes it another one.

    Attributes:
        job: To which.
        wires: To its servers.
        disk: Of its servers; None is never filled.
        rng: When what is done to whom.
        rate: Faults a second.
        weights: How often each kind is, beside the others; kinds that are not there never are.
        done: What was done.
    """

    job: Job
    wires: Sequence[Wire]
    disk: Disk | None
    rng: random.Random
    rate: float
    weights: Mapping[str, float]
    done: list[Done] = field(default_factory=list)

    def run(self, over: threading.Event, *, seconds: float) -> None:
        """Does faults until the job is over, or for so long."""
        start = time.monotonic()
        while not over.wait(self.rng.expovariate(self.rate)):
            if time.monotonic() - start > seconds:
                return
            kind = self.rng.choices([*self.weights], [*self.weights.values()])[0]
            target = self._kinds[kind](over)
            if target is not None:
                self.done.append(Done(time.monotonic() - start, kind, target))

    def counts(self) -> dict[str, int]:
        """Returns how many of each kind were done."""
        return dict(sorted(Counter(each.kind for each in self.done).items()))

    @property
    def _kinds(self) -> dict[str, Callable[[threading.Event], str | None]]:
        return {
            "kill server": lambda _: self._kill("server"),
            "kill worker": lambda _: self._kill("worker"),
            "stop server": lambda over: self._stop("server", over),
            "stop worker": lambda over: self._stop("worker", over),
            "cut": self._cut,
            "lose replies": self._lose_replies,
            "delay": self._delay,
            "full disk": self._fill,
            "scale": self._scale,
        }

    def _scale(self, over: threading.Event) -> str | None:
        others = {*range(1, len(self.wires) + 1)} - {self.job.num_servers}
        return self.job.scale(self.rng.choice(sorted(others))) if others else None

    def _pick(self, kind: str) -> tuple[str, int] | None:
        found = sorted(self.job.pids(kind).items())
        return self.rng.choice(found) if found else None

    def _kill(self, kind: str) -> str | None:
        return self._send(self._pick(kind), signal.SIGKILL)

    def _stop(self, kind: str, over: threading.Event) -> str | None:
        picked = self._pick(kind)
        target = self._send(picked, signal.SIGSTOP)
        if target is not None:
            over.wait(self.rng.uniform(0.1, 2.0))
            self._send(picked, signal.SIGCONT)
        return target

    def _send(self, picked: tuple[str, int] | None, number: signal.Signals) -> str | None:
        if picked is None:
            return None
        name, pid = picked
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it has just ended
            return None
        return name

    def _cut(self, over: threading.Event) -> str:
        return self._on_wire(lambda wire: wire.cut())

    def _lose_replies(self, over: threading.Event) -> str:
        def lose(wire: Wire) -> None:
            wire.drop_replies()
            over.wait(self.rng.uniform(0.0, 0.5))  # in which requests reach the server
            wire.cut()

        return self._on_wire(lose)

    def _delay(self, over: threading.Event) -> str:
        def delay(wire: Wire) -> None:
            wire.delay = self.rng.uniform(0.01, 0.3)
            over.wait(self.rng.uniform(0.2, 1.0))
            wire.delay = 0.0

        return self._on_wire(delay)

    def _on_wire(self, do: Callable[[Wire], None]) -> str:
        index = self.rng.randrange(self.job.num_servers)
        do(self.wires[index])
        return f"wire to server {index}"

    def _fill(self, over: threading.Event) -> str | None:
        if self.disk is None:
            return None
        self.disk.fill()
        try:
            over.wait(self.rng.uniform(0.2, 2.0))
        finally:
            self.disk.free()
        return "the servers' disk"
