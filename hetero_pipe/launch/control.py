"""How a supervisor is asked: a Unix domain socket in its job's folder.

A request is a line of JSON, `{"request": "status"}`, and so is the reply, which
has the key `error` if it is none. A connection is one request and its reply.
"""

import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hetero_pipe.errors import ConfigError

__all__ = ["Control", "Message", "ask", "listens"]

Message = dict[str, Any]  # what JSON has

SECONDS = 10.0
LONGEST = 2**20  # bytes of a line


class Control:
    """Answers requests as long as it is open.

    Args:
        path: Of the socket. Only its owner can connect; what is there is replaced.
        answer: Called with each request, in a thread of its own; returns the
            reply. It raises `ConfigError` for one that it does not know.
    """

    def __init__(self, path: Path, answer: Callable[[Message], Message]) -> None:
        self._path = path

        class Handler(socketserver.StreamRequestHandler):
            timeout = SECONDS  # of a peer that connects and says nothing

            def handle(self) -> None:
                with suppress(OSError):  # the peer has left
                    line = self.rfile.readline(LONGEST)
                    self.wfile.write(json.dumps(_reply(line, answer)).encode() + b"\n")

        self._server = _Server("", Handler, bind_and_activate=False)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="control",
            daemon=True,
        )

    def __enter__(self) -> "Control":
        self._path.unlink(missing_ok=True)
        with _short(self._path) as name:
            self._server.socket.bind(name)
        self._path.chmod(0o600)  # before anybody can connect
        self._server.server_activate()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


def listens(path: Path) -> bool:
    """Whether a supervisor can be asked there."""
    try:
        with _short(path) as name, socket.socket(socket.AF_UNIX) as connection:
            connection.connect(name)
    except OSError:
        return False
    return True


def ask(path: Path, request: Message, *, seconds: float = SECONDS) -> Message:
    """Asks a supervisor and returns its reply.

    Raises:
        ConfigError: None listens there, or it did not answer in time, or refused.
    """
    try:
        with _short(path) as name, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(name)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                reply: Message = json.loads(lines.readline(LONGEST))
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise ConfigError(
            f"no supervisor runs in {path.parent}; start its job with hetero-pipe launch JOB.toml"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the supervisor of {path.parent} did not answer, got {error or 'silence'}; is it "
            "stopped, or just ending?"
        ) from error
    if "error" in reply:
        raise ConfigError(f"the supervisor of {path.parent} refused: {reply['error']}")
    return reply


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def _reply(line: bytes, answer: Callable[[Message], Message]) -> Message:
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise ConfigError(f"a request is an object with the key 'request', got {request!r}")
        return answer(request)
    except ValueError as error:  # JSON's own, and ConfigError
        return {"error": str(error)}


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Gives a name of a socket's path that fits its 107 bytes, on Linux."""
    if len(os.fsencode(path)) <= 100 or not os.path.isdir("/proc/self/fd"):
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
