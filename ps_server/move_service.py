"""The Moves service: decode, call the moves of a store, encode. No other logic."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc

from ps_server.move_messages import (
    buckets_from_bytes,
    prepared_from_message,
    pushes_from_messages,
    snapshot_name,
    tail_to_message,
)
from ps_server.moves import HOLD_SECONDS
from ps_server.route import ServerRef
from ps_server.snapshot import read_snapshot
from ps_server.status import abort, unary
from ps_server.store import Store
from ps_server.wire import ps_pb2, ps_pb2_grpc, route_to_message

__all__ = ["STAGE_PREFIX", "MoveService"]

CHUNK_BYTES = 1 << 20

STAGE_PREFIX = "stage-"
"""How the folder is named where the snapshots of a move wait."""


class MoveService(ps_pb2_grpc.MovesServicer):
    """Serves the moves of one store over gRPC.

    Args:
        store: Whose buckets move.
        data_dir: Where the snapshots of a move wait until all have arrived.
    """

    def __init__(self, store: Store, *, data_dir: Path) -> None:
        self._store = store
        self._moves = store.moves
        self._data_dir = data_dir

    def Copy(  # noqa: N802
        self, request: ps_pb2.CopyRequest, context: grpc.ServicerContext
    ) -> Iterator[ps_pb2.CopyReply]:
        """Streams the rows of buckets, by which their move begins."""
        try:
            buckets = buckets_from_bytes(request.buckets).tolist()
            copied = self._moves.copy(request.route, buckets)
            yield ps_pb2.CopyReply(move=copied.move)
            for table, snapshots in copied.tables:
                for name, data in snapshots:
                    for start in range(0, len(data), CHUNK_BYTES):
                        piece = bytes(data[start : start + CHUNK_BYTES])
                        yield ps_pb2.CopyReply(table=table, name=name, data=piece)
        except Exception as error:  # the boundary: each becomes a status
            abort(context, error)

    @unary
    def CatchUp(self, request: ps_pb2.CatchUpRequest) -> ps_pb2.TailReply:  # noqa: N802
        """Tells what was pushed since."""
        return tail_to_message(self._moves.catch_up(request.move, request.start))

    @unary
    def Hold(self, request: ps_pb2.HoldRequest) -> ps_pb2.TailReply:  # noqa: N802
        """Lets pushes wait."""
        seconds = request.seconds or HOLD_SECONDS
        return tail_to_message(self._moves.hold(request.move, request.start, seconds=seconds))

    @unary
    def Give(self, request: ps_pb2.GiveRequest) -> ps_pb2.GiveReply:  # noqa: N802
        """Leaves buckets to another server."""
        target = ServerRef(request.target.id, request.target.address)
        return ps_pb2.GiveReply(route=route_to_message(self._moves.give(request.move, to=target)))

    @unary
    def Unhold(self, request: ps_pb2.UnholdRequest) -> ps_pb2.UnholdReply:  # noqa: N802
        """Ends a move that is not decided."""
        return ps_pb2.UnholdReply(was_under_way=self._moves.unhold(request.move))

    @unary
    def Stage(self, requests: Iterator[ps_pb2.StageRequest]) -> ps_pb2.StageReply:  # noqa: N802
        """Receives the rows of a move."""
        first = next(requests, None)
        if first is None:
            raise ValueError("a move must begin with its buckets, got no message")
        with tempfile.TemporaryDirectory(prefix=STAGE_PREFIX, dir=self._data_dir) as folder:
            paths: dict[str, list[Path]] = {}
            is_whole = False
            for request in requests:
                is_whole = not request.name
                if is_whole:
                    break
                of_table = paths.setdefault(request.table, [])
                path = Path(folder) / str(len(paths)) / snapshot_name(request.name)
                if path not in of_table:
                    path.parent.mkdir(exist_ok=True)
                    of_table.append(path)
                with path.open("ab") as file:
                    file.write(request.data)
            if not is_whole:
                raise ValueError("the rows of a move must end with an empty message, got none")
            specs = {stats.spec.name: stats.spec for stats in self._store.stats()}
            rows = {
                table: tuple(read_snapshot(path, specs[table]) for path in of_table)
                for table, of_table in paths.items()
                if table in specs
            }
            missing = {table: () for table in paths if table not in specs}
            buckets = buckets_from_bytes(first.buckets).tolist()
            self._moves.stage_rows(first.move, buckets, {**rows, **missing})
        return ps_pb2.StageReply()

    @unary
    def StagePushes(  # noqa: N802
        self, request: ps_pb2.StagePushesRequest
    ) -> ps_pb2.StageReply:
        """Receives what was pushed since."""
        pushes = pushes_from_messages(request.pushes)
        self._moves.stage_pushes(request.move, request.start, pushes)
        return ps_pb2.StageReply()

    @unary
    def Prepare(self, request: ps_pb2.PrepareRequest) -> ps_pb2.StageReply:  # noqa: N802
        """Receives the last of a move."""
        prepared = prepared_from_message(request.prepared)
        self._moves.prepare(request.start, pushes_from_messages(request.pushes), prepared)
        return ps_pb2.StageReply()

    @unary
    def Discard(self, request: ps_pb2.DiscardRequest) -> ps_pb2.StageReply:  # noqa: N802
        """Erases a move that is void."""
        self._moves.discard(request.move)
        return ps_pb2.StageReply()
