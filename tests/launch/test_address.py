"""Ports of this host."""

import os
import signal
import socket

from hetero_pipe.launch.address import free_addresses, is_free


def test_free_addresses_are_free_and_all_different():
    addresses = free_addresses(5)
    assert len(set(addresses)) == 5
    assert all(map(is_free, addresses))


def test_an_address_is_free_once_its_server_is_killed_though_somebody_was_connected(daemon):
    server = daemon()
    host, _, port = server.address.rpartition(":")
    assert not is_free(server.address)
    with socket.create_connection((host, int(port))):
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        assert is_free(server.address)
