"""A process and all that descend from it, found by a mark in their environment: not a test."""

import os
import signal
import subprocess
import uuid
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 120.0


class Family:
    """A process with those that it starts.

    Attributes:
        process: Its Popen; stdout is a pipe of text.
    """

    def __init__(self, command, *, path=(), **options):
        self._mark = f"HETERO_PIPE_TEST={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        paths = os.pathsep.join(map(str, [*path, ROOT]))
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, name: value},
            **options,
        )

    def pids(self):
        """Returns the ids of all that run, also of those whose parent has ended."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes()  # of a zombie it is empty
            except OSError:  # it has just ended
                continue
            if self._mark.encode() in environment.split(b"\0"):
                found.append(int(folder.name))
        return found

    def end(self):
        """Returns the exit code, the rest of stdout, and stderr; nobody is left then."""
        out, err = self.process.communicate(timeout=SECONDS)
        assert self.pids() == [], out
        return self.process.returncode, out, err

    def kill(self):
        """Ends all of it, for a test that has failed; returns who was left."""
        left = self.pids()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()
        return left
