"""Becomes a command that ends when the process that started it does, however that ends.

Run as a script, `child.py PARENT_PID COMMAND...`: between a fork and the command,
a launcher that has threads may run no Python of its own.
"""

import ctypes
import os
import signal
import sys

__all__: list[str] = []

PR_SET_PDEATHSIG = 1  # of prctl(2)


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of ours
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":  # elsewhere, a launcher that is killed leaves its processes behind
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:  # else it ended before prctl
        os.execv(command[0], command)


if __name__ == "__main__":
    _main()
