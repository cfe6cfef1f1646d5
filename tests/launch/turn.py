"""A job's script that trains nothing; what a worker does in its turn is said by arguments.

Each prints a line of JSON, what it was told. Its turn is how often it has started, by the
lines that it adds to a file. It knows `--servers @FILE` by itself, and no trainer.
"""

import argparse
import json
import os
import sys
import threading
from pathlib import Path

import hetero_pipe as hp

if __name__ == "__main__":
    hp.launch.begin()


def main(arguments: list[str]) -> int:
    """Does as it is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", metavar="@FILE")
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--fail", type=int, nargs=2, metavar=("RANK", "TURNS"), default=[0, 0])
    parser.add_argument("--code", type=int, default=7, help="of a turn that fails")
    parser.add_argument("--same", action="store_true", help="what a turn that fails says")
    parser.add_argument("--wait", action="store_true", help="for a signal")
    flags, _ = parser.parse_known_args(arguments)
    turns = flags.dir / f"turns.{flags.worker}"
    with turns.open("a+") as file:
        file.write("turn\n")
        file.seek(0)
        turn = len(file.readlines())
    servers = json.loads(Path(flags.servers[1:]).read_text())["servers"] if flags.servers else []
    told = {"worker": flags.worker, "turn": turn, "pid": os.getpid(), "servers": servers}
    print(json.dumps(told), flush=True)
    rank, failing = flags.fail
    if rank == flags.worker and turn <= failing:
        print("error: no luck", "" if flags.same else f"in turn {turn}", file=sys.stderr)
        return flags.code
    if flags.wait:
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    hp.launch.run(main)
