"""The script of the job that is killed: it fills a table, trains on it, and tells what and when.

Each line on stdout is JSON with the time, in seconds since 1970.
"""

import argparse
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import hetero_pipe as hp

started = time.time()
if __name__ == "__main__":
    hp.launch.begin()

import numpy as np  # noqa: E402
import paddle  # noqa: E402
from paddle import nn  # noqa: E402
from sizes import BATCH, DIM, FILL, FILL_BYTES, HIDDEN, NUM_DENSE, SLOTS, keys_of  # noqa: E402

from hetero_pipe.client import Client  # noqa: E402
from hetero_pipe.data import Bags  # noqa: E402
from ps_server.spec import TableSpec  # noqa: E402


def say(what: str, **more: object) -> None:
    """Tells what is done now."""
    print(json.dumps({"what": what, "time": time.time(), **more}), flush=True)


@dataclass(frozen=True)
class Uniform:
    """A reader without end; each key is any of the rows, so that all of them are in use."""

    num_rows: int
    slots: tuple[str, ...] = SLOTS
    dense: tuple[str, ...] = tuple(f"dense{i}" for i in range(NUM_DENSE))

    def batches(self, epoch: int, *, skip: int = 0) -> Iterator[hp.Batch]:
        """Returns the batches of an epoch; each is a function of its number."""
        number = skip
        while True:
            rng = np.random.default_rng([epoch, number])
            bags = {
                slot: Bags(keys_of(rng.integers(0, self.num_rows, BATCH))) for slot in self.slots
            }
            dense = rng.standard_normal((BATCH, NUM_DENSE), dtype=np.float32)
            label = (rng.random(BATCH) < 0.25).astype(np.float32)
            yield hp.Batch(bags, dense, label, self.dense)
            number += 1

    def in_order(self) -> "Uniform":
        """Returns this reader."""
        return self


class Model(nn.Layer):
    """Rows and dense values through some layers."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = hp.Embedding(SLOTS, dim=DIM, optimizer=hp.Adagrad(0.05))
        widths = [len(SLOTS) * DIM + NUM_DENSE, *HIDDEN]
        layers = [(nn.Linear(*pair), nn.ReLU()) for pair in pairwise(widths)]
        self.deep = nn.Sequential(*chain(*layers), nn.Linear(widths[-1], 1))

    def forward(self, batch):
        inputs = paddle.concat([self.rows(batch).flatten(1), batch["dense"]], axis=1)
        return self.deep(inputs)


def fill(servers: Sequence[str], spec: TableSpec, num_rows: int) -> None:
    """Pushes to all rows, until the servers' journals are so long that a checkpoint is written."""
    rng = np.random.default_rng(0)
    gradients = rng.normal(scale=1e-2, size=(FILL, DIM)).astype(np.float32)
    num_pushes = max(num_rows // FILL, FILL_BYTES // (FILL * (8 + 4 * DIM)))
    with Client(servers) as client:
        client.attach([spec])
        for step in range(num_pushes):
            first = step * FILL % num_rows
            routed = client.route(keys_of(np.arange(first, first + FILL)))
            client.push({spec.name: routed}, {spec.name: gradients}, step=step + 1)


class Tell:
    """Tells the end of each step."""

    def on_step(self, report) -> None:
        say("step", step=report.step + 1)

    def on_epoch(self, epoch, evaluation) -> None:
        """There is one alone."""


def main(arguments: list[str]) -> None:
    """Trains until it is stopped."""
    print(json.dumps({"what": "started", "time": started}))
    say("imported")
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--save-every", type=int)
    hp.launch.add_arguments(parser)
    flags = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    paddle.seed(0)
    model = Model()
    optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
    plan = hp.default_plan(model, servers=flags.servers)
    goes_on = hp.has_checkpoint(flags.save)
    if not goes_on:
        fill(flags.servers, model.rows.spec("rows"), flags.rows)
        say("filled")
    with hp.Trainer(
        model,
        optimizer=optimizer,
        plan=plan,
        worker=hp.launch.worker(flags),
        retry_seconds=flags.retry_seconds,
        fresh=goes_on,
    ) as trainer:
        say("attached")
        if goes_on:
            trainer.load(flags.save)
            say("loaded")
        trainer.fit(
            Uniform(flags.rows),
            save_to=flags.save,
            save_every=flags.save_every,
            keep=1,
            callbacks=[Tell()],
        )


if __name__ == "__main__":
    hp.launch.run(main)
