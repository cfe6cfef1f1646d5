"""The folder of a supervised job: what is where in it, and who has it."""

import fcntl
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from hetero_pipe.errors import ConfigError
from hetero_pipe.launch.control import listens

__all__ = ["JobFolder"]

# A supervisor that was killed takes its processes along; that takes the kernel a moment.
FREE_SECONDS = 10.0


class JobFolder:
    """The files of a job, which one supervisor has at a time.

    They are::

        DIR/lock            held by the supervisor and all that it has started
        DIR/control         the socket by which it is asked, `Control`
        DIR/servers.json    where the servers listen, by their number
        DIR/servers/N       the data of server N
        DIR/logs/NAME.log   what its processes print

    The lock is an open file: whoever inherits `lock_fd` holds it, too. So a job
    that is started again after its supervisor was killed finds no process of
    the former one at work on the servers' data.

    Args:
        path: Created if it is missing.
        free_seconds: How long to wait for what a supervisor has left that was killed.
    """

    def __init__(self, path: Path, *, free_seconds: float = FREE_SECONDS) -> None:
        self._free_seconds = free_seconds
        self.path = path.absolute()
        self.control = self.path / "control"
        self.servers_file = self.path / "servers.json"
        self.logs = self.path / "logs"
        self.lock_fd = -1

    def __enter__(self) -> "JobFolder":
        """Takes the lock.

        Raises:
            ConfigError: Another supervisor has it, or the folder cannot be written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock_fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(f"a job's folder can be written to, got {error}") from error
        try:
            self._lock()
            self._sign()
        except BaseException:
            os.close(self.lock_fd)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.lock_fd)

    def data_of(self, server: int) -> Path:
        """Returns where a server keeps its data."""
        return self.path / "servers" / str(server)

    def num_servers(self) -> int | None:
        """Returns how many servers the job has by now; None if it has never run.

        Raises:
            ConfigError: The servers file is broken.
        """
        try:
            return len(json.loads(self.servers_file.read_text(encoding="utf-8"))["servers"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"a servers file has the key 'servers', got {error!r} of {self.servers_file}; if "
                "nothing in its folder is needed, remove that"
            ) from error

    def write_servers(self, addresses: Sequence[str]) -> None:
        """Replaces the servers file; who reads it sees the old one or the new one, whole."""
        new = self.servers_file.with_suffix(".new")
        new.write_text(json.dumps({"servers": list(addresses)}) + "\n", encoding="utf-8")
        new.replace(self.servers_file)

    def _sign(self) -> None:
        """Says who has the lock, for others to tell."""
        try:
            os.ftruncate(self.lock_fd, 0)
            os.pwrite(self.lock_fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise ConfigError(
                f"a job's folder has room, got {error} for {self.path / 'lock'}; make room on its "
                "disk, and start it again: its data are as they were"
            ) from error

    def _lock(self) -> None:
        deadline = time.monotonic() + self._free_seconds
        while True:
            try:
                return fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= deadline or listens(self.control):
                    holder = os.pread(self.lock_fd, 32, 0).decode().strip()
                    raise ConfigError(
                        f"one supervisor at a time runs the job in {self.path}, got one there "
                        f"already, pid {holder}, or what it has started; ask it with hetero-pipe "
                        f"status {self.path}, or stop it first"
                    ) from error
            time.sleep(0.05)
