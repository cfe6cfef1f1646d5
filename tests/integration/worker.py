"""One worker of tests/integration/test_workers.py, as a script: told by JSON, tells by JSON."""

import hashlib
import json
import sys
import threading
from itertools import chain
from pathlib import Path

import numpy as np

import hetero_pipe as hp
from hetero_pipe.data import TableReader

import paddle  # isort: skip  # after hetero_pipe, as Paddle 2.6 needs

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "examples" / "ctr"))

from models.deepfm import SLOTS, DeepFM  # noqa: E402

MOVIELENS = ROOT / "examples" / "ctr" / "data" / "movielens" / "movielens.parquet"

told = json.loads(sys.argv[1]) if __name__ == "__main__" else {}
never = threading.Event()


def say(**found):
    print(json.dumps(found), flush=True)


class Witness(paddle.nn.Layer):
    """Its rows count pushes: the gradient of each sample's `own` row is 1, of `other` 0.

    What a pull has seen of `other` is remembered.
    """

    def __init__(self):
        super().__init__()
        zero = {"optimizer": hp.SGD(1.0), "initializer": hp.Constant(0.0)}
        self.rows = hp.Embedding(["own", "other"], dim=1, **zero)
        self.seen = []
        self.delays = np.random.default_rng(told["rank"])

    def forward(self, batch):
        rows = self.rows(batch)  # [batch, 2, 1]
        self.seen.append(-float(rows[0, 1, 0]))
        never.wait(self.delays.random() * told.get("delay", 0.0))
        return rows[:, 0, 0] + 0.0 * rows[:, 1, 0].detach()


class Spoilt(DeepFM):
    """Its logits are NaN from a step on."""

    num_calls = 0

    def forward(self, batch):
        logits = super().forward(batch)
        self.num_calls += 1
        return logits * float("nan") if self.num_calls == told["nan_at"] else logits


class Leaver(DeepFM):
    """It ends the process at a step."""

    num_calls = 0

    def forward(self, batch):
        self.num_calls += 1
        if self.num_calls == told["exit_at"]:
            never.wait(told["delay"])
            sys.exit(7)
        return super().forward(batch)


class Torn(TableReader):
    """It cannot be read on at a step."""

    def batches(self, epoch, *, skip=0):
        for number, batch in enumerate(super().batches(epoch, skip=skip)):
            if number // told["size"] == told["torn_at"]:
                raise hp.DataError("line 7 has no label")
            yield batch


class Tell:
    """A callback that says so when the first step is done."""

    def on_step(self, report):
        if report.step == 0:
            say(began=True)

    def on_epoch(self, epoch, evaluation):
        pass


def read(path, slots, **options):
    options |= {"batch_size": told["batch"], "shuffle": told.get("shuffle", 0)}
    reader = hp.read_parquet(path, slots=slots, **options)
    return Torn(**vars(reader)) if told.get("torn_at") else reader


def main():
    paddle.seed(told.get("seed", 0))
    is_witness = told.get("model") == "witness"
    if is_witness:
        model, optimizer, loss = Witness(), None, lambda logits, labels: logits.sum()
        reader = read(told["data"], ["own", "other"], shared_keys={"other": "own"})
    else:
        kind = Spoilt if told.get("nan_at") else Leaver if told.get("exit_at") else DeepFM
        model = kind(SLOTS, dim=told.get("dim", 8), hidden=(32, 16))
        optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
        loss, reader = None, read(told.get("data", MOVIELENS), SLOTS)
    workers = hp.WorkersPlan(
        mode=told["mode"], num_readers=told["size"], average_every=told.get("every", 3)
    )
    plan = hp.default_plan(
        model, servers=told["servers"] or None, staleness=told.get("staleness", 0), workers=workers
    )
    worker = hp.Worker("whole", told["rank"], told["coordinator"])
    with hp.Trainer(
        model, optimizer=optimizer, loss=loss, plan=plan, worker=worker, fresh=told["fresh"]
    ) as trainer:
        if told.get("load"):
            trainer.load(told["load"])
        result = trainer.fit(
            reader,
            epochs=told.get("epochs", 1),
            max_steps=told.get("steps"),
            callbacks=[Tell()] if told.get("tell") else [],
            save_to=told.get("save_to"),
        )
        state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        found = {
            "steps": result.num_steps,
            "samples": result.num_samples,
            "loss": result.loss,
            "digest": b"".join(state[name].tobytes() for name in sorted(state)).hex(),
            "seen": getattr(model, "seen", []),
            "device": plan.stage("dense").device,
            "backend": paddle.distributed.get_backend() if told["size"] > 1 else None,
        }
        if workers.has_own_tables:
            found["rows"] = {
                name: hashlib.sha256(b"".join(map(bytes, chain(*pieces)))).hexdigest()
                for name in trainer.num_rows()
                for pieces in [[content for _, content in trainer._client.save(name)]]
            }
        if told.get("save"):
            trainer.save(told["save"])
        if told.get("evaluate"):
            held = read(told.get("data", MOVIELENS), SLOTS).split(0.05)[1]
            score = trainer.evaluate(held)
            found |= {"auc": score.auc, "log_loss": score.log_loss, "num": score.num_samples}
            found["probabilities"] = trainer.predict(held).tolist()
            found["labels"] = np.concatenate([b.label for b in held.batches(0)]).tolist()
        say(**found)


if __name__ == "__main__":
    main()
