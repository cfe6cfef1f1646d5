"""Frames: how the lines of a meeting are cut out of a TCP stream."""

import json
import socket
import struct
from typing import Any

__all__ = ["receive_frame", "send_frame", "watch_peer"]

_START = struct.Struct("<4sIQ")  # magic, bytes of the head, bytes of the body
_MAGIC = b"hpm1"


def send_frame(stream: socket.socket, head: dict[str, Any], body: bytes = b"") -> None:
    """Sends a head, which is JSON, and a body. One thread at a time; blocks while it is full.

    Raises:
        OSError: The peer is gone.
    """
    text = json.dumps(head).encode()
    stream.sendall(_START.pack(_MAGIC, len(text), len(body)) + text + body)


def receive_frame(stream: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Returns the next head and body; blocks until they are there.

    Raises:
        OSError: The peer is gone.
        ValueError: The peer speaks something else.
    """
    magic, head_size, body_size = _START.unpack(_receive(stream, _START.size))
    if magic != _MAGIC:
        raise ValueError(f"a frame must begin with {_MAGIC!r}, got {magic!r}")
    head: dict[str, Any] = json.loads(_receive(stream, head_size))
    return head, _receive(stream, body_size)


def _receive(stream: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = stream.recv_into(view)
        if count == 0:
            raise ConnectionResetError("the peer has closed the connection")
        view = view[count:]
    return bytes(data)


def watch_peer(stream: socket.socket) -> None:
    """Makes a stream fail within half a minute when the peer's host is gone without a word.

    A process that ends closes its streams by itself, also when it is killed; a host
    that loses power or its network does not.
    """
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
