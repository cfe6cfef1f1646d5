"""Addresses of this host where somebody is to listen."""

import socket
from contextlib import ExitStack

__all__ = ["HOST", "free_addresses", "is_free"]

HOST = "127.0.0.1"


def free_addresses(number: int) -> list[str]:
    """Returns HOST:PORT of so many ports that are free now, all different.

    Who is to listen there learns it from here, so that somebody else may be
    faster; it then fails and says so.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind((HOST, 0))
        return [f"{HOST}:{each.getsockname()[1]}" for each in sockets]


def is_free(address: str) -> bool:
    """Whether somebody could listen there now, as a server does."""
    with socket.socket() as probe:
        # As gRPC does: connections of one that was killed may linger on its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, int(address.rpartition(":")[2])))
        except OSError:
            return False
    return True
