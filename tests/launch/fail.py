"""A job's script whose worker 1, or dense worker, fails at its sixth step, as it is told to."""

import argparse
import os
import signal
import sys

import hetero_pipe as hp

if __name__ == "__main__":
    hp.launch.begin()

import paddle  # after begin

from tests.launch.family import ROOT

MOVIELENS = ROOT / "examples" / "ctr" / "data" / "movielens" / "movielens.parquet"


def divide() -> None:
    """Raises what no stage expects."""
    _ = 1 / 0


WAYS = {
    "exit": lambda: sys.exit(7),
    "raise": divide,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
}


class Model(paddle.nn.Layer):
    """Calls something at its sixth step."""

    def __init__(self, fail) -> None:
        super().__init__()
        self.users = hp.Embedding(["user"], dim=4)
        self.dense = paddle.nn.Linear(4, 1)
        self.fail = fail
        self.num_calls = 0

    def forward(self, batch):
        self.num_calls += 1
        if self.num_calls == 6 and self.fail is not None:
            self.fail()
        return self.dense(self.users(batch).flatten(1))


def main(arguments: list[str]) -> None:
    """Trains until it fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=WAYS)
    hp.launch.add_arguments(parser)
    flags = parser.parse_args(arguments)
    worker = hp.launch.worker(flags)
    is_it = worker.stage == "dense" or worker.rank == 1
    model = Model(WAYS[flags.how] if is_it else None)
    workers = hp.launch.workers_plan(flags)
    plan = hp.default_plan(model, servers=flags.servers, staleness=flags.staleness, workers=workers)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    with hp.Trainer(model, optimizer=optimizer, plan=plan, worker=worker) as trainer:
        trainer.fit(hp.read_parquet(MOVIELENS, slots=["user"], batch_size=64), epochs=1000)


if __name__ == "__main__":
    hp.launch.run(main)
