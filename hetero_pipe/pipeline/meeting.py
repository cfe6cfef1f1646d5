"""Meeting: where the workers of a job wait for one another, and learn who is lost.

A collective of Paddle cannot wait: on a CPU, gloo fails after 30 seconds, which no
argument changes, and one worker that reads, saves or evaluates a little longer would end
the job; on a GPU, NCCL waits for a worker that was killed for ever. So workers first meet
here, where a wait has no limit and a loss ends it, and reduce when all are there.
"""

import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hetero_pipe.errors import WorkerLost
from hetero_pipe.pipeline.frame import receive_frame, send_frame, watch_peer
from hetero_pipe.pipeline.handoff import Closed
from hetero_pipe.pipeline.hub import Hub
from hetero_pipe.pipeline.message import decode_message, encode_message
from hetero_pipe.units import format_seconds

__all__ = ["Channel", "Meeting", "Stop"]

# From the break of a connection, or the news of one who only followed, to that of what was first.
NEWS_SECONDS = 3.0

# For the hub to have heard all that this worker said, unless its process stands still.
HANG_UP_SECONDS = 3.0


@dataclass(frozen=True)
class Stop:
    """What a worker asked all for, that they end their steps.

    Attributes:
        reason: Who it was, and why.
        is_interrupt: Whether it was a Ctrl-C.
    """

    reason: str
    is_interrupt: bool


class Meeting:
    """One worker's seat at the meeting of all. Thread safe.

    The first worker holds the hub, to which each has one connection::

        worker 0 ──┐
        worker 1 ──┼── hub, a thread of worker 0
        worker 2 ──┘

    Args:
        coordinator: HOST:PORT where the hub listens.
        rank: Of this worker; 0 holds the hub.
        roles: What errors call each worker, by rank: `worker 1`.
        seconds: To wait until all are there.

    Raises:
        WorkerLost: Some did not come in time.
    """

    def __init__(
        self, coordinator: str, *, rank: int, roles: Sequence[str], seconds: float
    ) -> None:
        self.rank = rank
        self.num_workers = num_workers = len(roles)
        self._roles = roles
        self._coordinator = coordinator
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._answers: dict[tuple[str, int], list[bytes]] = {}
        self._gone: dict[int, str] = {}
        self._followed: set[int] = set()  # of those, who failed because of another
        self._first: str | None = None  # why the first one failed that did not follow another
        self._stop: Stop | None = None
        self._names: list[str] = []
        self._has_left = False
        deadline = time.monotonic() + seconds
        self._hub = Hub(coordinator, num_workers=num_workers) if rank == 0 else None
        try:
            self._stream = _connect(coordinator, seconds, first=roles[0])
        except BaseException:
            self._end_hub()
            raise
        self._thread = threading.Thread(target=self._listen, name="meeting")
        self._thread.start()
        try:
            name = f"{roles[rank]} ({_process()})"
            self._send({"kind": "hello", "rank": rank, "name": name})
            everyone = self.channel("hello", range(num_workers))
            self._names = everyone.gather(name, seconds=max(deadline - time.monotonic(), 0.0))
        except TimeoutError as error:
            ranks = [] if self._hub is None else self._hub.missing()
            missing = ", ".join(roles[rank] for rank in ranks) or "the others"
            self.leave()
            raise WorkerLost(
                f"{num_workers} workers must meet at {coordinator} within "
                f"{format_seconds(seconds)}, got nothing from {missing}; start them"
            ) from error
        except BaseException:
            self.leave()
            raise

    @property
    def local_address(self) -> str:
        """The address of this host by which it reaches the first worker's."""
        address: str = self._stream.getsockname()[0]
        return address

    def channel(self, name: str, ranks: Sequence[int]) -> "Channel":
        """Returns a channel of some workers: they meet there in their own order.

        Each makes it once by this name. Channels do not wait for one another.
        """
        return Channel(self, name, tuple(ranks))

    def fail(self, reason: str, *, is_of_another: bool = False) -> None:
        """Tells all that this worker cannot go on: whoever waits for it raises WorkerLost.

        Args:
            reason: Goes behind this worker's name.
            is_of_another: Whether another worker failed first, and this one because of it.
        """
        with suppress(OSError):
            self._send({"kind": "fail", "reason": reason, "is_of_another": is_of_another})

    def ask_to_stop(self, reason: str, *, is_interrupt: bool) -> None:
        """Tells all, this worker too, to end their steps; each looks at `stop` when it can.

        What is said at a channel later on arrives after it.
        """
        with suppress(OSError):
            self._send({"kind": "stop", "reason": reason, "is_interrupt": is_interrupt})

    @property
    def stop(self) -> Stop | None:
        """The first stop that was asked for; None is none since `forget_stop`."""
        return self._stop

    def forget_stop(self) -> None:
        """Is called by all when their steps have ended, so that they may begin others."""
        with self._changed:
            self._stop = None

    def leave(self) -> None:
        """Says goodbye and gives up the connection; calls under way raise WorkerLost."""
        with self._changed:
            if self._has_left:
                return
            self._has_left = True
            self._changed.notify_all()
        with suppress(OSError):
            self._send({"kind": "goodbye"})
            # The hub hangs up when it has heard all. To hang up first could reset the connection,
            # and with it what was said last.
            self._stream.shutdown(socket.SHUT_WR)
        self._thread.join(HANG_UP_SECONDS)
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._stream.close()
        self._end_hub()

    @property
    def failure(self) -> str | None:
        """Who failed first of all, and why, as far as it is known; None if nobody has."""
        return self._first

    def await_failure(self) -> str | None:
        """Returns who failed first of all, and why; waits a little for the news.

        Whoever notices a loss in another way, by a server, say, may be here before it. If
        nobody tells of a failure of its own, it is who asked to stop, or one that followed.
        """
        with self._changed:
            return self._await_failure()

    def _await_failure(self) -> str | None:
        self._changed.wait_for(
            lambda: self._first is not None or self._stop is not None or self._has_left,
            NEWS_SECONDS,
        )
        if self._first is not None:
            return self._first
        if self._stop is not None:
            return self._stop.reason
        return next((self._gone[rank] for rank in self._gone if rank in self._followed), None)

    def wait(
        self, channel: "Channel", key: tuple[str, int], data: bytes, seconds: float | None
    ) -> list[bytes]:
        """Sends what one says and returns what all say, for a channel."""
        head = {"kind": "say", "channel": key[0], "turn": key[1], "ranks": channel.ranks}
        with suppress(OSError):  # the thread that listens finds out who is gone
            self._send(head, data)
        with self._changed:
            is_over = self._changed.wait_for(
                lambda: key in self._answers or channel.is_closed or self._lost(channel.ranks),
                seconds,
            )
            if key in self._answers:
                return self._answers.pop(key)
            if channel.is_closed:
                raise Closed
            lost = self._lost(channel.ranks)
            if lost is not None:
                has_followed = not self._followed.isdisjoint(channel.ranks)
                raise WorkerLost((self._await_failure() if has_followed else self._first) or lost)
            assert not is_over
            raise TimeoutError

    def wake(self) -> None:
        """Makes waits look again, as a channel was closed."""
        with self._changed:
            self._changed.notify_all()

    def _lost(self, ranks: Sequence[int]) -> str | None:
        if self._has_left:
            return "this worker has left the meeting"
        return next((self._gone[rank] for rank in ranks if rank in self._gone), None)

    def _send(self, head: dict[str, Any], body: bytes = b"") -> None:  # as JSON has it
        with self._sending:
            send_frame(self._stream, head, body)

    def _listen(self) -> None:
        try:
            while True:
                head, body = receive_frame(self._stream)
                with self._changed:
                    self._take(head, body)
                    self._changed.notify_all()
        except OSError:
            with self._changed:
                first = self._names[0] if self._names else self._roles[0]
                reason = f"{first} is lost: it ended, and with it the meeting, {self._coordinator}"
                if 0 not in self._gone:
                    self._first = self._first or reason
                for rank in range(self.num_workers):
                    self._gone.setdefault(rank, reason)
                self._changed.notify_all()

    def _take(self, head: dict[str, Any], body: bytes) -> None:  # as JSON has it
        kind = head["kind"]
        if kind == "all":
            self._answers[head["channel"], head["turn"]] = _cut(body, head["sizes"])
        elif kind == "stop":
            self._stop = self._stop or Stop(head["reason"], head["is_interrupt"])
        else:
            self._gone.setdefault(head["rank"], head["reason"])
            if kind == "failed":
                self._first = self._first or head["reason"]
            elif kind == "followed":
                self._followed.add(head["rank"])

    def _end_hub(self) -> None:
        if self._hub is not None:
            self._hub.close()


