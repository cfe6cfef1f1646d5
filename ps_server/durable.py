"""A store that comes back: a journal of its changes, checkpoints, and recovery.

::

    DIR/server.json      who the server is: its id, so that it stays the same in the route
    DIR/checkpoints/     all that it held at some moments
    DIR/journal/         what it has changed since the older of them

A row that was pulled and never pushed is in no journal: its first weights are a function of the
table's seed and its key, so that it is the same when it is pulled again.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import numpy as np

from ps_server.applied import AppliedState
from ps_server.change import Change, CreateTable, NotLogged
from ps_server.checkpoint import (
    KEEP,
    Checkpoint,
    Contents,
    checkpoint_numbers,
    newest_checkpoint,
    remove_leftovers,
    write_checkpoint,
)
from ps_server.journal import Journal, JournalError, first_number, replay
from ps_server.moves import Incoming, MovesState, Prepared
from ps_server.ranges import RangesState
from ps_server.record import (
    change_from_record,
    change_to_record,
    roster_from_json,
    roster_to_json,
    route_from_json,
    route_to_json,
)
from ps_server.side_by_side import side_by_side
from ps_server.snapshot import read_snapshot
from ps_server.spec import NUM_BUCKETS, TableSpec
from ps_server.store import Held, Stopping, Store

__all__ = ["JOURNAL_LIMIT", "Durable", "Identity", "refuse_data"]

logger = logging.getLogger(__name__)

JOURNAL_LIMIT = 1 << 30
"""Bytes of journal after which a checkpoint is written, by default."""

# A trainer that saves goes on from there, not from a journal; but one that saves every few steps
# must not have the server write all its rows each time.
FREEZE_SHARE = 0.25  # of the limit

# After a checkpoint that failed, such as for a full disk, so much more journal is kept before the
# next is tried.
RETRY_SHARE = 0.125  # of the limit

FORMAT = "ps_server-data-v1"


class Identity:
    """Who a server is, in its folder.

    Attributes:
        id: Of the server: that in the folder, or a new one.
        is_new: Whether none was there.

    Raises:
        JournalError: The file in the folder is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "server.json"
        self.is_new = not self._path.exists()
        self.id = uuid4().hex if self.is_new else self._read()

    def _read(self) -> str:
        try:
            described = json.loads(self._path.read_bytes())
            server_id, found = described["id"], described["format"]
            is_good = found == FORMAT and isinstance(server_id, str)
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(
                f"the server's id must be in {self._path}, got {error!r}; its route names it, too"
            ) from error
        if not is_good:
            raise JournalError(f"format and id must be in {self._path}, got {described}")
        assert isinstance(server_id, str)
        return server_id

    def keep(self) -> None:
        """Writes the file, if none was there."""
        if self.is_new:
            unfinished = self._path.with_suffix(".new")
            unfinished.write_text(json.dumps({"format": FORMAT, "id": self.id}, indent=2) + "\n")
            unfinished.replace(self._path)
            self.is_new = False


def refuse_data(folder: Path) -> None:
    """Refuses a folder for a server without a journal if a durable one has its data there.

    Such a server would begin empty beside rows that somebody takes for kept.

    Raises:
        JournalError: It has.
    """
    found = [name for name in ("server.json", "journal", "checkpoints") if (folder / name).exists()]
    if found:
        raise JournalError(
            f"a server without a journal needs a folder without a durable server's data, got "
            f"{', '.join(found)} in {folder}; go on with them by --durability process, or name "
            "another --data-dir to begin empty"
        )


class _Stopped(Exception):
    """The server stops in the middle of a checkpoint."""


