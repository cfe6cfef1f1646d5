"""Link: the way to one durable server, which is made anew when it breaks.

What happens to a call::

    call ──── answered ──────────────────────────────────────────> its result
      └─ the server is away ─ wait ─ find it ─ its id? ─ join again ─┐
           ^      └──────────<───────────┘ not yet                   │
           └─────────────────── made again ──────────────────────────┘

Many calls may be under way on a connection; one of them makes it anew, and the
others wait for that.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

from hetero_pipe.client.patience import Patience, Retry
from hetero_pipe.client.status import is_full, is_passing, reason_of
from hetero_pipe.client.transport import Reply
from hetero_pipe.client.transport.grpc import ATTEMPT_SECONDS, GrpcTransport, closed
from hetero_pipe.errors import (
    HeteroPipeError,
    RouteMismatch,
    ServerError,
    ServerUnavailable,
    TableNotFound,
    WorkerLost,
)
from hetero_pipe.units import format_seconds

__all__ = ["Link", "Membership"]

logger = logging.getLogger(__name__)

# How long a server that is looked for may take to say who it is.
PROBE_SECONDS = 5.0


@dataclass(frozen=True)
class Membership:
    """What a worker joined as.

    Attributes:
        rank: Among the workers.
        num_workers: How many these are.
        name: HOST:PID.
        worker: The client's number.
        is_confirmed: Whether the server has said that it is a member.
    """

    rank: int
    num_workers: int
    name: str
    worker: int
    is_confirmed: bool = False


class Link:
    """A connection to one durable server, which may be away for a while, and its membership.

    All methods may be called from any thread.

    Args:
        server_id: Of the server. Whoever else answers in its place is refused.
        transport: A connection to it; owned from now on.
        locate: Returns HOST:PORT of the server as of now; None is where it was.
        retry: How calls are repeated.

    Attributes:
        retry: As given.
    """

    def __init__(
        self,
        server_id: str,
        transport: GrpcTransport,
        *,
        locate: Callable[[], str | None],
        retry: Retry,
    ) -> None:
        self._server_id = server_id
        self._locate = locate
        self.retry = retry
        transport.call_seconds = ATTEMPT_SECONDS
        self._closed = threading.Event()
        self._changed = threading.Condition()  # guards all below
        self._transport = transport
        self._next: GrpcTransport | None = None  # that is being tried
        self._is_reconnecting = False
        self._membership: Membership | None = None
        self._rejoining: threading.Thread | None = None

    @property
    def address(self) -> str:
        """HOST:PORT where the server was last found."""
        return self.transport.address

    @property
    def transport(self) -> GrpcTransport:
        """The connection of calls that begin now."""
        with self._changed:
            return self._transport

    def check(self, transport: GrpcTransport) -> None:
        """Refuses a connection that broke, which only the end of its membership's stream tells.

        Raises:
            ServerUnavailable: It is one.
        """
        with self._changed:
            is_member = self._membership is not None and self._membership.is_confirmed
        if is_member and not transport.is_joined:
            raise ServerUnavailable("the connection broke")

    def join(self, transport: GrpcTransport, membership: Membership) -> Reply[bool]:
        """Asks a connection's server to take a worker for a member, from then on until it leaves.

        Whoever makes the connection anew joins again.
        """
        return transport.join(
            membership.rank,
            num_workers=membership.num_workers,
            name=membership.name,
            worker=membership.worker,
            on_end=lambda: self._left(transport),
        )

    def set_membership(self, membership: Membership | None) -> None:
        """Says what a new connection is to join as; None does not."""
        with self._changed:
            self._membership = membership

    def confirm(self, membership: Membership) -> None:
        """Says that the server has taken it."""
        with self._changed:
            if self._membership is membership:
                self._membership = replace(membership, is_confirmed=True)
            transport = self._transport
        if not transport.is_joined:  # its end came before it was a member
            self._left(transport)

    def close(self) -> None:
        """Gives up the connection, and every wait for another."""
        self._closed.set()
        with self._changed:
            found, rejoining = [self._transport, self._next], self._rejoining
            self._changed.notify_all()
        for transport in found:
            if transport is not None:
                transport.close()
        if rejoining is not None:
            rejoining.join()

    def mend(self, broken: GrpcTransport, error: HeteroPipeError, patience: Patience) -> None:
        """Returns when a call that failed may be made again.

        Args:
            broken: What it was made on.
            error: How it failed.
            patience: Of the call.

        Raises:
            HeteroPipeError: It may not; `error` itself, unless the server is gone for
                too long, or has lost what it had.
        """
        if self._closed.is_set() or not self._is_passing(broken, error):
            raise error
        if is_full(error):
            self._tell("refuses a call", error, patience)
            patience.was_refused = True
            self._pause(error, patience)
            return
        with self._changed:
            while self._is_reconnecting and self._transport is broken:
                if patience.left <= 0:
                    self._give_up(error)
                self._changed.wait(patience.left)
            if self._closed.is_set():
                raise error
            if self._transport is not broken:
                return
            self._is_reconnecting = True
        try:
            self._reconnect(broken, error, patience)
        finally:
            with self._changed:
                self._is_reconnecting = False
                self._next = None
                self._changed.notify_all()

    def end(self, patience: Patience) -> None:
        """Says that a call which waited for room was answered. That a server is back is said."""
        if patience.was_refused:
            patience.was_refused = patience.is_told = False  # who refuses it again is told again
            logger.info("server %s goes on after %s", self.address, format_seconds(patience.spent))

    def _is_passing(self, transport: GrpcTransport, error: HeteroPipeError) -> bool:
        """Whether an error is not of the call, but of how it was made.

        grpc connects anew by itself when a call begins after its connection broke, and may find
        another server there, or one that does not know that this worker is back.
        """
        if isinstance(error, WorkerLost):
            return self._membership is not None and not transport.is_joined
        if isinstance(error, (TableNotFound, RouteMismatch)):
            return self._is_another(transport)
        return is_passing(error)

    def _is_another(self, transport: GrpcTransport) -> bool:
        try:
            return transport.stats(seconds=PROBE_SECONDS).result().id != self._server_id
        except ServerUnavailable:
            return True

    def _reconnect(self, broken: GrpcTransport, error: HeteroPipeError, patience: Patience) -> None:
        """Makes a new connection the one of all calls.

        Raises:
            HeteroPipeError: The server is not back in time, or another than it was.
        """
        self._tell("is away", error, patience)
        while True:
            broken.close()  # other calls on it fail, and come to `mend`
            self._pause(error, patience)
            named = self._locate()
            transport = broken.renewed(named or broken.address)
            try:
                self._try(transport, is_named=named is not None)
            except HeteroPipeError as failure:
                transport.close()
                if not is_passing(failure):
                    raise
                error = failure
                continue
            except BaseException:
                transport.close()
                raise
            with self._changed:
                self._transport = broken = transport
                is_whole = self._membership is None or transport.is_joined
            if is_whole:  # it has not broken again meanwhile
                break
        logger.info("server %s is back after %s", transport.address, format_seconds(patience.spent))

    def _try(self, transport: GrpcTransport, *, is_named: bool) -> None:
        """Sees that it is the server that it was, and joins again.

        Args:
            transport: A new connection.
            is_named: Whether a file says that it is there.

        Raises:
            HeteroPipeError: It is not, or it did not answer.
        """
        with self._changed:
            self._next = transport  # for `close`
        if self._closed.is_set():
            raise closed(transport.address)
        found = transport.stats(seconds=PROBE_SECONDS).result().id
        if found != self._server_id:
            lost = (
                f"server {transport.address} must be the one that holds the rows of this job, with "
                f"id {self._server_id}, got id {found}: it has lost them, or is another; start it "
                "with the --data-dir that it had, or all anew from a checkpoint, with fresh=True "
                "(--fresh) and load (--load)"
            )
            # A file may be older than the server that it names: another may listen there by now.
            raise ServerUnavailable(lost) if is_named else ServerError(lost)
        with self._changed:
            membership = self._membership
        if membership is None:
            return
        is_back = self.join(transport, membership).result()
        if membership.is_confirmed and not is_back:
            transport.leave()
            raise WorkerLost(
                f"worker {membership.rank} ({membership.name}) must be known to server "
                f"{transport.address} when it comes back, got a server that has given it up: it "
                "was away for too long; start all workers again, from a checkpoint"
            )

    def _left(self, transport: GrpcTransport) -> None:
        """Comes back when the stream of a membership has ended; called of a thread of grpc.

        A worker may be busy for long without a call; the server waits for it for
        `--rejoin-seconds` alone.
        """
        with self._changed:
            membership = self._membership
            if (
                membership is None
                or not membership.is_confirmed
                or transport is not self._transport
                or self._is_reconnecting
                or self._closed.is_set()
            ):
                return
            self._rejoining = threading.Thread(
                target=self._rejoin, args=(transport,), name="rejoin", daemon=True
            )
            self._rejoining.start()

    def _rejoin(self, transport: GrpcTransport) -> None:
        broken = ServerUnavailable("the connection broke")
        try:
            self.mend(transport, broken, Patience(self.retry))
        except HeteroPipeError as error:
            logger.debug("%s", error)  # the next call meets it, too

    def _tell(self, what: str, error: HeteroPipeError, patience: Patience) -> None:
        if patience.is_told or patience.left <= 0:
            return
        patience.is_told = True
        logger.warning(
            "server %s %s (%s): training waits up to %s for it",
            self.address,
            what,
            reason_of(error),
            format_seconds(self.retry.seconds),
        )

    def _pause(self, error: HeteroPipeError, patience: Patience) -> None:
        """Waits for the next attempt.

        Raises:
            HeteroPipeError: There is to be none, or `close` was called.
        """
        delay = patience.next_delay()
        if delay is None:
            self._give_up(error)
        if self._closed.wait(delay):
            raise error

    def _give_up(self, error: HeteroPipeError) -> NoReturn:
        if not isinstance(error, ServerUnavailable):
            raise error
        raise ServerUnavailable(
            f"server {self.address} must be back within {format_seconds(self.retry.seconds)}, got "
            f"{reason_of(error)}; start it again with the --data-dir that it had, its rows are "
            "there, then the workers; or wait longer for it (--retry-seconds)"
        ) from error
