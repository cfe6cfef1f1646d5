"""The socket by which a supervisor is asked."""

import socket
import threading

import pytest

import hetero_pipe as hp
from hetero_pipe.launch.control import Control, ask


def echo(request):
    if request.get("request") != "echo":
        raise hp.ConfigError("no such request")
    return {"echo": request["text"]}


def test_a_request_gets_its_reply(tmp_path):
    path = tmp_path / "control"
    with Control(path, echo):
        assert path.stat().st_mode & 0o777 == 0o600
        for text in ("a", "b\n" * 1000):
            assert ask(path, {"request": "echo", "text": text}) == {"echo": text}
    assert not path.exists()


def test_what_an_answer_refuses_is_told(tmp_path):
    with (
        Control(tmp_path / "control", echo),
        pytest.raises(hp.ConfigError, match=f"of {tmp_path} refused: no such request"),
    ):
        ask(tmp_path / "control", {"request": "ecko"})


@pytest.mark.parametrize("line", [b"[]\n", b"{\n", b"\xff\n", b"\n"])
def test_what_is_no_request_is_told_and_harms_nobody(line, tmp_path):
    with Control(tmp_path / "control", echo):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "control"))
            connection.sendall(line)
            assert connection.makefile("rb").readline().startswith(b'{"error": "')
        assert ask(tmp_path / "control", {"request": "echo", "text": "a"}) == {"echo": "a"}


def test_one_that_says_nothing_keeps_nobody_waiting(tmp_path):
    with Control(tmp_path / "control", echo), socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(tmp_path / "control"))
        assert ask(tmp_path / "control", {"request": "echo", "text": "a"}) == {"echo": "a"}


def test_a_socket_that_somebody_left_behind_is_replaced(tmp_path):
    path = tmp_path / "control"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with pytest.raises(hp.ConfigError, match="no supervisor runs in"):
        ask(path, {"request": "echo"})
    with Control(path, echo):
        assert ask(path, {"request": "echo", "text": "a"}) == {"echo": "a"}


def test_a_path_may_be_longer_than_a_sockets_name(tmp_path):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    with Control(folder / "control", echo):
        assert ask(folder / "control", {"request": "echo", "text": "a"}) == {"echo": "a"}
    assert list(folder.iterdir()) == []


def test_without_a_supervisor_there_is_none(tmp_path):
    with pytest.raises(hp.ConfigError, match=r"no supervisor runs in .*; start its job with"):
        ask(tmp_path / "control", {"request": "echo"})


def test_one_that_does_not_answer_is_told(tmp_path):
    is_over = threading.Event()

    def wait(_):
        is_over.wait()
        return {}

    with Control(tmp_path / "control", wait):
        with pytest.raises(hp.ConfigError, match="did not answer, got timed out"):
            ask(tmp_path / "control", {"request": "echo"}, seconds=0.01)
        is_over.set()
