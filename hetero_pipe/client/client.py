"""Client: what a worker holds to pull and push rows, wherever they live."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.client.ask import ask, await_all
from hetero_pipe.client.attach import attach_tables
from hetero_pipe.client.clock import clock_ahead
from hetero_pipe.client.connect import Connection, connect_embedded, connect_servers
from hetero_pipe.client.embedded import EmbeddedTransport
from hetero_pipe.client.exchange import answers_of, pull_rows, push_gradients
from hetero_pipe.client.patience import Retry
from hetero_pipe.client.route import RoutedKeys, assemble, positions_of, route_keys
from hetero_pipe.client.topology import Place, Topology
from hetero_pipe.client.transport import RangePlane, Reply, TraceAction
from hetero_pipe.errors import (
    CheckpointError,
    ConfigError,
    HeteroPipeError,
    RouteMismatch,
    TableNotFound,
)
from hetero_pipe.plan import RETRY_SECONDS
from ps_server.spans import Spans
from ps_server.spec import TableSpec
from ps_server.store import Ask, Lease, Origin, Rows, SnapshotError, buckets_of_snapshot

__all__ = ["Client"]

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


def _draw_worker(rng: np.random.Generator) -> int:
    """Returns a client's number: 64 bits, not 0."""
    return int(rng.integers(1, 2**64, dtype=np.uint64))


