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
    DropTable,
    Joined,
    Left,
    Origin,
    Push,
    PushesFinished,
    RangeCompleted,
    RangeLeased,
    RangeReturned,
    ReplaceRows,
)
from ps_server.journal import JournalError, Piece, Record
from ps_server.route import Route, ServerRef
from ps_server.spec import TableSpec
from ps_server.table import Rows

__all__ = ["change_from_record", "change_to_record", "route_from_json", "route_to_json"]

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
        gradients = {
            name: (_array(keys, np.uint64), _array(gradient, np.float32))
            for name, keys, gradient in zip(head["tables"], arrays[::2], arrays[1::2], strict=True)
        }
        origins = tuple(Origin(*origin) for origin in head["origins"])
        return Push(head["step"], gradients, origins, tuple(head["ranks"]))
    return kind(**head)


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
