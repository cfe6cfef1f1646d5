"""What the example's models are measured on."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import hetero_pipe as hp

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / "ctr"), str(ROOT / "examples" / "ctr" / "data")]

from history import earlier_values  # noqa: E402  # the example is no package
from models import MODELS  # noqa: E402

__all__ = ["TASKS", "Task", "build", "readers", "with_history"]


@dataclass(frozen=True)
class Task:
    """A data set and how the example trains on it.

    Attributes:
        name: Of the data set.
        path: A Parquet file; see `with_history`.
        label: A column of 0 and 1.
        slots: Of every model, and what the split goes by.
        target: The slot that DIN compares with the column `history`.
        eval_fraction: Held out.
        epochs: Of training.
        batch_size: In training.
    """

    name: str
    path: Path
    label: str
    slots: tuple[str, ...]
    target: str
    eval_fraction: float
    epochs: int
    batch_size: int


TASKS = (
    Task(
        "movielens",
        ROOT / "examples" / "ctr" / "data" / "movielens" / "movielens.parquet",
        "label",
        ("user", "movie", "genres", "hour", "weekday"),
        target="movie",
        eval_fraction=0.1,
        epochs=3,
        batch_size=512,
    ),
    Task(
        "flights",
        ROOT / "tests" / "data" / "flights.parquet",
        "late",
        ("carrier", "flight", "tailnum", "origin", "dest", "month", "day", "sched_dep_time"),
        target="dest",
        eval_fraction=0.2,
        epochs=3,
        batch_size=512,
    ),
)


def with_history(path: Path, folder: Path) -> Path:
    """Returns a file that has the column `history`, writing one into `folder` if need be.

    Of flights it has, for each, the last 10 destinations of its aircraft.
    """
    table = pq.read_table(path)
    if "history" in table.column_names:
        return path
    date = pc.add(pc.multiply(table["month"].cast(pa.int64()), 100), table["day"])
    time = pc.add(pc.multiply(date, 10_000), table["sched_dep_time"])
    aircraft, time, dest = (
        column.combine_chunks() for column in (table["tailnum"], time, table["dest"])
    )
    history = earlier_values(aircraft, time, dest, last=10)
    pq.write_table(table.append_column("history", history), folder / path.name)
    return folder / path.name


def build(task: Task, model_name: str, seed: int, **options: object):
    """Returns a model of the example."""
    if model_name == "din":
        options["target"] = task.target
    return MODELS[model_name](task.slots, seed=seed, **options)


def readers(task: Task, model_name: str, seed: int):
    """Returns the training and the evaluation reader: of each model the same samples, in order."""
    is_din = model_name == "din"
    reader = hp.read_parquet(
        task.path,
        slots=[*task.slots, "history"] if is_din else task.slots,
        shared_keys={"history": task.target} if is_din else None,
        label=task.label,
        batch_size=task.batch_size,
        shuffle=400_000,
        seed=seed,
    )
    return reader.split(task.eval_fraction, by=task.slots)