class Client:
    """The tables of a job, on its servers or in this process.

    A context manager. `route`, `pull` and `push` may be called from different
    threads at once; a call blocks until every server has answered.

    Where several workers train, each calls `join`, then `begin` before its first
    step, `end` after its last and `goodbye` when it leaves. Its *clock*, on the
    servers, is the number of steps that it has pushed: `begin(n)` sets it to n,
    the push of step n + 1 to n + 1. A worker that ends without `goodbye` is lost,
    and whoever waits for it is told so. `begin` sets one worker's clock alone:
    let all of them meet between it and the first pull.

    A durable server may go away and come back, on the same port or on another: a
    call waits for it and is made again, a push without being applied twice. So any
    call may take `retry_seconds` longer, and says in the log what it waits for.

    Buckets may move from server to server meanwhile (docs/scaling.md). A call that was
    refused for that is made again where they are by then, at servers that the client had
    not known before, too.

    Args:
        servers: HOST:PORT of each; or `["@FILE"]`, a file that says where they are
            and is replaced when one moves; None keeps the tables in this process.
        connect_timeout: Seconds to wait for servers that are not there yet.
        retry_seconds: To wait for a durable server that is away; 0 waits for none.
        rng: Draws this client's number, and the pauses between attempts; None takes
            one of its own. Two clients of one number would take each other's pushes
            for their own.

    Raises:
        ConfigError: An address is malformed, or two name the same server.
        ServerUnavailable: A server did not answer in time.
    """

    def __init__(
        self,
        servers: Sequence[str] | None,
        *,
        connect_timeout: float = 40.0,
        retry_seconds: float = RETRY_SECONDS,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._rng = rng or np.random.default_rng()
        found = (
            connect_embedded()
            if servers is None
            else connect_servers(
                servers,
                connect_timeout=connect_timeout,
                retry=Retry(retry_seconds, self._rng),
            )
        )
        self._topology = Topology(
            found.route,
            found.connections,
            connect=found.connect,
            enter=self._enter,
            leave=self._leave,
        )
        self._specs: dict[str, TableSpec] = {}
        self._membership: tuple[int, int, str] | None = None  # rank, of how many, name
        self._pushing = threading.Lock()  # guards what is below: pushes follow one another
        self._worker = _draw_worker(self._rng)
        self._num_pushes = 0  # by this number, on every server
        self._failed_step: int | None = None  # of a member's last push, if that failed

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the servers that own something, in the order of the route."""
        return tuple(each.ref.address for each in self._active)

    @property
    def _active(self) -> list[Connection]:
        return list(self._topology.now.active.values())

    @property
    def _rank(self) -> int | None:
        return None if self._membership is None else self._membership[0]

    def attach(
        self, specs: Iterable[TableSpec], *, fresh: bool = False, beside_others: bool = False
    ) -> int:
        """Creates the tables, or attaches to those that are there.

        Args:
            specs: Of the tables.
            fresh: Drop tables of these names first.
            beside_others: Whether other workers may do the same at this moment.

        Returns:
            The largest step pushed to any of them, 0 for new ones.

        Raises:
            SpecMismatch: A table of that name with another spec is there.
            RouteMismatch: The servers serve as part of another set.
            ServerError: Some servers hold a table and some do not.
        """
        wanted = {spec.name: spec for spec in specs}
        self._look()
        while True:
            route = self._topology.now.route
            try:
                step = attach_tables(
                    route, self._active, wanted, fresh=fresh, beside_others=beside_others
                )
            except RouteMismatch:
                self._look()
                if self._topology.now.route == route:
                    raise
            else:
                self._specs |= wanted
                return step

    def _look(self) -> None:
        """Sees that each server owns what this client takes it to own.

        Raises:
            RouteMismatch: One is of another job.
        """
        place = self._topology.now
        stats = {number: each.control.stats() for number, each in place.active.items()}
        found, _ = answers_of(stats)
        self._topology.settle(
            {
                number: RouteMismatch(
                    f"server {place.connections[number].ref.address} owns other buckets than "
                    "those that the routes of this job's servers tell; start over with "
                    "fresh=True (--fresh), then load a checkpoint"
                )
                for number, each in found.items()
                if each.route is not None
                and each.route.is_of_job(place.route)
                and each.share != place.share(number)
            }
        )

    def _enter(self, place: Place, connection: Connection) -> None:
        """Finds the tables, and joins, where a server has come to own something."""
        for spec in self._specs.values():
            connection.control.create_table(spec, place.route).result()
        if self._membership is not None:
            self._join(connection).result()

    def _leave(self, place: Place, number: int) -> None:
        """Says goodbye to a server that owns nothing any more, which may leave then."""
        connection = place.connections[number]
        if self._rank is None:
            return
        try:
            connection.control.goodbye(place.share(number), self._rank).result()
        except HeteroPipeError as error:  # it may have left already
            logger.debug("%s", error)
        connection.control.leave()

    def route(self, keys: NDArray[np.uint64]) -> RoutedKeys:
        """Returns the distinct keys of `keys` `[n]`, grouped by server."""
        return route_keys(keys, self._topology.now.route)

    def join(self, *, rank: int, num_workers: int, name: str | None = None) -> None:
        """Makes this process one of the workers that keep step on the servers.

        From then on a push moves the worker's clock, on every server.

        Args:
            rank: Among the workers that push, from 0.
            num_workers: How many these are; 1 without servers.
            name: What errors call it; HOST:PID if None.

        Raises:
            ConfigError: This client has joined already.
            ServerError: A server refused: the rank is taken, or the number is
                another than that of the others.
            WorkerLost: Another worker of the job is lost already.
        """
        if self._rank is not None:
            raise ConfigError(f"a client joins once, got rank={rank} after rank={self._rank}")
        if name is None:
            name = f"{socket.gethostname()}:{os.getpid()}"
        self._membership = rank, num_workers, name
        try:
            self._ask(self._join)
        except BaseException:  # it is a worker of all servers, or of none
            for connection in self._active:
                connection.control.leave()
            self._membership = None
            raise

    def _join(self, connection: Connection) -> Reply[bool]:
        assert self._membership is not None
        rank, num_workers, name = self._membership
        return connection.control.join(
            rank, num_workers=num_workers, name=name, worker=self._worker
        )

    def begin(self, first_step: int) -> None:
        """Starts this worker's clock: its next push is of step `first_step + 1`.

        Args:
            first_step: Steps that count as pushed, at least 0.

        Raises:
            ConfigError: This client has not joined.
            ServerError: A server refused, failed or did not answer.
            WorkerLost: The connection broke, so this worker is taken for lost.
        """
        rank = self._joined("begin")
        self._ask_owners(lambda c, share: c.control.set_clock(share, rank, first_step))

    def end(self) -> None:
        """Stops this worker's clock: nobody waits for it until it begins anew.

        Raises:
            ConfigError: This client has not joined.
            ServerError: A server refused, failed or did not answer.
            WorkerLost: The connection broke, so this worker is taken for lost.
        """
        rank = self._joined("end")
        self._ask_owners(lambda c, share: c.control.set_clock(share, rank, None))

    def goodbye(self) -> None:
        """Leaves: servers that were started with a number of workers wait for this of each.

        Raises:
            ConfigError: This client has not joined.
            ServerError: A server refused, failed or did not answer.
        """
        rank = self._joined("goodbye")
        self._ask_owners(lambda c, share: c.control.goodbye(share, rank))
        self._membership = None

    def _joined(self, method: str) -> int:
        if self._rank is None:
            raise ConfigError(f"{method} is of a worker that has joined; call join first")
        return self._rank

    def pull(
        self,
        keys: Mapping[str, RoutedKeys],
        *,
        insert: bool,
        after_step: int | None = None,
        step: int = 0,
    ) -> dict[str, NDArray[np.float32]]:
        """Returns the rows of each table's keys.

        Args:
            keys: By table.
            insert: Whether a missing row is created. Its weights are returned
                either way.
            after_step: Wait until every worker that has begun and not ended has
                pushed this step, numbered as in `push`; None does not wait. After
                t steps of its own, a worker that may miss k pushes of each other
                pulls with `after_step=max(t - k, 0)`.
            step: What a trace calls it, from 1 as in `push`; 0 is of no step.

        Returns:
            By table: float32 `[u, dim]`, row i that of key i, starting at a
            multiple of 64 bytes.

        Raises:
            ConfigError: `after_step` without `join`.
            ServerError: A server refused, failed or did not answer.
            WorkerLost: A worker that is waited for is gone.
        """
        rank = self._rank if after_step is None else self._joined("after_step")
        pieces = pull_rows(
            self._topology, keys, insert=insert, rank=rank, after_step=after_step, step=step
        )
        return {
            name: assemble(pieces[name], num_rows=len(routed.keys), dim=self._specs[name].dim)
            for name, routed in keys.items()
        }

    def push(
        self,
        keys: Mapping[str, RoutedKeys],
        gradients: Mapping[str, NDArray[np.float32]],
        *,
        step: int,
        weight: float | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Applies the gradients of each table and returns when every server has.

        It goes to every server, also where it has no keys, and is the next there of
        this client. Pushes of one client follow one another.

        With a weight, these are this worker's part of the step, and every
        server applies the mean of all workers' parts, by weight, as one update:
        the call returns when all workers have pushed theirs. One without data
        takes part with weight 0.

        Args:
            keys: By table.
            gradients: By table: float32 `[u, dim]`, row i that of key i.
            step: From 1: which update of the tables this is. Those of a worker
                that has joined follow one another, from `begin` on.
            weight: Samples that the gradients are the mean over, at least 0;
                None applies them as they are.
            origin: Which push of a leased range it is, whoever sends it; None is
                the next one of this client.

        Raises:
            ConfigError: `weight` without `join`.
            ServerError: A server refused, failed or did not answer; other
                servers may have applied their part.
            ValueError: Gradients have another shape; nothing is sent.
            WorkerLost: Another worker is gone. Where it was in the middle of a
                step, a server has applied all of the step or nothing; another
                server may have done otherwise.
        """
        if weight is not None:
            self._joined("weight")
        for name, gradient in gradients.items():
            wanted = (len(keys[name].keys), self._specs[name].dim)
            if gradient.shape != wanted:
                raise ValueError(
                    f"gradients of table {name!r} must have shape {list(wanted)}, got "
                    f"{list(gradient.shape)}"
                )
        moved = {name: keys[name] for name in gradients}
        number = self._numbering(step) if origin is None else nullcontext(origin)
        with self._pushing, number as known:
            push_gradients(
                self._topology,
                moved,
                gradients,
                step=step,
                rank=self._rank,
                weight=weight,
                worker=known.worker,
                sequence=known.sequence,
            )

    @contextmanager
    def _numbering(self, step: int) -> Iterator[Origin]:
        """Yields the number of a push.

        One that fails may be applied on some servers and not on others. A member may push
        that step again: it is the same push then, and applied where it was not. Another
        step is refused there, as it leaves one out. Who has not joined goes on as another
        client, whose pushes no server misses, or takes for others.
        """
        if self._failed_step != step:
            self._num_pushes += 1
        self._failed_step = None
        try:
            yield Origin(self._worker, self._num_pushes)
        except BaseException:
            if self._rank is None:
                self._worker, self._num_pushes = _draw_worker(self._rng), 0
            else:
                self._failed_step = step
            raise

    def num_rows(self) -> dict[str, int]:
        """Returns the rows of each attached table, over all servers.

        Raises:
            TableNotFound: A server has lost a table.
            ServerError: A server failed or did not answer.
        """
        stats = self._ask(lambda c: c.control.stats())
        for connection, held in zip(self._active, stats, strict=True):
            for name in self._specs:
                if name not in held.tables:
                    raise TableNotFound(
                        f"table {name!r} must be on every server, got none on "
                        f"{connection.ref.address}; it was restarted, or another trainer dropped it"
                    )
        return {name: sum(held.tables[name].num_rows for held in stats) for name in self._specs}

    def freeze(self) -> Sequence[int]:
        """Keeps the rows of all tables as they are now on every server, for `save`.

        Pulls and pushes go on. Each server freezes between two pushes, by itself: for the
        rows of one step, let no push be under way. A server keeps the latest freeze alone.

        Returns:
            The number of the freeze on each server, 0 where it owns nothing.

        Raises:
            ServerError: A server refused, failed or did not answer.
        """
        while True:  # all of one route, or a bucket that moves might be in none of them
            place = self._topology.now
            asked = {n: each.control.freeze(place.share(n)) for n, each in place.active.items()}
            frozen, refused = answers_of(asked)
            if not refused:
                return [frozen.get(number, 0) for number in range(len(place.connections))]
            self._topology.settle(refused)

    def release(self, freeze: Sequence[int]) -> None:
        """Lets go what `freeze` kept.

        Raises:
            ServerError: A server failed or did not answer.
        """
        asked = zip(self._topology.now.connections, freeze, strict=False)  # new ones come last
        await_all([each.control.release(number) for each, number in asked if number])

    def save(
        self, table: str, *, freeze: Sequence[int] | None = None
    ) -> Iterator[tuple[str, Iterable[bytes]]]:
        """Yields file name and content of each snapshot of a table, the content in pieces.

        Args:
            table: Its name.
            freeze: Whose rows they are, as `freeze` returned it; None is those of now,
                each row of another moment if pushes go on.

        Raises:
            ServerError: A server refused or failed, or keeps the freeze no longer.
        """
        if freeze is None:
            self._look()
        place = self._topology.now
        if freeze is None:
            for number, connection in place.active.items():
                yield from connection.control.save(place.share(number), table)
            return
        for connection, kept in zip(place.connections, freeze, strict=False):
            if kept:
                yield from connection.control.save(0, table, freeze=kept)

    def load(self, table: str, paths: Sequence[Path]) -> int:
        """Replaces a table's rows by those in snapshots, saved by any number of servers.

        Returns:
            Rows of the table after the load.

        Raises:
            CheckpointError: A snapshot is broken or of another table. No server
                that it was sent to has changed a row.
            ServerError: A server refused or failed.
        """
        try:
            buckets = {path: buckets_of_snapshot(path.name) for path in paths}
            for path in paths:
                path.open("rb").close()
        except SnapshotError as error:
            raise CheckpointError(str(error)) from error
        except OSError as error:
            raise CheckpointError(f"a snapshot must be readable, got {error}") from error

        def load_part(connection: Connection, share: int) -> Reply[int]:
            owned = self._topology.now.route.buckets_of(connection.ref.id)
            part = [path for path, held in buckets.items() if np.isin(owned, held).any()]
            return connection.control.load(share, table, part)

        return sum(self._ask_owners(load_part))

    def lease(self, table: str, ask: Ask, *, wait_seconds: float) -> tuple[Lease, int]:
        """Returns a range of the batches of a table's run, or what else to do.

        Args:
            table: Whose run it is.
            ask: Who asks for what.
            wait_seconds: How long the server may wait for a range that others hold.

        Returns:
            The lease, and the `Origin.worker` of the pushes of its range.

        Raises:
            ConfigError: The tables are in this process.
            ServerError: The server of bucket 0 refused, failed or did not answer.
        """
        at, leaser = self._leaser()
        share = self._topology.now.share(at)
        return leaser.lease(share, table, ask, wait_seconds=wait_seconds).result()

    def renew_lease(self, holder: int, *, seconds: float) -> None:
        """Says that a worker lives, and how long it may be silent. Raises as `lease` does."""
        self._leaser()[1].renew_lease(holder, seconds=seconds).result()

    def end_lease(
        self, table: str, number: int, *, holder: int, num_batches: int | None = None
    ) -> None:
        """Completes a range, or gives it back. Raises as `lease` does.

        Args:
            table: Whose run it is of.
            number: Of the range.
            holder: Of it.
            num_batches: That it has, all of them trained and finished: fewer than
                its size where the data end. None gives it back.
        """
        _, leaser = self._leaser()
        leaser.end_lease(table, number, holder=holder, num_batches=num_batches).result()

    def progress(self, worker: int) -> int | None:
        """Returns the last push by a number that every server has; None if one says that all are.

        Raises as `lease` does, of any server.
        """
        found = await_all([ranges.progress(worker) for ranges in self._ranges().values()])
        told = [each for each in found if each is not None]
        return min(told) if len(told) == len(found) else None

    def finish(self, first: int, last: int) -> None:
        """Has every server apply no push any more by the numbers from `first` to `last`.

        Raises as `lease` does, of any server.
        """
        await_all([ranges.finish(first, last) for ranges in self._ranges().values()])

    def set_rows(
        self,
        table: str,
        keys: NDArray[np.uint64],
        weights: NDArray[np.float32],
        *,
        worker: int,
    ) -> None:
        """Gives a table these rows and no others. Raises as `lease` does, of any server.

        Args:
            table: That is attached.
            keys: `[n]`, each once.
            weights: float32 `[n, dim]`, row i that of key i.
            worker: In whose name: nothing happens on a server where it has finished.
        """
        routed = self.route(keys)
        ordered = np.empty((len(keys), self._specs[table].dim), np.float32)
        ordered[routed.inverse] = weights
        place = self._topology.now
        where = positions_of(routed, place.route)
        await_all(
            [
                ranges.set_rows(
                    place.share(n), table, routed.keys[where[n]], ordered[where[n]], worker=worker
                )
                for n, ranges in self._ranges().items()
            ]
        )

    def _ranges(self) -> dict[int, RangePlane]:
        """Returns the way to each server that owns something, by its number."""
        active = self._topology.now.active
        found = {n: each.ranges for n, each in active.items() if each.ranges is not None}
        if len(found) < len(active):
            raise ConfigError(
                "ranges of batches are handed out by a parameter server, got tables in this "
                "process; name servers (--servers HOST:PORT,...)"
            )
        return found

    def _leaser(self) -> tuple[int, RangePlane]:
        """Returns the number of the server that leases, that of bucket 0, and the way to it."""
        at = int(self._topology.now.route.owners[0])
        return at, self._ranges()[at]

    def start_trace(self) -> None:
        """Lets every server record when it serves pulls and pushes; what it had is forgotten.

        Raises:
            ServerError: A server failed or did not answer.
        """
        self._ask(lambda c: c.control.trace(TraceAction.START))

    def stop_trace(self) -> list[Spans]:
        """Returns what each server did since `start_trace`, on the clock of this process.

        Raises:
            ServerError: A server failed or did not answer.
        """
        found = self._ask(lambda c: c.control.trace(TraceAction.STOP))
        return [
            trace.spans.shifted(-clock_ahead(connection.control))
            for connection, trace in zip(self._active, found, strict=True)
            if trace.spans is not None
        ]

    def clock_ahead(self) -> float:
        """Returns by how many seconds the first server's `time.perf_counter` is ahead of this one.

        Workers on many hosts that add it have one time line.

        Raises:
            ServerError: The server failed or did not answer.
        """
        return clock_ahead(self._active[0].control)

    def export_rows(self, table: str) -> Rows:
        """Returns a copy of a table of this process, its rows in the order of their keys."""
        return self._embedded().export_rows(self._topology.now.share(0), table)

    def import_rows(self, table: str, rows: Rows) -> None:
        """Replaces the rows of a table of this process."""
        self._embedded().import_rows(self._topology.now.share(0), table, rows)

    def _embedded(self) -> EmbeddedTransport:
        control = self._active[0].control
        assert isinstance(control, EmbeddedTransport), "servers give their rows as snapshots"
        return control

    def close(self) -> None:
        """Gives up the connections; calls under way in other threads fail."""
        self._topology.close()

    def _ask(self, start: Callable[[Connection], Reply[Value]]) -> list[Value]:
        return ask(self._active, start)

    def _ask_owners(self, start: Callable[[Connection, int], Reply[Value]]) -> list[Value]:
        """Asks every server by its share; anew, all of them, if buckets have moved meanwhile.

        An answer may be for less than its server owns in the end, so what is asked must be
        safe to repeat.
        """
        while True:
            place = self._topology.now
            answers, refused = answers_of(
                {n: start(each, place.share(n)) for n, each in place.active.items()}
            )
            if not refused:
                return list(answers.values())
            self._topology.settle(refused)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
