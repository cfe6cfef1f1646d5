"""Hub: hands round at a meeting what each worker says, and tells who is gone."""

import selectors
import socket
import threading
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hetero_pipe.errors import ConfigError
from hetero_pipe.pipeline.frame import receive_frame, send_frame, watch_peer

__all__ = ["Hub"]

# A worker that stands still for so long within a frame is lost, lest all wait for it.
STALL_SECONDS = 60.0


@dataclass
class _Peer:
    """A worker as the hub has it."""

    stream: socket.socket
    rank: int
    name: str
    is_gone: bool = False


class Hub:
    """The middle of a star of workers, one thread.

    1. What is said at a turn of a channel goes to all of its workers once all have said
       theirs, in the order of their ranks.
    2. A worker whose stream breaks without a goodbye, or that fails, is told to all, once,
       with its name. One that has said goodbye is told as well: nobody waits for it.
       Failures are told as they come, so the first one that is no other's is the first for all.
    3. Streams keep order, so an answer arrives before the goodbye of one that had it.
    4. It hangs up on a worker once it has heard all that this one said.

    Args:
        address: HOST:PORT to listen on.
        num_workers: That come.

    Raises:
        ConfigError: It cannot listen there.
    """

    def __init__(self, address: str, *, num_workers: int) -> None:
        host, _, port = address.rpartition(":")
        try:
            self._listener = socket.create_server((host, int(port)), backlog=num_workers)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"workers meet at a free HOST:PORT of the first one's host, got {error} for "
                f"{address!r}; name another (--coordinator)"
            ) from error
        self._num_workers = num_workers
        self._streams: dict[socket.socket, _Peer | None] = {}  # None until it says who it is
        self._peers: dict[int, _Peer] = {}
        self._news: list[dict[str, Any]] = []  # of those who are gone, in their order
        # What was said so far at a turn of a channel, by rank.
        self._said: dict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="hub")
        self._thread.start()

    def missing(self) -> list[int]:
        """Returns the ranks of the workers that have not come."""
        return [rank for rank in range(self._num_workers) if rank not in self._peers]

    def close(self) -> None:
        """Ends the hub. Those who are still there see its end as that of the first worker."""
        self._waker.close()
        self._thread.join()
        self._woken.close()
        self._selector.close()
        self._listener.close()

    def _run(self) -> None:
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._hear(key.data)
        finally:
            for stream in self._streams:
                stream.close()

    def _accept(self) -> None:
        stream, _ = self._listener.accept()
        stream.settimeout(STALL_SECONDS)
        watch_peer(stream)
        self._streams[stream] = None
        self._selector.register(stream, selectors.EVENT_READ, data=stream)

    def _hear(self, stream: socket.socket) -> None:
        """Takes one frame from a stream that has begun to bring it."""
        peer = self._streams[stream]
        try:
            head, body = receive_frame(stream)
            if peer is None:
                self._greet(stream, int(head["rank"]), str(head["name"]))
                return
        except (OSError, ValueError, KeyError):  # a stranger speaks something else
            self._selector.unregister(stream)
            stream.close()
            del self._streams[stream]
            if peer is not None:
                self._lose(peer, "is lost: it ended without a goodbye", kind="failed")
            return
        if head["kind"] == "say":
            self._say(peer, (head["channel"], head["turn"]), head["ranks"], body)
        elif head["kind"] == "fail":
            kind = "followed" if head["is_of_another"] else "failed"
            self._lose(peer, head["reason"], kind=kind)
        elif head["kind"] == "stop":
            for other in self._peers.values():
                self._tell(other, {**head, "reason": f"{peer.name} {head['reason']}"})
        else:
            self._lose(peer, "has left", kind="left")

    def _greet(self, stream: socket.socket, rank: int, name: str) -> None:
        peer = self._streams[stream] = self._peers[rank] = _Peer(stream, rank, name)
        for news in self._news:
            self._tell(peer, news)

    def _say(self, peer: _Peer, key: tuple[str, int], ranks: list[int], body: bytes) -> None:
        said = self._said[key]
        said[peer.rank] = body
        if len(said) < len(ranks):
            return
        del self._said[key]
        parts = [said[rank] for rank in ranks]
        head = {"kind": "all", "channel": key[0], "turn": key[1], "sizes": [*map(len, parts)]}
        # The worker of this very process last. It may next start Paddle, which holds the GIL until
        # the others have come, and they could not be told to.
        for rank in sorted(ranks, reverse=True):
            self._tell(self._peers[rank], head, b"".join(parts))

    def _lose(self, peer: _Peer, reason: str, *, kind: str) -> None:
        """Tells all others that one has `failed`, `followed` one that has, or `left`."""
        if peer.is_gone:
            return
        peer.is_gone = True
        news = {"kind": kind, "rank": peer.rank, "reason": f"{peer.name} {reason}"}
        self._news.append(news)
        for other in self._peers.values():
            if not other.is_gone:
                self._tell(other, news)

    def _tell(self, peer: _Peer, head: dict[str, Any], body: bytes = b"") -> None:  # as JSON
        with suppress(OSError):  # its end is heard as such
            send_frame(peer.stream, head, body)
