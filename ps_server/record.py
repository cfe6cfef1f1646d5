"""A change as a record of the journal, and back. docs/journal_format.md lists the kinds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ps_server.change import (
    Change,
    ClockSet,
    CreateTable,
    Discard,
    DropTable,
    Give,
    Gradients,
    Hold,
    Joined,
    Left,
    MemberState,
    Origin,
    Prepare,
    Presence,
    Push,
    PushesFinished,
    RangeCompleted,
    RangeLeased,
    RangeReturned,
    ReplaceRows,
    RosterState,
    StagePush,
    StageRows,
    Take,
)
from ps_server.journal import JournalError, Piece, Record
from ps_server.route import Route, ServerRef
from ps_server.spec import TableSpec
from ps_server.table import Rows

__all__ = [
    "change_from_record",
    "change_to_record",
    "roster_from_json",
    "roster_to_json",
    "route_from_json",
    "route_to_json",
]

KINDS: Mapping[int, type[Change]] = {
    1: CreateTable,
    2: DropTable,
    3: ReplaceRows,
    4: Push,
    5: Joined,
    6: ClockSet,
    7: Left,
    8: RangeLeased,
    9: RangeReturned,
    10: RangeCompleted,
    11: PushesFinished,
    12: Hold,
    13: Give,
    14: StageRows,
    15: StagePush,
    16: Prepare,
    17: Take,
    18: Discard,
}
NUM_COLUMNS = len(fields(Rows))

_NUMBERS = {kind: number for number, kind in KINDS.items()}

Scalar = TypeVar("Scalar", bound=np.generic)


def change_to_record(change: Change) -> tuple[int, list[Piece]]:
    """Returns the kind and the pieces of a change: JSON, then its arrays, which are not copied."""
    arrays: list[Piece] = []
    match change:
        case CreateTable(spec, table_id, route):
            head = {"spec": spec.to_dict(), "id": table_id, "route": route_to_json(route)}
        case ReplaceRows(name, parts):
            head = {"name": name, "widths": [_widths(rows) for rows in parts]}
            arrays = [column for rows in parts for column in vars(rows).values()]
        case Push(step, gradients, origins, ranks):
            head = {
                "step": step,
                "tables": list(gradients),
                "origins": [[origin.worker, origin.sequence] for origin in origins],
                "ranks": ranks,
            }
            arrays = [array for pair in gradients.values() for array in pair]
        case StageRows(move, buckets, rows_by_table):
            head = {
                "move": move,
                "buckets": buckets,
                "tables": {
                    name: [_widths(rows) for rows in parts] for name, parts in rows_by_table.items()
                },
            }
            arrays = [
                column
                for parts in rows_by_table.values()
                for rows in parts
                for column in vars(rows).values()
            ]
        case StagePush(move, step, gradients):
            head = {"move": move, "step": step, "tables": list(gradients)}
            arrays = [array for pair in gradients.values() for array in pair]
        case Prepare(move, versions, workers, sequences, roster):
            head = {"move": move, "versions": versions, "roster": roster_to_json(roster)}
            arrays = [workers, np.ascontiguousarray(sequences)]
        case Take(move, route):
            head = {"move": move, "route": route_to_json(route)}
        case _:
            head = asdict(change)
    return _NUMBERS[type(change)], [json.dumps(head).encode(), *arrays]


def change_from_record(record: Record) -> Change:
    """Returns the change; its arrays are the record's, and cannot be written.

    Raises:
        JournalError: This version does not know its kind.
    """
    kind = KINDS.get(record.kind)
    if kind is None:
        raise JournalError(
            f"a record must be of a kind from 1 to {max(KINDS)}, got {record.kind} for record "
            f"{record.number}; start the server in the version that wrote it"
        )
    text, *arrays = record.pieces
    head = json.loads(bytes(text))
    if kind is CreateTable:
        spec, route = TableSpec.from_dict(head["spec"]), route_from_json(head["route"])
        return CreateTable(spec, head["id"], route)
    if kind is ReplaceRows:
        parts = zip(*[iter(arrays)] * NUM_COLUMNS, strict=True)
        rows = (_rows(*part) for part in zip(parts, head["widths"], strict=True))
        return ReplaceRows(head["name"], tuple(rows))
    if kind is Push:
        gradients = _gradients(head["tables"], arrays)
        origins = tuple(Origin(*origin) for origin in head["origins"])
        return Push(head["step"], gradients, origins, tuple(head["ranks"]))
    return kind(**head) if kind in _FLAT else _change_of_move(kind, head, arrays)


_FLAT = (
    *(DropTable, Joined, ClockSet, Left, Discard),
    *(RangeLeased, RangeReturned, RangeCompleted, PushesFinished),
)


def _change_of_move(
    kind: type[Change], head: dict[str, Any], arrays: Sequence[memoryview]
) -> Change:
    if kind is Hold:
        return Hold(tuple(head["buckets"]), tuple(head["versions"]))
    if kind is Give:
        target = ServerRef(**head["target"])
        return Give(tuple(head["buckets"]), tuple(head["versions"]), target)
    if kind is StageRows:
        parts = zip(*[iter(arrays)] * NUM_COLUMNS, strict=True)
        rows = {
            name: tuple(_rows(next(parts), each) for each in widths)
            for name, widths in head["tables"].items()
        }
        return StageRows(head["move"], tuple(head["buckets"]), rows)
    if kind is StagePush:
        return StagePush(head["move"], head["step"], _gradients(head["tables"], arrays))
    if kind is Prepare:
        workers, sequences = (_array(each, np.uint64) for each in arrays)
        versions = tuple(head["versions"])
        return Prepare(
            head["move"],
            versions,
            workers,
            sequences.reshape(len(workers), len(versions)),
            roster_from_json(head["roster"]),
        )
    assert kind is Take, kind
    return Take(head["move"], route_from_json(head["route"]))


def _gradients(names: Sequence[str], arrays: Sequence[memoryview]) -> Gradients:
    return {
        name: (_array(keys, np.uint64), _array(gradient, np.float32))
        for name, keys, gradient in zip(names, arrays[::2], arrays[1::2], strict=True)
    }


def roster_to_json(roster: RosterState) -> dict[str, Any]:
    """Returns the members of a job as JSON has them."""
    members = [asdict(each) | {"presence": each.presence.name} for each in roster.members]
    return asdict(roster) | {"members": members}


def roster_from_json(described: Mapping[str, Any]) -> RosterState:
    """Returns the members that `roster_to_json` described."""
    members = (
        MemberState(**each | {"presence": Presence[each["presence"]]})
        for each in described["members"]
    )
    fields = {"members": tuple(members), "former": tuple(described["former"])}
    return RosterState(**{**described, **fields})


def route_to_json(route: Route) -> dict[str, Any]:
    """Returns a route as JSON has it; what is as at the beginning is left out."""
    described: dict[str, Any] = {"servers": [[s.id, s.address] for s in route.servers]}
    if not route.is_even:
        described["owners"] = route.owners.tolist()
    if route.versions.any():
        described["versions"] = route.versions.tolist()
    return described


def route_from_json(described: Mapping[str, Any]) -> Route:
    """Returns the route that `route_to_json` described."""
    return Route(
        tuple(ServerRef(*server) for server in described["servers"]),
        np.array(described.get("owners", ()), np.uint16),
        np.array(described.get("versions", ()), np.uint32),
    )


def _widths(rows: Rows) -> list[int]:
    """Returns how many weights and how much state a row has."""
    return [rows.weights.shape[1], rows.state.shape[1]]


def _rows(columns: Sequence[memoryview], widths: Sequence[int]) -> Rows:
    keys, weights, state, num_pushes, steps = columns
    num_rows = len(keys) // 8
    return Rows(
        keys=_array(keys, np.uint64),
        weights=_array(weights, np.float32).reshape(num_rows, widths[0]),
        state=_array(state, np.float32).reshape(num_rows, widths[1]),
        num_pushes=_array(num_pushes, np.uint32),
        steps=_array(steps, np.uint64),
    )


def _array(data: memoryview, dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.frombuffer(data, dtype)
