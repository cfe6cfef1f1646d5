"""A job's script without a model: each worker pushes a few rows and says goodbye."""

import argparse
import os
import sys

import hetero_pipe as hp

if __name__ == "__main__":
    hp.launch.begin()

import numpy as np  # after begin

from hetero_pipe.client import Client
from ps_server.spec import SGD, TableSpec

TABLE = TableSpec("rows", dim=1, optimizer=SGD(1.0), initializer=hp.Constant(0.0))
STEPS = 5


def main(arguments: list[str]) -> None:
    """Pushes -1 to row `worker` at each step; a row then holds how often it was pushed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", type=int, metavar="RANK", help="worker that exits with 7")
    parser.add_argument("--fail-early", type=int, metavar="RANK", help="before it joins")
    parser.add_argument("--wait", action="store_true", help="at the last step, for ever")
    parser.add_argument("--nothing", action="store_true", help="to push")
    hp.launch.add_arguments(parser)
    flags = parser.parse_args(arguments)
    worker = hp.launch.worker(flags)
    print("worker", worker.rank, "is", os.getpid(), flush=True)
    if flags.nothing:
        return
    if flags.fail_early == worker.rank:
        sys.exit(7)
    with Client(flags.servers) as client:
        client.join(rank=worker.rank, num_workers=flags.num_workers)
        client.attach([TABLE])
        client.begin(0)
        keys = {"rows": client.route(np.array([worker.rank], np.uint64))}
        for step in range(1, STEPS + 1):
            rows = client.pull(keys, insert=True, after_step=step - 1)
            if flags.fail == worker.rank and step == STEPS:
                sys.exit(7)
            if flags.wait and step == STEPS:
                print("waits", flush=True)
                client.pull(keys, insert=False, after_step=STEPS)  # its own push never comes
            client.push(keys, {"rows": np.full((1, 1), -1, np.float32)}, step=step)
        rows = client.pull(keys, insert=False, after_step=STEPS)
        print("row", worker.rank, "is", float(rows["rows"][0, 0]), flush=True)
        client.end()
        client.goodbye()


if __name__ == "__main__":
    hp.launch.run(main)
