"""A job of real processes under a supervisor, with a wire to each server."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from proxy import Proxy

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOML = """\
dir = {folder}

[servers]
number = {servers}
durability = "process"

[workers]
number = {workers}
script = {script}
arguments = {arguments}

[restarts]
limit = 1000
within = "3600s"
longest_delay = "1s"
"""
NOWHERE = "127.0.0.1:1"


class ChaosJob:
    """Runs `hetero-pipe launch job.toml`; a context manager, that ends it.

    Args:
        folder: Of the job, not there yet.
        servers: How many, at first.
        most_servers: How many there may be.
        workers: How many.
        arguments: Of the script.
    """

    def __init__(
        self,
        folder: Path,
        *,
        servers: int,
        most_servers: int,
        workers: int,
        arguments: Sequence[str],
    ) -> None:
        self.folder = folder
        self.num_servers = servers
        folder.mkdir(parents=True, exist_ok=True)
        self.wires = [Proxy(NOWHERE) for _ in range(most_servers)]
        self._toml = folder.parent / f"{folder.name}.toml"
        self._toml.write_text(
            TOML.format(
                folder=json.dumps(str(folder)),
                servers=servers,
                workers=workers,
                script=json.dumps(str(HERE / "worker.py")),
                arguments=json.dumps(list(arguments)),
            )
        )
        self._wires_file = folder.parent / f"{folder.name}-wires.json"
        self._write_wires()
        self._over = threading.Event()
        self._begun = threading.Event()
        self._scaling: subprocess.Popen[bytes] | None = None
        self.num_scaled = 0  # times that it came to its end
        self.log = folder.parent / f"{folder.name}.log"

    def __enter__(self) -> "ChaosJob":
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hetero_pipe", "launch", str(self._toml)],
                env={
                    **os.environ,
                    "CHAOS_SERVERS": str(self._wires_file),
                    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self._start = time.monotonic()
        self._threads = [
            threading.Thread(target=each, daemon=True) for each in (self._follow, self._wait)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._scaling is not None:
            self._scaling.kill()
            self._scaling.wait()
        self._process.terminate()
        for thread in self._threads:
            thread.join()
        for wire in self.wires:
            wire.close()

    @property
    def over(self) -> threading.Event:
        """Is set when the job has ended."""
        return self._over

    def wait_until_begun(self) -> None:
        """Returns when its servers listen, or it has ended: what never ran has nothing to lose."""
        self._begun.wait()

    def pids(self, kind: str) -> Mapping[str, int]:
        """Returns the processes of a kind, `server` or `worker`, that run now, by name."""
        return {
            process["name"]: process["pid"]
            for process in self._status().get("processes", [])
            if process["name"].startswith(kind) and process["pid"] is not None
        }

    def scale(self, number: int) -> str | None:
        """Begins to scale the job; if that is under way, kills who drives it.

        Returns:
            What was done; None if that has just ended by itself.
        """
        if self._scaling is not None:
            if self._scaling.poll() is None:
                self._scaling.kill()
                self._scaling.wait()
                self._scaling = None
                return "killed in the middle"
            self.num_scaled += self._scaling.returncode == 0
            self._scaling = None
        with self.log.open("ab") as log:
            self._scaling = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hetero_pipe", "scale", str(self.folder)),
                    *("--servers", str(number)),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        return f"to {number} servers"

    def wait(self) -> tuple[int, float]:
        """Returns the job's exit code when it has ended, and the seconds that it took."""
        self._over.wait()
        return self._process.returncode, self._seconds

    def _status(self) -> dict:
        found = subprocess.run(
            [sys.executable, "-m", "hetero_pipe", "status", str(self.folder), "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        return json.loads(found.stdout) if found.returncode == 0 else {}

    def _wait(self) -> None:
        self._process.wait()
        self._seconds = time.monotonic() - self._start
        self._over.set()
        self._begun.set()

    def _follow(self) -> None:
        """Lets each wire lead to where its server listens now."""
        while not self._over.wait(0.05):
            try:
                servers = json.loads((self.folder / "servers.json").read_text())["servers"]
            except FileNotFoundError:
                continue
            for wire, address in zip(self.wires, servers, strict=False):
                wire.target = address  # of connections to come
            self._begun.set()
            if len(servers) != self.num_servers:
                self.num_servers = len(servers)
                self._write_wires()

    def _write_wires(self) -> None:
        addresses = [wire.address for wire in self.wires[: self.num_servers]]
        new = self._wires_file.with_suffix(".new")
        new.write_text(json.dumps({"servers": addresses}))
        new.replace(self._wires_file)
