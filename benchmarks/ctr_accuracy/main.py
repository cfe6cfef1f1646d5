"""How good are the example's models on real data? AUC beside scikit-learn's logistic regression.

Both see the same keys, the same split and the same samples; the split is by a
hash of the row, so a seed changes initial weights and the order of samples.
"""

import argparse
import json
import statistics
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import paddle
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

import hetero_pipe as hp
from hetero_pipe.metrics import auc

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "ctr"))

from models import MODELS  # noqa: E402  # the example is no package


@dataclass(frozen=True)
class Task:
    """A data set and how the example trains on it."""

    name: str
    path: Path
    label: str
    slots: tuple[str, ...]
    eval_fraction: float
    epochs: int
    batch_size: int


TASKS = (
    Task(
        "movielens",
        ROOT / "examples" / "ctr" / "data" / "movielens" / "movielens.parquet",
        "label",
        ("user", "movie", "genres", "hour", "weekday"),
        eval_fraction=0.1,
        epochs=3,
        batch_size=512,
    ),
    Task(
        "flights",
        ROOT / "tests" / "data" / "flights.parquet",
        "late",
        ("carrier", "flight", "tailnum", "origin", "dest", "month", "day", "sched_dep_time"),
        eval_fraction=0.2,
        epochs=3,
        batch_size=512,
    ),
)


def readers(task: Task, seed: int):
    """Returns the training and the evaluation reader of a task."""
    reader = hp.read_parquet(
        task.path,
        slots=task.slots,
        label=task.label,
        batch_size=task.batch_size,
        shuffle=400_000,
        seed=seed,
    )
    return reader.split(task.eval_fraction)


def train_model(task: Task, model_name: str, seed: int) -> float:
    """Returns the AUC of one run of the example's model."""
    paddle.seed(seed)
    model = MODELS[model_name](task.slots, seed=seed)
    train, evaluation = readers(task, seed)
    optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
    with hp.Trainer(model, optimizer=optimizer) as trainer:
        trainer.fit(train, epochs=task.epochs, callbacks=[])
        found = trainer.evaluate(evaluation).auc
    assert found is not None
    return found


def one_hot(reader, columns: dict[int, int], *, grow: bool) -> tuple[csr_matrix, np.ndarray]:
    """Returns each sample's keys as a row of ones, and the labels."""
    indices, rows, labels, size = [], [], [], 0
    for batch in reader.in_order().batches(0):
        for bags in batch.bags.values():
            samples = np.repeat(np.arange(batch.size), bags.lengths()) + size
            for key, sample in zip(bags.keys.tolist(), samples.tolist(), strict=True):
                column = columns.setdefault(key, len(columns)) if grow else columns.get(key)
                if column is not None:  # a key that was not trained on says nothing
                    indices.append(column)
                    rows.append(sample)
        labels.append(batch.label)
        size += batch.size
    matrix = csr_matrix((np.ones(len(rows)), (rows, indices)), shape=(size, len(columns)))
    return matrix, np.concatenate(labels)


def logistic_regression(task: Task) -> float:
    """Returns the AUC of the best of four penalties: the baseline is not to be a weak one."""
    train, evaluation = readers(task, seed=0)
    columns: dict[int, int] = {}
    x, y = one_hot(train, columns, grow=True)
    x_eval, y_eval = one_hot(evaluation, columns, grow=False)
    best = 0.0
    for c in (0.03, 0.1, 0.3, 1.0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = LogisticRegression(C=c, max_iter=200).fit(x, y)
        best = max(best, auc(y_eval, model.decision_function(x_eval)) or 0.0)
    return best


def main() -> None:
    """Trains every model with every seed and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="MovieLens alone, 2 seeds")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument("--seeds", type=int, default=5, help="default: 5")
    flags = parser.parse_args()
    seeds = range(2 if flags.quick else flags.seeds)
    results = []
    print(f"{'data':10} {'model':22} {'median':>8} {'min':>8} {'max':>8} {'sd':>8}")
    for task in TASKS[:1] if flags.quick else TASKS:
        runs = {name: [train_model(task, name, s) for s in seeds] for name in MODELS}
        runs["logistic_regression"] = [logistic_regression(task)]
        for name, values in runs.items():
            sd = statistics.stdev(values) if len(values) > 1 else 0.0
            median = statistics.median(values)
            print(
                f"{task.name:10} {name:22} {median:8.4f} {min(values):8.4f} {max(values):8.4f} "
                f"{sd:8.4f}",
                flush=True,
            )
            results.append({"data": task.name, "model": name, "auc": values})
    if flags.json:
        print(json.dumps({"results": results}))


if __name__ == "__main__":
    main()
