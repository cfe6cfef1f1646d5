"""Measures a link between two hosts: one listens, the other sends and waits for the answer.

A message is 8 bytes that say how many follow, and those; the answer is one byte
when all have come. So the time of an empty one is twice the latency, and what a
long one takes longer is its bytes by the bandwidth.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator

from hetero_pipe.cluster.rate import Rate, Spread
from hetero_pipe.cluster.sample import Sampling, sample_times
from hetero_pipe.errors import ConfigError
from hetero_pipe.units import GiB, MiB

__all__ = ["profile_link", "serve_link"]

# A peer that is silent so long has gone; a stranger does not keep others waiting.
SECONDS = 10.0
MOST = GiB  # of a message; who asks for more is no `profile_link`


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"an address is HOST:PORT with a port from 0 to 65535, got {address!r}")
    return host, int(port)


def serve_link(address: str, on_listen: Callable[[str], None]) -> None:
    """Answers one `profile_link` after another, until it is interrupted.

    Args:
        address: HOST:PORT; port 0 is a free one. Whoever reaches it can keep the
            link busy, and no more.
        on_listen: Called with the address once others can connect.

    Raises:
        ConfigError: It is no address, or nobody can listen there.
    """
    host, port = _parse(address)
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(
            f"a link is measured at a free address, got {address}: {error}"
        ) from error
    with listener:
        on_listen(f"{host}:{listener.getsockname()[1]}")
        while True:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(OSError):  # it has gone: the next one
                _answer(peer)


def _answer(peer: socket.socket) -> None:
    peer.settimeout(SECONDS)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(MiB))
    while head := peer.recv(8, socket.MSG_WAITALL):
        left = int.from_bytes(head, "little")
        if len(head) < 8 or left > MOST:
            return
        while left:
            got = peer.recv_into(buffer, min(left, MiB))
            if not got:
                return
            left -= got
        peer.sendall(b".")


def profile_link(
    host: str, address: str, sampling: Sampling, *, peer: str | None = None
) -> Iterator[Rate]:
    """Yields `link_latency` and `link_bandwidth` of TCP to where `serve_link` listens.

    Args:
        host: Name of this one.
        address: HOST:PORT.
        sampling: The effort.
        peer: Name of the other host; its address if None.

    Raises:
        ConfigError: Nobody answers there.
    """
    peer = peer or address
    size = (8 if sampling.is_quick else 64) * MiB
    payload = bytes(size)
    try:
        with socket.create_connection(_parse(address), timeout=SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def send(num_bytes: int) -> None:
                connection.sendall(num_bytes.to_bytes(8, "little"))
                connection.sendall(memoryview(payload)[:num_bytes])
                if connection.recv(1) != b".":
                    raise ConnectionError("the connection was closed")

            empty = sample_times(lambda: send(0), sampling)
            yield Rate("link_latency", host, Spread.of([t / 2 for t in empty]), peer=peer)
            full = sample_times(lambda: send(size), sampling)
    except OSError as error:
        raise ConfigError(
            f"a link is measured to a host that listens, got no answer of {address}: {error}; "
            f"start there: hetero-pipe profile --listen {address}"
        ) from error
    base = Spread.of(empty).median
    bandwidths = [size / max(seconds - base, 1e-9) for seconds in full]
    yield Rate("link_bandwidth", host, Spread.of(bandwidths), peer=peer, size=size)