class Channel:
    """Some workers of a meeting. Used by one thread at a time; closed by any.

    Attributes:
        ranks: Of the workers, in the order of what `gather` returns.
        is_closed: Whether `close` was called.
    """

    def __init__(self, meeting: Meeting, name: str, ranks: tuple[int, ...]) -> None:
        self._meeting = meeting
        self._name = name
        self.ranks = ranks
        self.is_closed = False
        self._turn = 0
        self._num_branches: dict[str, int] = defaultdict(int)

    def gather(self, value: Any, *, seconds: float | None = None) -> list[Any]:
        """Returns what each worker says, in the order of `ranks`; waits for all of them.

        Args:
            value: As `encode_message` takes it.
            seconds: To wait; None is no limit.

        Raises:
            Closed: The channel was closed.
            TimeoutError: Some did not say anything in time.
            WorkerLost: One of them is lost or has left; the message names it.
        """
        key = self._name, self._turn
        self._turn += 1
        data = encode_message(value)
        return [decode_message(d) for d in self._meeting.wait(self, key, data, seconds)]

    def branch(self, name: str) -> "Channel":
        """Returns another channel of the same workers. Each makes the same ones, in order."""
        number = self._num_branches[name]
        self._num_branches[name] += 1
        return Channel(self._meeting, f"{self._name}/{name}-{number}", self.ranks)

    def await_failure(self) -> str | None:
        """Returns who failed first, as the meeting's."""
        return self._meeting.await_failure()

    def close(self) -> None:
        """Makes a `gather` that waits, and later ones, raise Closed."""
        self.is_closed = True
        self._meeting.wake()


def _cut(body: bytes, sizes: Sequence[int]) -> list[bytes]:
    parts, start = [], 0
    for size in sizes:
        parts.append(body[start : start + size])
        start += size
    return parts


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _connect(coordinator: str, seconds: float, *, first: str) -> socket.socket:
    """Returns a stream to the hub, which may not be there yet."""
    host, _, port = coordinator.rpartition(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            stream = socket.create_connection((host, int(port)), timeout=max(seconds, 1.0))
            if stream.getsockname() == stream.getpeername():
                # Nobody listens: TCP lets a free local port connect to itself.
                stream.close()
                raise ConnectionRefusedError("nobody listens")
        except OSError as error:
            if time.monotonic() > deadline:
                raise WorkerLost(
                    f"{first} must listen on {coordinator} within {format_seconds(seconds)}, got "
                    f"{error}; start it, or name another HOST:PORT of its host (--coordinator)"
                ) from error
            time.sleep(0.02)
            continue
        stream.settimeout(None)
        watch_peer(stream)
        return stream
