"""Pairs of runs, one of hetero_pipe and one of PyTorch, and whether their AUCs are equivalent.

A pair has the same initial dense weights and rows, the same batches in the same
order and the same optimizers: what is left to differ is arithmetic, and a
mistake. Two more comparisons say what the pairs are worth:

    unpaired    PyTorch draws weights, rows and order of its own: the difference
                of two seeds is in it, too
    control     paired, but PyTorch's Adagrad starts at 0 as is its default: a
                mistake that the test must see
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import paddle
from scipy import stats
from task import MODELS, Task, build, readers

import hetero_pipe as hp
from hetero_pipe.data import Bags, Batch, Reader
from hetero_pipe.metrics import auc
from hetero_pipe.nn import find_embeddings
from ps_server.table import Table

__all__ = ["MARGIN", "run_pairs", "summarize"]

PEER = Path(__file__).with_name("peer_torch.py")
MARGIN = 0.001  # of AUC
HIDDEN = (200, 200)  # of the example's (400, 400, 400): 240 runs are to end within hours
BATCH_SIZE = 1024
DENSE_LR = 1e-3


def kinds(model: str) -> tuple[str, ...]:
    """Returns what a model's runs are compared with."""
    return ("paired", "unpaired", "control") if model == "deepfm" else ("paired",)


def run_pairs(task: Task, seeds: Sequence[int], *, python: Path, results: Path) -> list[dict]:
    """Runs the pairs that `results`, a file of JSON lines, does not hold yet.

    Args:
        task: Trained for one epoch.
        seeds: One pair each.
        python: Of an environment with PyTorch.
        results: Made if it is not there; a line is added after each pair.

    Returns:
        The lines of these seeds.
    """
    task = replace(task, epochs=1, batch_size=BATCH_SIZE)
    wanted = [(seed, model, kind) for seed in seeds for model in MODELS for kind in kinds(model)]
    lines = results.read_text().splitlines() if results.exists() else []
    found = {
        tuple(line[n] for n in ("seed", "model", "kind")): line for line in map(json.loads, lines)
    }
    todo = [pair for pair in wanted if pair not in found]
    start, num_done = time.perf_counter(), 0
    for seed, model in dict.fromkeys(pair[:2] for pair in todo):
        with tempfile.TemporaryDirectory() as folder:
            ours = run_ours(task, model, seed, Path(folder))
            for kind in (kind for kind in kinds(model) if (seed, model, kind) in todo):
                line = {"seed": seed, "model": model, "kind": kind, **ours}
                line |= run_torch(python, Path(folder), kind)
                found[seed, model, kind] = line
                with results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                num_done += 1
                hours = (time.perf_counter() - start) / 3600
                print(
                    f"{num_done}/{len(todo)} seed {seed} {model} {kind}: AUC {line['auc']:.5f}, "
                    f"PyTorch's {line['torch_auc'] - line['auc']:+.5f}; {line['seconds']:.0f} and "
                    f"{line['torch_seconds']:.0f} s; {hours * 60 * (len(todo) / num_done - 1):.0f} "
                    "minutes to go",
                    file=sys.stderr,
                    flush=True,
                )
    return [found[pair] for pair in wanted]


@dataclass(frozen=True)
class Held:
    """A reader of the batches of one epoch, in memory: both sides take the very same."""

    slots: tuple[str, ...]
    held: tuple[Batch, ...]
    dense: tuple[str, ...] = ()

    @staticmethod
    def of(reader: Reader) -> "Held":
        """Returns what a reader's first epoch is."""
        return Held(reader.slots, tuple(reader.batches(0)))

    def batches(self, epoch: int, *, skip: int = 0) -> Iterator[Batch]:
        """Returns the batches after the first `skip`, whatever the epoch."""
        return iter(self.held[skip:])

    def in_order(self) -> "Held":
        """Returns itself."""
        return self


