"""Two network namespaces of this machine, joined by a wire of a stated rate: two hosts."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HOSTS", "Host", "two_hosts", "wire_limit"]

PORT = 7999  # of the measurement of the wire


@dataclass(frozen=True)
class Host:
    """One namespace, and its end of the wire."""

    name: str
    address: str
    interface: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Returns a command line that runs `arguments` on this host."""
        return ["ip", "netns", "exec", self.name, *arguments]

    def bytes_sent(self) -> int:
        """Returns the bytes that have left this host, headers of Ethernet and IP with them."""
        path = f"/sys/class/net/{self.interface}/statistics/tx_bytes"
        found = subprocess.run(self.command(["cat", path]), capture_output=True, check=True)
        return int(found.stdout)


HOSTS = (Host("hp-a", "10.77.0.1", "hp-wire-a"), Host("hp-b", "10.77.0.2", "hp-wire-b"))


def _ip(*arguments: str) -> None:
    found = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        sys.exit(
            f"error: namespaces need root and iproute2, got {found.stderr.strip()!r} of "
            f"ip {' '.join(arguments)}"
        )


@contextlib.contextmanager
def two_hosts(*, megabits: int | None) -> Iterator[tuple[Host, Host]]:
    """Makes the two hosts; the wire carries `megabits` a second each way, None what it can."""
    _remove()
    try:
        for host in HOSTS:
            _ip("netns", "add", host.name)
        first, second = HOSTS
        _ip("link", "add", first.interface, "type", "veth", "peer", "name", second.interface)
        for host in HOSTS:
            _ip("link", "set", host.interface, "netns", host.name)
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
            for interface in ("lo", host.interface):
                _ip("-n", host.name, "link", "set", interface, "up")
            if megabits is not None:
                _limit(host, megabits)
        yield HOSTS
    finally:
        _remove()


def _limit(host: Host, megabits: int) -> None:
    # A bucket of 1 ms at the rate, and a queue of 50 ms, as a switch has.
    burst = max(megabits * 1000 // 8, 16_000)
    shaper = ["root", "tbf", "rate", f"{megabits}mbit", "burst", str(burst), "latency", "50ms"]
    command = host.command(["tc", "qdisc", "add", "dev", host.interface, *shaper])
    subprocess.run(command, check=True)


def _remove() -> None:
    for host in HOSTS:  # the wire goes with its ends
        subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)


def wire_limit(sender: Host, receiver: Host, *, seconds: float = 2.0) -> float:
    """Returns the bytes a second that one TCP connection carries from host to host."""
    here = [sys.executable, str(Path(__file__).resolve())]
    start = sender.bytes_sent()
    with subprocess.Popen(receiver.command([*here, "receive", receiver.address])):
        time.sleep(0.3)  # until it listens; the sender tries again should it not yet
        found = subprocess.run(
            sender.command([*here, "send", receiver.address, str(seconds)]),
            capture_output=True,
            check=True,
        )
    return (sender.bytes_sent() - start) / float(found.stdout)


def _receive(address: str) -> None:
    with socket.create_server((address, PORT)) as server:
        connection, _ = server.accept()
        buffer = bytearray(1 << 20)
        with connection:
            while connection.recv_into(buffer):
                pass


def _send(address: str, seconds: float) -> None:
    while True:
        try:
            connection = socket.create_connection((address, PORT))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    block = bytes(1 << 20)
    with connection:
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        print(time.perf_counter() - start)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        _receive(sys.argv[2])
    else:
        _send(sys.argv[2], float(sys.argv[3]))
