"""How good are the example's models on real data? AUC beside scikit-learn's logistic regression.

Both see the same keys, the same split and the same samples; the split is by a
hash of the row, so a seed changes initial weights and the order of samples.
"""

import argparse
import json
import statistics
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
from pairs import MARGIN, run_pairs, summarize
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from task import MODELS, TASKS, Task, build, readers, with_history

import hetero_pipe as hp
from hetero_pipe.metrics import auc


def train_model(task: Task, model_name: str, seed: int) -> float:
    """Returns the AUC of one run of the example's model."""
    paddle.seed(seed)
    model = build(task, model_name, seed)
    train, evaluation = readers(task, model_name, seed)
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
    train, evaluation = readers(task, "deepfm", seed=0)
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


def measure(tasks: Sequence[Task], models: Sequence[str], seeds: Sequence[int]) -> list[dict]:
    """Trains every model with every seed and prints a table."""
    results = []
    print(f"{'data':10} {'model':22} {'median':>8} {'min':>8} {'max':>8} {'sd':>8}")
    for task in tasks:
        for name in (*models, "logistic_regression"):
            if name == "logistic_regression":
                values = [logistic_regression(task)]
            else:
                values = [train_model(task, name, seed) for seed in seeds]
            sd = statistics.stdev(values) if len(values) > 1 else 0.0
            median = statistics.median(values)
            print(
                f"{task.name:10} {name:22} {median:8.4f} {min(values):8.4f} {max(values):8.4f} "
                f"{sd:8.4f}",
                flush=True,
            )
            results.append({"data": task.name, "model": name, "auc": values})
    return results


def compare(task: Task, seeds: Sequence[int], *, python: Path, results: Path) -> list[dict]:
    """Trains pairs and prints a table of their differences."""
    rows = summarize(run_pairs(task, seeds, python=python, results=results))
    print(
        f"{'model':10} {'kind':9} {'pairs':>5} {'AUC':>8} {'PyTorch':>8} {'mean':>9} "
        f"{'95% interval':>20} {'sd':>8} {'p':>8}  within {MARGIN}"
    )
    for row in rows:
        print(
            f"{row['model']:10} {row['kind']:9} {row['pairs']:5} {row['auc']:8.5f} "
            f"{row['torch_auc']:8.5f} {row['mean']:+9.6f} {row['low']:+10.6f}{row['high']:+10.6f} "
            f"{row['sd']:8.6f} {row['p']:8.1e}  {'yes' if row['is_equivalent'] else 'no'}"
        )
    return rows


def main() -> None:
    """Reads the flags, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 seeds; MovieLens alone")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument(
        "--models", metavar="NAMES", default=",".join(MODELS), help="default: %(default)s"
    )
    parser.add_argument("--seeds", type=int, help="default: 5; 20 with --torch")
    parser.add_argument(
        "--torch",
        metavar="PYTHON",
        type=Path,
        help="pairs with PyTorch on flights, run by this one",
    )
    parser.add_argument(
        "--results",
        metavar="FILE",
        type=Path,
        default=Path("pairs.jsonl"),
        help="pairs done, not run again; after a change, delete it; default: %(default)s",
    )
    flags = parser.parse_args()
    if flags.torch and flags.seeds == 1:
        parser.error("a difference has a spread from --seeds 2 on, got 1")
    seeds = range(2 if flags.quick else flags.seeds or (20 if flags.torch else 5))
    with tempfile.TemporaryDirectory() as folder:
        tasks = [replace(task, path=with_history(task.path, Path(folder))) for task in TASKS]
        if flags.torch:
            found = compare(tasks[1], seeds, python=flags.torch, results=flags.results)
        else:
            models = flags.models.split(",")
            found = measure(tasks[:1] if flags.quick else tasks, models, seeds)
    if flags.json:
        print(json.dumps({"results": found}))


if __name__ == "__main__":
    main()