def run_ours(task: Task, model_name: str, seed: int, folder: Path) -> dict:
    """Trains the example's model, and leaves in the folder what PyTorch starts from."""
    paddle.seed(seed)
    model = build(task, model_name, seed, hidden=HIDDEN)
    train, evaluation = map(Held.of, readers(task, model_name, seed))
    optimizer = paddle.optimizer.Adam(DENSE_LR, parameters=model.parameters())
    with hp.Trainer(model, optimizer=optimizer) as trainer:
        parts = {"train": train, "eval": evaluation}
        write_job(folder, parts, task=task, model_name=model_name, model=model, seed=seed)
        start = time.perf_counter()
        trainer.fit(train, callbacks=[])
        seconds = time.perf_counter() - start
        probabilities = trainer.predict(evaluation)
    label = np.concatenate([batch.label for batch in evaluation.held])
    np.save(folder / "label.npy", label)
    return {"auc": auc(label, probabilities), "seconds": seconds}


def write_job(
    folder: Path,
    parts: Mapping[str, Held],
    *,
    task: Task,
    model_name: str,
    model: paddle.nn.Layer,
    seed: int,
) -> None:
    """Writes settings, first weights and samples, as `peer_torch.py` takes them."""
    bags = [bag for part in parts.values() for batch in part.held for bag in batch.bags.values()]
    keys = np.unique(np.concatenate([bag.keys for bag in bags]))
    job = {f"dense/{name}": value.numpy() for name, value in model.named_parameters()}
    for name, layer in find_embeddings(model).items():
        spec = layer.spec(name)
        # A held-out key that was not trained on predicts with the row that it would start with.
        job[f"table/{name}"] = Table(spec).pull(keys, insert=False)
    for part, batches in ((part, reader.held) for part, reader in parts.items()):
        ids = [
            np.stack([np.searchsorted(keys, batch.bags[slot].keys) for slot in task.slots], axis=1)
            for batch in batches
        ]
        job[f"{part}/ids"] = np.concatenate(ids)
        job[f"{part}/label"] = np.concatenate([batch.label for batch in batches])
        if "history" in batches[0].bags:
            history = Bags.concat([batch.bags["history"] for batch in batches])
            job[f"{part}/history"] = np.searchsorted(keys, history.keys)
            job[f"{part}/history_offsets"] = history.offsets
    settings = {
        "model": model_name,
        "num_slots": len(task.slots),
        "seed": seed,
        "batch_size": task.batch_size,
        "hidden": HIDDEN,
        "target": task.slots.index(task.target),
        "dense_lr": DENSE_LR,
        "lr": spec.optimizer.learning_rate,
        "epsilon": spec.optimizer.epsilon,
        "initial_accumulator": spec.optimizer.initial_accumulator,
    }
    np.savez(folder / "job.npz", settings=json.dumps(settings), **job)


def run_torch(python: Path, folder: Path, kind: str) -> dict:
    """Runs the peer on the job in the folder."""
    arguments = [python, PEER, folder / "job.npz", folder / "out.npy", kind]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    label = np.load(folder / "label.npy")
    return {
        "torch_auc": auc(label, np.load(folder / "out.npy")),
        "torch_seconds": found["seconds"],
        "torch": found["torch"],
    }


def summarize(lines: Sequence[dict]) -> list[dict]:
    """Returns for each comparison the mean difference of AUC, ours less PyTorch's, and its tests.

    `p` is that of two one-sided t-tests (Schuirmann, "A comparison of the two
    one-sided tests procedure and the power approach for assessing the equivalence
    of average bioavailability", 1987): below 0.05, the mean difference is within
    `MARGIN` either way at 95%. `low` and `high` bound its 95% interval.
    """
    rows = []
    for model, kind in dict.fromkeys((line["model"], line["kind"]) for line in lines):
        mine = [line for line in lines if (line["model"], line["kind"]) == (model, kind)]
        differences = [line["auc"] - line["torch_auc"] for line in mine]
        mean, n = statistics.fmean(differences), len(differences)
        error = statistics.stdev(differences) / n**0.5
        half = float(stats.t.ppf(0.975, n - 1)) * error
        p = float(stats.t.sf((MARGIN - abs(mean)) / error, n - 1))
        rows.append(
            {
                "model": model,
                "kind": kind,
                "pairs": n,
                "auc": statistics.fmean(line["auc"] for line in mine),
                "torch_auc": statistics.fmean(line["torch_auc"] for line in mine),
                "mean": mean,
                "low": mean - half,
                "high": mean + half,
                "sd": statistics.stdev(differences),
                "p": p,
                "is_equivalent": p < 0.05,
            }
        )
    return rows
