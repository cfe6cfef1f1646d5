"""A server of one's own: there, and gone."""

import os
import signal
from pathlib import Path

import pytest

from hetero_pipe.client import Client
from hetero_pipe.errors import ServerUnavailable
from hetero_pipe.launch import local_server
from ps_server.spec import TableSpec


def servers():
    """The processes that this one has started: `-m ps_server`, and not yet reaped."""
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return [int(pid) for path in found for pid in path.read_text().split()]


def test_a_server_is_there_in_the_block_and_gone_after_it():
    before = set(servers())
    with local_server() as server:
        assert set(servers()) - before == {server.pid}
        with Client([server.address]) as client:
            client.attach([TableSpec("user", 4)])
            assert client.num_rows() == {"user": 0}
    assert set(servers()) <= before


def test_a_server_that_is_deaf_is_killed():
    with local_server():
        (pid,) = servers()
        os.kill(pid, signal.SIGSTOP)
    assert servers() == []


def test_a_server_that_does_not_start_says_why(tmp_path, monkeypatch):
    package = tmp_path / "ps_server"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys; sys.exit('no library')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with (
        pytest.raises(ServerUnavailable, match="must start, got exit code 1: no library"),
        local_server(),
    ):
        pass
