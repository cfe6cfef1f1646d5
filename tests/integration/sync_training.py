"""A job's script for test_resumed_job.py: trains a small model that carries much over, in `sync`.

Dropout draws, and the statistics of a BatchNorm, are each worker's own. A line on stdout tells the
latter after each forward.
"""

import argparse
import json
import threading
from pathlib import Path

import hetero_pipe as hp

if __name__ == "__main__":
    hp.launch.begin()

import paddle
from paddle import nn

from tests.toy import DeepFM, read

EPOCHS, SAVE_EVERY = 2, 3


class Carrying(DeepFM):
    """It waits for ever in one of its forwards, 0 is none."""

    def __init__(self, hold):
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1D(2), nn.Dropout(0.4)
        self._hold, self._num_calls = hold, 0

    def forward(self, batch):
        self._num_calls += 1
        if self._num_calls == self._hold:
            threading.Event().wait()
        rows = self.dropout(self.embedding(batch))
        logits = self.logits(self.first_order(batch), rows, self.norm(batch["dense"]))
        print(json.dumps({"call": self._num_calls, "mean": self.norm._mean.tolist()}), flush=True)
        return logits


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--hold", type=int, nargs=2, metavar=("RANK", "CALL"), default=[0, 0])
    hp.launch.add_arguments(parser)
    flags = parser.parse_args(arguments)
    paddle.seed(flags.worker)
    rank, call = flags.hold
    model = Carrying(hold=call if rank == flags.worker else 0)
    optimizer = paddle.optimizer.Adam(1e-2, parameters=model.parameters())
    workers = hp.launch.workers_plan(flags)
    plan = hp.default_plan(model, servers=flags.servers, workers=workers)
    with hp.Trainer(
        model, optimizer=optimizer, plan=plan, worker=hp.launch.worker(flags), fresh=True
    ) as trainer:
        if hp.has_checkpoint(flags.save):
            trainer.load(flags.save)
        trainer.fit(
            read(flags.data, shuffle=60),
            epochs=EPOCHS,
            save_to=flags.save,
            save_every=SAVE_EVERY,
            keep=9,
        )


if __name__ == "__main__":
    hp.launch.run(main)
