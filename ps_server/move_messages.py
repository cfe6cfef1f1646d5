"""What is said of moves, as messages and back."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ps_server.change import MemberState, Prepare, Presence, RosterState
from ps_server.moves import Incoming, StagedPush, Tail
from ps_server.snapshot import SnapshotError, buckets_of_snapshot
from ps_server.wire import array_from_bytes, bytes_from_array, ps_pb2

__all__ = [
    "buckets_from_bytes",
    "bytes_from_buckets",
    "incoming_to_message",
    "prepared_from_message",
    "pushes_from_messages",
    "snapshot_name",
    "tail_to_message",
]


def bytes_from_buckets(buckets: Sequence[int]) -> bytes:
    """Returns numbers of buckets as they travel."""
    return bytes_from_array(np.array(buckets, np.uint16))


def buckets_from_bytes(data: bytes) -> NDArray[np.intp]:
    """Returns the numbers of buckets that `bytes_from_buckets` made."""
    return array_from_bytes(data, np.uint16).astype(np.intp)


def incoming_to_message(incoming: Incoming) -> ps_pb2.IncomingMove:
    """Returns a move to a server, as it tells it."""
    prepared = incoming.prepared
    versions = () if prepared is None else prepared.versions
    return ps_pb2.IncomingMove(
        move=incoming.move,
        buckets=bytes_from_buckets(incoming.buckets),
        versions=bytes_from_array(np.array(versions, np.uint32)),
    )


def tail_to_message(tail: Tail) -> ps_pb2.TailReply:
    """Returns what was pushed to the buckets of a move."""
    reply = ps_pb2.TailReply()
    for push in tail.pushes:
        message = reply.pushes.add(step=push.step)
        for name, (keys, gradient) in push.gradients.items():
            message.tables.add(
                table=name, keys=bytes_from_array(keys), gradients=bytes_from_array(gradient)
            )
    if tail.prepared is not None:
        reply.prepared.CopyFrom(_prepared_to_message(tail.prepared))
    return reply


def pushes_from_messages(messages: Iterable[ps_pb2.MovedPush]) -> list[StagedPush]:
    """Returns the pushes that `tail_to_message` described."""
    return [
        StagedPush(
            message.step,
            {
                part.table: (
                    array_from_bytes(part.keys, np.uint64),
                    array_from_bytes(part.gradients, np.float32),
                )
                for part in message.tables
            },
        )
        for message in messages
    ]


def _prepared_to_message(prepared: Prepare) -> ps_pb2.PreparedMove:
    roster = prepared.roster
    members = [
        ps_pb2.Member(
            rank=each.rank,
            name=each.name,
            worker=each.worker,
            presence=each.presence.name,
            clock=each.clock,
        )
        for each in roster.members
    ]
    return ps_pb2.PreparedMove(
        move=prepared.move,
        versions=bytes_from_array(np.array(prepared.versions, np.uint32)),
        workers=bytes_from_array(prepared.workers),
        sequences=bytes_from_array(prepared.sequences),
        num_workers=roster.num_workers,
        members=members,
    )


def prepared_from_message(message: ps_pb2.PreparedMove) -> Prepare:
    """Returns what goes with the buckets of a move.

    Raises:
        ValueError: A presence is unknown, or arrays are not aligned.
    """
    members = tuple(
        MemberState(
            each.rank,
            each.name,
            each.worker,
            _presence(each.presence),
            each.clock if each.HasField("clock") else None,
        )
        for each in message.members
    )
    versions = array_from_bytes(message.versions, np.uint32)
    workers = array_from_bytes(message.workers, np.uint64)
    sequences = array_from_bytes(message.sequences, np.uint64)
    return Prepare(
        message.move,
        tuple(versions.tolist()),
        workers,
        sequences.reshape(len(workers), len(versions)),
        RosterState(message.num_workers, members),
    )


def _presence(name: str) -> Presence:
    if name not in Presence.__members__:
        raise ValueError(
            f"a member's presence is one of {', '.join(Presence.__members__)}, got {name!r}"
        )
    return Presence[name]


def snapshot_name(name: str) -> str:
    """Returns `name` if it is a snapshot's: of this form, it names no other folder.

    Raises:
        ValueError: It is not.
    """
    try:
        buckets_of_snapshot(name)
    except SnapshotError as error:
        raise ValueError(str(error)) from error
    return name
