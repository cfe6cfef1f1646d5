"""Trains a CTR model on a CSV or Parquet file, its tables in this process or on servers.

By default on the bundled MovieLens ratings; README.md beside this file has more. Progress shows
on a terminal only. `hetero-pipe launch` runs it as several processes.
"""

import argparse
import json
import logging
import sys
from pathlib import Path

import hetero_pipe as hp

hp.launch.begin()  # before imports that take seconds: a server needs none of them

import paddle
from models import MODELS
from models.deepfm import SLOTS

SAMPLE = Path(__file__).parent / "data" / "movielens" / "movielens.parquet"


def names(text: str) -> list[str]:
    """Splits a comma-separated flag."""
    return [name.strip() for name in text.split(",") if name.strip()]


def rate(text: str) -> float:
    """Reads a learning rate."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"a learning rate is above 0, got {text}")
    return value


def seed(text: str) -> int:
    """Reads a seed."""
    value = int(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"a seed is at least 0 and below 2**63, got {text}")
    return value


def parse(arguments: list[str]) -> argparse.Namespace:
    """Returns the flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=sorted(MODELS), default="deepfm", help="default: %(default)s")
    data = parser.add_argument_group("data")
    add = data.add_argument
    add("--data", metavar="PATH", type=Path, default=SAMPLE, help="default: bundled MovieLens")
    add("--format", choices=["csv", "parquet"], help="default: by the file's name")
    add("--label", metavar="COLUMN", default="label", help="0 or 1; default: %(default)s")
    add("--slots", metavar="COLUMNS", type=names, default=[*SLOTS], help="default: the sample's")
    add("--dense", metavar="COLUMNS", type=names, default=[], help="numeric, comma-separated")
    add("--history", metavar="COLUMN", default="history", help="din: earlier items, a list")
    add("--target", metavar="COLUMN", default="movie", help="din: the slot they are compared with")
    add("--multi-hot-separator", metavar="TEXT", help="splits one field into several values")
    add("--eval-data", metavar="PATH", type=Path, help="default: 10%% of --data, by a row's hash")
    add("--batch-size", metavar="N", type=int, default=512, help="default: %(default)s")
    run = parser.add_argument_group("training")
    add = run.add_argument
    add("--epochs", metavar="N", type=int, default=3, help="default: %(default)s")
    add("--dim", metavar="N", type=int, default=16, help="of an embedding; default: %(default)s")
    add("--lr", metavar="RATE", type=rate, default=0.1, help="of tables; default: %(default)s")
    add("--seed", metavar="N", type=seed, default=0, help="default: %(default)s")
    add(
        "--save",
        metavar="DIR",
        type=Path,
        help="write a checkpoint after each epoch, and on Ctrl-C",
    )
    add("--save-every", metavar="STEPS", type=int, help="and so often, while training goes on")
    add("--keep", metavar="N", type=int, default=2, help="so many of these; default: %(default)s")
    add("--resume", action="store_true", help="go on from --save if it is there, otherwise begin")
    add("--load", metavar="DIR", type=Path, help="go on from a checkpoint; --epochs counts its too")
    add("--connect-timeout", metavar="SECONDS", type=float, default=40.0, help="default: 40")
    add("--fresh", action="store_true", help="drop this model's tables on the servers first")
    add("--dry-run", action="store_true", help="print the plan and stop")
    add("--json", action="store_true", help="print the result as one JSON object")
    hp.launch.add_arguments(parser)
    flags = parser.parse_args(arguments)
    if flags.resume and not flags.save:
        parser.error("--resume goes on from what --save has written; add --save DIR")
    return flags


def open_data(flags: argparse.Namespace, path: Path):
    """Returns a reader of one file."""
    is_csv = flags.format == "csv" or (flags.format is None and ".csv" in path.name)
    read = hp.read_csv if is_csv else hp.read_parquet
    is_din = flags.model == "din"
    return read(
        path,
        slots=[*flags.slots, flags.history] if is_din else flags.slots,
        shared_keys={flags.history: flags.target} if is_din else None,
        dense=flags.dense,
        label=flags.label,
        batch_size=flags.batch_size,
        shuffle=100_000,
        seed=flags.seed,
        multi_hot_separator=flags.multi_hot_separator,
    )


def main(arguments: list[str]) -> None:
    """Trains, evaluates, and prints what came of it."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)  # Paddle's aside
    flags = parse(arguments)
    hp.launch.take_device(flags)
    paddle.seed(flags.seed)
    sizes = {"dim": flags.dim, "lr": flags.lr, "seed": flags.seed}
    if flags.model == "din":
        sizes |= {"target": flags.target, "history": flags.history}
    model = MODELS[flags.model](flags.slots, len(flags.dense), **sizes)
    plan = hp.default_plan(
        model,
        servers=flags.servers,
        staleness=flags.staleness,
        workers=hp.launch.workers_plan(flags),
    )
    if flags.dry_run:
        print(plan.to_json())
        return
    worker = hp.launch.worker(flags)
    reader = open_data(flags, flags.data)
    train, evaluation = (
        (reader, open_data(flags, flags.eval_data))
        if flags.eval_data
        else reader.split(0.1, by=flags.slots)  # every model is evaluated on the same rows
    )
    optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
    with hp.Trainer(
        model,
        optimizer=optimizer,
        plan=plan,
        worker=worker,
        connect_timeout=flags.connect_timeout,
        retry_seconds=flags.retry_seconds,
        fresh=flags.fresh or flags.resume,  # tables and dense part are of one step
    ) as trainer:
        if flags.resume and hp.has_checkpoint(flags.save):
            trainer.load(flags.save)
        elif flags.load:
            trainer.load(flags.load)
        result = trainer.fit(
            train,
            epochs=flags.epochs,
            save_to=flags.save,
            save_every=flags.save_every,
            keep=flags.keep,
            trace=flags.trace,
        )
        found = trainer.evaluate(evaluation)
        summary = {
            "auc": found.auc,
            "log_loss": found.log_loss,
            "samples_per_second": result.samples_per_second,
            "max_staleness": result.max_staleness,
            "rows": sum(trainer.num_rows().values()),
            "loss": result.loss,
            "steps": result.num_steps,
            "eval_samples": found.num_samples,
        }
    if worker.rank > 0 or worker.stage == "dense":
        return  # the first that reads tells it for all
    print(result.summary, file=sys.stderr)
    if flags.json:
        print(json.dumps(summary))
    else:
        for name, value in summary.items():
            print(f"{name:20} {value:.4f}" if isinstance(value, float) else f"{name:20} {value}")


if __name__ == "__main__":
    hp.launch.run(main)
