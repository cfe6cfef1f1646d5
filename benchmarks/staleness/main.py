"""What does staleness cost? AUC on a planted task, beside the best that any model can reach.

The worst case that staleness k allows: every pull misses exactly the k latest
pushes. A pipeline that keeps up misses fewer, so the loop here runs one step
after the other and holds each push back until k later pulls are done. Seeds
draw the planted model, the samples and the initial weights.
"""

import argparse
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import paddle

import hetero_pipe as hp
from hetero_pipe.client import Client
from hetero_pipe.data import Lookup, occurrences
from hetero_pipe.metrics import auc
from hetero_pipe.nn import DenseStep, Device, TableRows, find_embeddings

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "ctr"))

from models import DeepFM  # noqa: E402  # the example is no package

MARKS = (0.10, 0.25, 0.50, 1.0)
"""Shares of the training samples after which the AUC is measured."""


@dataclass(frozen=True)
class Settings:
    """A task and how it is trained.

    Attributes:
        num_samples: Trained on, each once.
        num_evaluated: Held out.
        scale: Of the cardinalities of Criteo's slots.
        batch_size: Samples of a step.
        dim: Weights of an embedding.
        hidden: Widths of the deep network.
        table_lr: Learning rate of the tables.
        dense_lr: Adam's, of the dense part; it falls to 0 along a cosine.
    """

    num_samples: int = 3_000_000
    num_evaluated: int = 200_000
    scale: float = 1e-4
    batch_size: int = 2048
    dim: int = 8
    hidden: tuple[int, ...] = (64, 32)
    table_lr: float = 0.05
    dense_lr: float = 3e-3


class DelayedLoop:
    """A serial training loop in which every pull misses exactly the latest `staleness` pushes.

    Args:
        model: Has Embeddings.
        optimizer: Of its dense part, which is never stale.
        staleness: Pushes that wait.
    """

    def __init__(self, model: paddle.nn.Layer, optimizer, staleness: int) -> None:
        self._layers = find_embeddings(model)
        self._dense = DenseStep(model, loss=None, optimizer=optimizer, device=Device("cpu"))
        self._client = Client(None)
        self._client.attach([layer.spec(name) for name, layer in self._layers.items()])
        self._staleness = staleness
        self._waiting: deque = deque()
        self.num_steps = 0

    def train(self, batch: hp.Batch) -> None:
        """Pulls, trains, and pushes the gradients of `staleness` steps ago."""
        keys, tables = self._pull(batch, insert=True)
        output = self._dense.train(self.num_steps, batch, tables)
        self.num_steps += 1
        self._waiting.append((keys, output.gradients, self.num_steps))
        if len(self._waiting) > self._staleness:
            keys, gradients, step = self._waiting.popleft()
            self._client.push(keys, gradients, step=step)

    def auc(self, batches: list[hp.Batch]) -> float:
        """Returns the AUC on batches, with the rows as the servers have them now."""
        found = [self._dense.predict(b, self._pull(b, insert=False)[1]) for b in batches]
        area = auc(np.concatenate([b.label for b in batches]), np.concatenate(found))
        assert area is not None
        return area

    def _pull(self, batch: hp.Batch, *, insert: bool):
        routed, lookups = {}, {}
        for slots in {layer.slots for layer in self._layers.values()}:
            routed[slots] = self._client.route(occurrences(batch, slots))
            lookups[slots] = Lookup.of(batch, slots, routed[slots].inverse)
        keys = {name: routed[layer.slots] for name, layer in self._layers.items()}
        rows = self._client.pull(keys, insert=insert)
        return keys, {n: TableRows(rows[n], lookups[self._layers[n].slots]) for n in rows}


@dataclass(frozen=True)
class Task:
    """The samples of one seed, in memory.

    Attributes:
        train: Batches, in order.
        evaluation: Batches, held out.
        best_auc: Of the planted probabilities on the held-out samples.
    """

    train: list[hp.Batch]
    evaluation: list[hp.Batch]
    best_auc: float

    @staticmethod
    def of(settings: Settings, seed: int) -> "Task":
        """Draws the samples of a seed; the held-out ones are the last."""
        size = settings.batch_size
        num_train, num_evaluated = settings.num_samples // size, settings.num_evaluated // size
        reader = hp.synthetic_criteo(
            num_samples=(num_train + num_evaluated) * size,
            batch_size=size,
            seed=seed,
            scale=settings.scale,
        )
        batches = list(reader)
        chance = np.concatenate(list(reader.probabilities(skip=num_train)))
        evaluation = batches[num_train:]
        best = auc(np.concatenate([batch.label for batch in evaluation]), chance)
        assert best is not None
        return Task(batches[:num_train], evaluation, best)


def model_of(task: Task, settings: Settings, seed: int):
    """Returns a new model and the optimizer of its dense part."""
    paddle.seed(seed)
    first = task.train[0]
    model = DeepFM(
        tuple(first.bags),
        first.dense.shape[1],
        dim=settings.dim,
        hidden=settings.hidden,
        lr=settings.table_lr,
        seed=seed,
    )
    rate = paddle.optimizer.lr.CosineAnnealingDecay(settings.dense_lr, T_max=len(task.train))
    return model, paddle.optimizer.Adam(rate, parameters=model.parameters())


