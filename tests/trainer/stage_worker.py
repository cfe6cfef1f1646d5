"""One worker of a plan, on MovieLens: not a test itself.

As a process it is called with a `Job` as JSON, a stage and a rank. What came of it is
then in the job's folder, in `<stage>-<rank>.npz`.
"""

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import hetero_pipe as hp

import paddle  # isort: skip  # after hetero_pipe

ROOT = Path(__file__).parents[2]
MOVIELENS = ROOT / "examples/ctr/data/movielens/movielens.parquet"
SLOTS = ["user", "movie", "genres", "hour", "weekday"]


@dataclass(frozen=True)
class Job:
    """What all workers are told alike."""

    folder: str
    servers: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    num_readers: int = 1
    model: str = "deepfm"
    mode: str = "bounded"
    wire: str = "float32"
    staleness: int = 0
    steps: int = 20
    batch_size: int = 256
    nan_at: int = -1  # the step whose loss is NaN
    connect_timeout: float = 60.0
    coordinator: str = ""
    epochs: int = 1
    save_to: str = ""
    load: str = ""


class Ready:
    """A callback that says so when the first step is done."""

    is_told = False

    def on_step(self, report):
        if not self.is_told:
            print("ready", flush=True)
        self.is_told = True

    def on_epoch(self, epoch, evaluation):
        pass


class Losses:
    """Binary cross-entropy that remembers each step's value, and is NaN at one of them."""

    def __init__(self, nan_at=-1):
        self.values = []
        self.nan_at = nan_at

    def __call__(self, logits, labels):
        loss = paddle.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        if len(self.values) == self.nan_at:
            loss = loss * float("nan")
        self.values.append(float(loss))
        return loss


def build_model(name):
    """Returns a model of the example, small."""
    sys.path.insert(0, str(ROOT / "examples/ctr"))
    try:
        from models import MODELS
    finally:
        sys.path.pop(0)
    paddle.seed(0)
    return MODELS[name](SLOTS, 0, dim=8, hidden=(32, 16), lr=0.1)


def open_data(job):
    """Returns a reader to train on, which shuffles, and one to evaluate on."""
    is_din = job.model == "din"
    reader = hp.read_parquet(
        MOVIELENS,
        slots=[*SLOTS, "history"] if is_din else SLOTS,
        shared_keys={"history": "movie"} if is_din else None,
        batch_size=job.batch_size,
        shuffle=5_000,
        seed=1,
    )
    rest, evaluation = reader.split(0.01, by=SLOTS)
    return rest, evaluation


def run(job, worker=None):
    """Trains and evaluates as one worker; returns what came of it, by name."""
    model = build_model(job.model)
    optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
    losses = Losses(job.nan_at)
    train, evaluation = open_data(job)
    workers = hp.WorkersPlan(
        job.mode, num_readers=job.num_readers, dense=tuple(job.dense), wire=job.wire
    )
    plan = hp.default_plan(
        model,
        servers=job.servers,
        staleness=job.staleness,
        workers=workers if worker else hp.WorkersPlan(job.mode),
    )
    with hp.Trainer(
        model,
        optimizer=optimizer,
        loss=losses,
        plan=plan,
        worker=worker,
        connect_timeout=job.connect_timeout,
    ) as trainer:
        if job.load:
            trainer.load(job.load)
        if worker is not None and worker.stage == "dense":
            print("ready", flush=True)  # it has no callbacks
        result = trainer.fit(
            train,
            epochs=job.epochs,
            max_steps=job.steps,
            callbacks=[Ready()],
            save_to=job.save_to or None,
        )
        found = trainer.evaluate(evaluation)
        probabilities = trainer.predict(evaluation)
        rows = trainer.num_rows()
    print(result.timeline, file=sys.stderr)
    return {
        **{f"dense/{path}": tensor.numpy() for path, tensor in model.state_dict().items()},
        "losses": np.array(losses.values),
        "loss": np.array(result.loss),
        "auc": np.array(result.auc),
        "steps": np.array(result.num_steps),
        "device": np.array(trainer.plan.stage("dense").device),
        "samples": np.array(result.num_samples),
        "max_staleness": np.array(result.max_staleness),
        "eval_auc": np.array(found.auc),
        "eval_log_loss": np.array(found.log_loss),
        "probabilities": probabilities,
        "rows": np.array(sum(rows.values())),
    }


def main():
    """Runs the worker that the arguments name."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = Job(**json.loads(sys.argv[1]))
    worker = hp.Worker(sys.argv[2], int(sys.argv[3]), coordinator=job.coordinator)
    found = run(job, worker)
    np.savez(Path(job.folder) / f"{worker.stage}-{worker.rank}.npz", **found)


if __name__ == "__main__":
    main()
