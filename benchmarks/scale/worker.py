"""A worker of the job: pulls and pushes one batch after another, and writes when each was done."""

import argparse
import struct
import sys
import time
from pathlib import Path

import hetero_pipe as hp

if __name__ == "__main__":
    hp.launch.begin()

import numpy as np  # after begin

from hetero_pipe.client import Client
from hetero_pipe.data.zipf import BoundedZipf
from ps_server.spec import Adagrad, TableSpec, Uniform

DIM, SLOTS, SAMPLES = 16, 26, 2048
SPEC = TableSpec("t", dim=DIM, optimizer=Adagrad(0.05), initializer=Uniform(-0.1, 0.1))
FILL = 250_000  # keys of a push that fills the table


def main(arguments: list[str]) -> None:
    """Fills the table, then trains until the file `stop` is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True, help="for `steps`, `filled` and `stop`")
    hp.launch.add_arguments(parser)
    flags = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    zipf = BoundedZipf(flags.rows, exponent=1.05)
    with Client(flags.servers) as client, (flags.dir / "steps").open("wb", buffering=0) as steps:
        client.join(rank=0, num_workers=1)
        client.attach([SPEC])
        client.begin(0)
        step = 0

        def push(keys: np.ndarray) -> None:
            nonlocal step
            step += 1
            routed = {"t": client.route(keys)}
            client.pull(routed, insert=True, after_step=step - 1)
            gradients = np.full((len(routed["t"].keys), DIM), 1e-3, np.float32)
            client.push(routed, {"t": gradients}, step=step)

        for first in range(0, flags.rows, FILL):
            push(np.arange(first, min(first + FILL, flags.rows), dtype=np.uint64))
        (flags.dir / "filled").touch()
        while not (flags.dir / "stop").exists():
            push(zipf.sample(SAMPLES * SLOTS, rng).astype(np.uint64))
            steps.write(struct.pack("<d", time.monotonic()))
        print(client.num_rows()["t"], file=sys.stderr)
        client.end()
        client.goodbye()


if __name__ == "__main__":
    hp.launch.run(main)