class Durable:
    """Keeps what a store has: each change is in the journal before it is made.

    A context manager: `__enter__` brings the store back to what it was and then
    logs, `__exit__` leaves it to the next start. A thread writes checkpoints
    meanwhile, of one moment between two changes, while changes go on.

    What its store answers survives the end of the process, however that comes.

    Args:
        store: Empty, with the id of `identity`.
        folder: The server's own.
        identity: Of the folder.
        journal_limit: Bytes of journal after which a checkpoint is written.
    """

    def __init__(
        self, store: Store, folder: Path, identity: Identity, *, journal_limit: int = JOURNAL_LIMIT
    ) -> None:
        self._store = store
        self._identity = identity
        self._checkpoints = folder / "checkpoints"
        self._folder = folder / "journal"
        self._limit = self._due = journal_limit
        self._lock = threading.Lock()  # guards the journal and the rest
        self._is_wanted = threading.Event()  # a checkpoint, or the end
        self._is_over = False
        self._is_closed = False  # the journal
        self._checkpoint_number = 0  # of the newest
        self._thread = threading.Thread(target=self._write_checkpoints, name="checkpoints")

    def __enter__(self) -> "Durable":
        """Brings the store back.

        Raises:
            JournalError, CheckpointError, SnapshotError: A file is damaged or
                missing; the message names it.
        """
        next_number = self._recover()
        self._journal = Journal(self._folder, next_number=next_number)
        self._identity.keep()
        self._store.keep(self, on_freeze=self._on_freeze)
        self._store.moves.discard_unfinished()
        self._thread.start()
        self._want_if_due()
        return self

    def _recover(self) -> int:
        """Returns the number of the next record."""
        start = time.perf_counter()
        remove_leftovers(self._checkpoints)
        first_record = first_number(self._folder)
        if first_record is None and not self._identity.is_new:
            raise JournalError(
                f"a durable server's journal must be in {self._folder}, got no segment; put back "
                "the folder as it was, or start with an empty --data-dir"
            )
        checkpoint = newest_checkpoint(self._checkpoints, first_record=first_record or 1)
        if self._identity.is_new and (checkpoint is not None or (first_record or 1) > 1):
            raise JournalError(
                f"the id of the server that wrote {self._folder} must be in server.json beside "
                "it, got none; put it back, or start with an empty --data-dir"
            )
        if checkpoint is not None:
            self._checkpoint_number = checkpoint.number
            self._restore(checkpoint)
        restored = time.perf_counter()
        number = first = self._checkpoint_number or 1
        for record in replay(self._folder, start=first):
            self._store.replay(change_from_record(record))
            number = record.number + 1
        logger.info(
            "recovered server %s, %d rows: checkpoint %d in %.3f s, %d records in %.3f s",
            self._store.id,
            sum(stats.num_rows for stats in self._store.stats()),
            self._checkpoint_number,
            restored - start,
            number - first,
            time.perf_counter() - restored,
        )
        return number

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        found = []
        for table in state["tables"]:
            spec, route = TableSpec.from_dict(table["spec"]), route_from_json(state["route"])
            self._store.replay(CreateTable(spec, table["id"], route))
            found += [(spec, path) for path in checkpoint.snapshots[spec.name]]

        def read(each: tuple[TableSpec, Path]) -> None:
            spec, path = each
            self._store.restore_rows(spec.name, read_snapshot(path, spec))

        side_by_side(read, found)  # a row is in one of them, so that their order is free
        self._restore_share(state)
        self._store.workers.restore(roster_from_json(state["roster"]))
        arrays = checkpoint.arrays
        none = np.empty((0, 2), np.uint64)  # a checkpoint from before there were ranges
        finished = arrays.get("finished", none)
        self._store.applied.restore(AppliedState(arrays["workers"], arrays["sequences"], finished))
        self._store.leases.restore(_ranges_from_json(state.get("ranges", {})))

    def _restore_share(self, state: Mapping[str, Any]) -> None:  # JSON
        if state["route"] is not None and "share" in state:  # or from before buckets moved
            route, moves = route_from_json(state["route"]), _moves_from_json(state["moves"])
            self._store.restore(route, state["share"], moves)

    def append(self, change: Change) -> None:
        """Keeps a change that is about to be made.

        Raises:
            NotLogged: The disk is full; nothing was kept.
            Stopping: The journal is closed: this request has outlived the server's grace.
        """
        kind, pieces = change_to_record(change)
        with self._lock:
            if self._is_closed:
                raise Stopping("the server stops")
            try:
                self._journal.append(kind, pieces)
            except JournalError as error:
                raise NotLogged(str(error)) from error
        self._want_if_due()

    @property
    def is_due(self) -> bool:
        """Whether the journal has outgrown its limit, so that a checkpoint is to come."""
        with self._lock:
            return self._journal.size_since(self._checkpoint_number) >= self._limit

    def _want_if_due(self, share: float = 1.0) -> None:
        with self._lock:
            since = self._journal.size_since(self._checkpoint_number)
            if since >= self._due * share:
                self._is_wanted.set()

    def _on_freeze(self) -> None:
        self._want_if_due(FREEZE_SHARE)

    def _write_checkpoints(self) -> None:
        while not self._is_over:
            self._is_wanted.wait()
            self._is_wanted.clear()  # before the look: the end sets it, too
            if self._is_over:
                return
            try:
                self._write_checkpoint()
                self._is_wanted.clear()  # what grew meanwhile is counted from this checkpoint on
                self._want_if_due()
            except _Stopped:
                return
            except Exception as error:  # the journal goes on, and has all that it would have had
                with self._lock:
                    since = self._journal.size_since(self._checkpoint_number)
                    self._due = since + int(self._limit * RETRY_SHARE)
                logger.warning(
                    "no checkpoint could be written, the journal of %d bytes grows on: %s; make "
                    "room on the disk",
                    since,
                    error,
                    exc_info=not isinstance(error, OSError),
                )

    def _write_checkpoint(self) -> None:
        start = time.perf_counter()
        with self._store.hold(self._rotate) as held:
            write_checkpoint(
                self._checkpoints, held.number, _contents_of(held), write=self._write_unless_over
            )
        numbers = checkpoint_numbers(self._checkpoints)
        with self._lock:
            self._checkpoint_number = held.number
            self._due = self._limit
            # The journal goes back to the oldest checkpoint, or to the beginning: should the disk
            # damage the newest, that is what makes up for it.
            if len(numbers) >= KEEP:
                self._journal.drop_before(numbers[0])
        logger.info("wrote checkpoint %d in %.3f s", held.number, time.perf_counter() - start)

    def _rotate(self) -> int:
        with self._lock:
            return self._journal.rotate()

    def _write_unless_over(self, file: int, data: memoryview) -> int:
        if self._is_over:
            raise _Stopped
        return os.write(file, data[:_CHUNK_BYTES])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the thread and closes the journal; a checkpoint is not needed to come back."""
        self._is_over = True
        self._is_wanted.set()
        self._thread.join()
        with self._lock:
            self._is_closed = True
            self._journal.close()


_CHUNK_BYTES = 1 << 24  # so that the end of a server is noticed in the middle of a file


def _contents_of(held: Held) -> Contents:
    return Contents(
        state={
            "route": None if held.route is None else route_to_json(held.route),
            "share": held.share.tolist(),
            "moves": _moves_to_json(held.moves),
            "tables": [{"spec": each.table.spec.to_dict(), "id": each.id} for each in held.tables],
            "roster": roster_to_json(held.roster),
            "ranges": {table: asdict(ranges) for table, ranges in held.ranges.items()},
        },
        arrays=vars(held.applied),
        tables=((each.table.spec.name, each.snapshots()) for each in held.tables),
    )


def _moves_to_json(moves: MovesState) -> dict[str, object]:
    incoming = []
    for each in moves.incoming:
        described = {"move": each.move, "buckets": each.buckets, "num_pushes": each.num_pushes}
        if (prepared := each.prepared) is not None:
            described |= {
                "versions": prepared.versions,
                "workers": prepared.workers.tolist(),
                "sequences": prepared.sequences.tolist(),
                "roster": roster_to_json(prepared.roster),
            }
        incoming.append(described)
    versions = moves.versions.tolist() if moves.versions.any() else []
    return {"versions": versions, "incoming": incoming}


def _moves_from_json(described: dict[str, Any]) -> MovesState:  # JSON
    incoming = []
    for each in described["incoming"]:
        prepared = None
        if "versions" in each:
            workers = np.array(each["workers"], np.uint64)
            versions = tuple(each["versions"])
            sequences = np.array(each["sequences"], np.uint64).reshape(len(workers), len(versions))
            roster = roster_from_json(each["roster"])
            prepared = Prepared(versions, workers, sequences, roster)
        incoming.append(
            Incoming(each["move"], tuple(each["buckets"]), each["num_pushes"], prepared)
        )
    versions_used = np.array(described["versions"] or np.zeros(NUM_BUCKETS), np.uint32)
    return MovesState(versions_used, tuple(incoming))


def _ranges_from_json(runs: dict[str, Any]) -> dict[str, RangesState]:  # JSON
    found = {}
    for table, fields in runs.items():
        held = {int(number): holder for number, holder in fields["held"].items()}
        returned = tuple(fields["returned"])
        found[table] = RangesState(**fields | {"held": held, "returned": returned})
    return found
