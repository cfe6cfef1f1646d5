"""A job's script that trains nothing: what its processes do is said by arguments.

Each prints one line of JSON, what it was told; then it ends, fails or waits for Ctrl-C.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import hetero_pipe as hp

if __name__ == "__main__":
    hp.launch.begin()


def can_connect(address: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError:
        return False
    return True


def main(arguments: list[str]) -> int:
    """Does as it is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait", action="store_true", help="for a signal")
    parser.add_argument("--deaf", action="store_true", help="to Ctrl-C and SIGTERM")
    parser.add_argument("--fail", type=int, metavar="RANK", help="worker that exits with 7")
    parser.add_argument("--follow", type=int, metavar="RANK", help="worker that lost another")
    parser.add_argument("--behind", type=Path, metavar="FIFO", help="that --fail reads before")
    parser.add_argument("--leave-behind", action="store_true", help="a process that holds stdout")
    parser.add_argument("--lines", type=int, default=0, metavar="N", help="to print more")
    hp.launch.add_arguments(parser)
    flags = parser.parse_args(arguments)
    if flags.deaf:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: print("what?", flush=True))
    if flags.leave_behind:
        sleep = [sys.executable, "-c", "import signal; signal.pause()"]
        subprocess.Popen(sleep)
    told = {
        "pid": os.getpid(),
        "stage": flags.stage or "whole",
        "worker": flags.worker,
        "servers": [can_connect(server) for server in flags.servers or []],
    }
    try:
        print(json.dumps(told), flush=True)
        print("a line\n" * flags.lines, end="", flush=True)
        if flags.follow == flags.worker:
            raise hp.WorkerLost("another is lost")
        if flags.fail == flags.worker:
            if flags.behind is not None:
                flags.behind.read_text()
            return 7
        if flags.wait or (flags.fail is not None and flags.mode != "elastic"):
            threading.Event().wait()
    except KeyboardInterrupt:
        print("servers are", [can_connect(server) for server in flags.servers], flush=True)
        raise
    return 0


if __name__ == "__main__":
    hp.launch.run(main)