def run_delayed(task: Task, settings: Settings, seed: int, staleness: int) -> list[float]:
    """Returns the AUC at each of the marks."""
    loop = DelayedLoop(*model_of(task, settings, seed), staleness)
    marks = [round(share * len(task.train)) for share in MARKS]
    found = []
    for batch in task.train:
        loop.train(batch)
        if loop.num_steps in marks:
            found.append(loop.auc(task.evaluation))
    return found


def run_pipeline(task: Task, settings: Settings, seed: int, staleness: int, capacity: int) -> dict:
    """Trains with a Trainer that may be so stale.

    Args:
        task: The samples.
        settings: Of the model.
        seed: Of the model.
        staleness: Allowed.
        capacity: Pulled batches that may wait for the dense step.

    Returns:
        The AUC, and the pushes that a pull missed on average.
    """
    model, optimizer = model_of(task, settings, seed)
    plan = hp.default_plan(model, staleness=staleness)
    stages = [
        replace(stage, capacity=capacity) if stage.name == "pull" else stage
        for stage in plan.stages
    ]
    plan = replace(plan, stages=tuple(stages))
    with hp.Trainer(model, optimizer=optimizer, plan=plan) as trainer:
        result = trainer.fit(Batches(task.train), callbacks=[])
        area = trainer.evaluate(Batches(task.evaluation)).auc
    return {"auc": area, "mean_staleness": result.mean_staleness}


@dataclass(frozen=True)
class Batches:
    """A reader of batches that are there."""

    items: Sequence[hp.Batch]

    @property
    def slots(self) -> tuple[str, ...]:
        """Of the batches."""
        return tuple(self.items[0].bags)

    @property
    def dense(self) -> tuple[str, ...]:
        """Of the batches."""
        return self.items[0].dense_names

    def batches(self, epoch: int, *, skip: int = 0) -> Iterator[hp.Batch]:
        """Returns the batches of an epoch, all alike."""
        return iter(self.items[skip:])

    def __iter__(self) -> Iterator[hp.Batch]:
        return self.batches(0)

    def in_order(self) -> "Batches":
        """Returns this reader."""
        return self


def spread(values: Sequence[float]) -> str:
    """Returns mean and standard deviation as text."""
    sd = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4f} ±{sd:.4f}"


def show(results: Sequence[dict]) -> None:
    """Prints the distance to the best AUC, mean and deviation over the seeds."""
    best = [each["best_auc"] for each in results]
    print(f"\nbest AUC {spread(best)}; below it, after a share of the samples:")
    print(f"{'':22}" + "".join(f"{share:>17.0%}" for share in MARKS) + f"{'against k=0':>17}")
    for staleness in results[0]["delayed"]:
        gaps = [
            [each["best_auc"] - area for area in each["delayed"][staleness]] for each in results
        ]
        cost = [each["delayed"]["0"][-1] - each["delayed"][staleness][-1] for each in results]
        cells = [spread(values) for values in zip(*gaps, strict=True)]
        line = "".join(f"{cell:>17}" for cell in [*cells, spread(cost)])
        print(f"{'exactly k=' + staleness:22}{line}")
    for name in results[0]["pipeline"]:
        gaps = [each["best_auc"] - each["pipeline"][name]["auc"] for each in results]
        cost = [each["delayed"]["0"][-1] - each["pipeline"][name]["auc"] for each in results]
        seen = statistics.mean(each["pipeline"][name]["mean_staleness"] for each in results)
        line = " " * 51 + f"{spread(gaps):>17}{spread(cost):>17}"
        print(f"{name:22}{line}   missed {seen:.2f} on average")


def main() -> None:
    """Trains every staleness on every seed and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, a tenth of the samples")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument("--seeds", type=int, default=3, help="default: 3")
    flags = parser.parse_args()
    settings = Settings()
    if flags.quick:
        settings = replace(settings, num_samples=settings.num_samples // 10)
    staleness = (0, 16) if flags.quick else (0, 1, 4, 16)
    results = []
    for seed in range(1 if flags.quick else flags.seeds):
        start = time.process_time()
        task = Task.of(settings, seed)
        found: dict = {"seed": seed, "best_auc": task.best_auc, "delayed": {}, "pipeline": {}}
        for k in staleness:
            found["delayed"][str(k)] = run_delayed(task, settings, seed, k)
            text = " ".join(f"{area:.4f}" for area in found["delayed"][str(k)])
            print(f"seed {seed}, exactly k={k}: {text}, best {task.best_auc:.4f}", flush=True)
        k = staleness[-1]
        for capacity in (1 + k, 1):
            run = run_pipeline(task, settings, seed, k, capacity)
            found["pipeline"][f"Trainer k={k}, ahead {capacity}"] = run
            print(
                f"seed {seed}, Trainer, at most k={k}, at most {capacity} pulled ahead: "
                f"{run['auc']:.4f}, missed {run['mean_staleness']:.2f}",
                flush=True,
            )
        found["cpu_seconds"] = time.process_time() - start
        results.append(found)
    show(results)
    if flags.json:
        print(json.dumps({"settings": asdict(settings), "marks": MARKS, "results": results}))


if __name__ == "__main__":
    main()
