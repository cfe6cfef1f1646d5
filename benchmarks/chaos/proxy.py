"""Faults of a network, between a client and a server: real sockets, no pretence."""

import socket
import threading
from contextlib import suppress

RECEIVE_BYTES = 1 << 16
LATER = 30.0


class Proxy:
    """Stands before a server, passes on all that comes, and fails when told.

    A context manager: it listens on a free port of 127.0.0.1 from its creation until
    `close`, which ends its threads. All methods may be called from any thread.

    Args:
        target: HOST:PORT of the server.

    Attributes:
        address: HOST:PORT where it listens.
        target: HOST:PORT that new connections are passed on to; may be set.
        delay: Seconds that all that the server sends waits before it is passed on; may be set.
        num_connections: That clients have made.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.delay = 0.0
        self.num_connections = 0
        self._closed = threading.Event()
        self._changed = threading.Condition()  # guards all below
        self._pairs = []  # client's and server's socket of each connection
        self._deaf = set()  # pairs of which nothing comes back, by identity
        self._num_lost = 0
        self._refuses = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [self._start(self._accept)]

    def drop_replies(self) -> None:
        """From now on, nothing that the server sends comes over the connections that are there."""
        with self._changed:
            self._deaf = {id(pair) for pair in self._pairs}
            self._num_lost = 0

    def wait_for_lost(self) -> None:
        """Returns when the server has sent something that was dropped."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._num_lost, LATER), "the server sent nothing"

    def cut(self) -> None:
        """Closes every connection; new ones can be made."""
        with self._changed:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _hang_up(end)

    def refuse(self, *, refuses: bool = True) -> None:
        """Hangs up on whoever connects, from now on, or no longer."""
        with self._changed:
            self._refuses = refuses

    def close(self) -> None:
        """Gives up everything, and waits for its threads."""
        self._closed.set()
        _hang_up(self._listener)
        self.cut()
        for thread in self._threads:
            thread.join(LATER)
            assert not thread.is_alive()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments, name="proxy", daemon=True)
        thread.start()
        return thread

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.num_connections += 1
                self._connect(client)

    def _connect(self, client):
        host, _, port = self.target.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)), LATER)
        except OSError:  # nobody is there: the client is told so as by the server's own host
            _hang_up(client)
            return
        server.settimeout(None)
        pair = (client, server)
        with self._changed:
            is_welcome = not self._refuses and not self._closed.is_set()
            if is_welcome:
                self._pairs.append(pair)
        if not is_welcome:
            for end in pair:
                _hang_up(end)
            return
        self._threads += [self._start(self._forward, pair), self._start(self._backward, pair)]

    def _forward(self, pair):
        client, server = pair
        with suppress(OSError):
            while data := client.recv(RECEIVE_BYTES):
                server.sendall(data)
        _end(server)

    def _backward(self, pair):
        client, server = pair
        with suppress(OSError):
            while data := server.recv(RECEIVE_BYTES):
                if self.delay:
                    self._closed.wait(self.delay)
                with self._changed:
                    is_lost = id(pair) in self._deaf
                    self._num_lost += is_lost
                    self._changed.notify_all()
                if not is_lost:
                    client.sendall(data)
        _end(client)


def _end(end):
    """Tells who reads from it that no more comes."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _hang_up(end):
    _end(end)
    end.close()
