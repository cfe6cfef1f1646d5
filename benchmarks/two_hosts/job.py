"""One worker of a job: a small model on batches held in memory, so that the wire is the load."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import hetero_pipe as hp

if __name__ == "__main__":
    hp.launch.begin()

import paddle
from paddle import nn

DIM = 16


class SmallModel(nn.Layer):
    """Logistic regression on the embeddings and the dense columns."""

    def __init__(self, slots: Sequence[str], num_dense: int) -> None:
        super().__init__()
        self.embedding = hp.Embedding(slots, dim=DIM, name="embedding")
        self.linear = nn.Linear(len(slots) * DIM + num_dense, 1)

    def forward(self, batch: Mapping[str, paddle.Tensor]) -> paddle.Tensor:
        """Returns logits `[batch, 1]`."""
        return self.linear(
            paddle.concat([self.embedding(batch).flatten(1), batch["dense"]], axis=1)
        )


@dataclass(frozen=True)
class Repeated:
    """A reader of batches that are there, over and over."""

    items: Sequence[hp.Batch]
    num_steps: int

    @property
    def slots(self) -> tuple[str, ...]:
        """Of the batches."""
        return tuple(self.items[0].bags)

    @property
    def dense(self) -> tuple[str, ...]:
        """Of the batches."""
        return self.items[0].dense_names

    def batches(self, epoch: int, *, skip: int = 0) -> Iterator[hp.Batch]:
        """Returns the batches of an epoch."""
        return (self.items[i % len(self.items)] for i in range(skip, self.num_steps))

    def in_order(self) -> "Repeated":
        """Returns this reader."""
        return self


def main(arguments: list[str]) -> None:
    """Trains for some steps that fill tables and pipeline, then for those that are timed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=100, help="timed, of all readers together")
    hp.launch.add_arguments(parser)
    flags = parser.parse_args(arguments)
    paddle.seed(0)
    reader = hp.synthetic_criteo(
        num_samples=8 * flags.batch_size, batch_size=flags.batch_size, seed=1
    )
    batches = list(reader.batches(0)) if flags.stage != "dense" else [next(reader.batches(0))]
    model = SmallModel(reader.slots, len(reader.dense))
    plan = hp.default_plan(
        model,
        servers=flags.servers,
        staleness=flags.staleness,
        workers=hp.launch.workers_plan(flags),
    )
    optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
    with hp.Trainer(
        model, optimizer=optimizer, plan=plan, worker=hp.launch.worker(flags)
    ) as trainer:
        trainer.fit(Repeated(batches, 16), callbacks=[])
        result = trainer.fit(Repeated(batches, flags.steps), callbacks=[])
    if flags.stage != "dense" and flags.worker == 0:
        print(result.summary, file=sys.stderr)
        print(
            json.dumps(
                {
                    "samples_per_second": result.samples_per_second,
                    "samples": (flags.steps + 16) * flags.batch_size,
                    "bottleneck": result.timeline.bottleneck,
                }
            )
        )


if __name__ == "__main__":
    hp.launch.run(main)
