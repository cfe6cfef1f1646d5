"""Checkpoints of sparse and dense workers, each a process: those of one process, bit for bit."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.toy import assert_equal, state_in
from tests.trainer.test_remote import free_addresses

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

WORKER = """
import json
import sys
import paddle
import hetero_pipe as hp
from tests.toy import DeepFM, adam, read


class WithDropout(DeepFM):
    def forward(self, batch):
        rows = paddle.nn.functional.dropout(self.embedding(batch), 0.2, training=self.training)
        return self.logits(self.first_order(batch), rows, batch["dense"])


job, stage, rank = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
paddle.seed(0)
model = WithDropout(optimizer=hp.Adam(0.01))
reader = read(job["path"], shuffle=200)
plan = hp.default_plan(
    model,
    servers=job["servers"],
    workers=hp.WorkersPlan("sync", num_readers=job["num_readers"], dense=tuple(job["dense"])),
)
worker = hp.Worker(stage, rank, job["coordinator"]) if job["coordinator"] else None
with hp.Trainer(model, optimizer=adam(model.parameters()), plan=plan, worker=worker) as trainer:
    try:
        if job["load"]:
            trainer.load(job["load"])
        result = trainer.fit(reader, callbacks=[], **job["fit"])
        trainer.save(job["save"])
        print(result.num_steps, result.loss, result.auc)
    except hp.CheckpointError as error:
        print(error)
"""


@pytest.fixture
def train(path, daemon):
    """Returns a function that trains on servers of their own; it gives what each has said."""

    def run(save, *, num_readers=1, num_dense=1, load=None, **fit):
        workers = [("sparse", rank) for rank in range(num_readers)]
        workers += [("dense", rank) for rank in range(num_dense)]
        coordinator, *dense = free_addresses(1 + num_dense)
        if num_dense == 0:
            workers, coordinator = [("whole", 0)], None
        job = {
            "path": str(path),
            "servers": [daemon().address],
            "num_readers": num_readers,
            "dense": dense,
            "coordinator": coordinator,
            "save": str(save),
            "load": None if load is None else str(load),
            "fit": fit,
        }
        with ExitStack() as running:
            processes = [
                running.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-c", WORKER, json.dumps(job), stage, str(rank)],
                        env={**os.environ, "PYTHONPATH": str(ROOT)},
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
                for stage, rank in workers
            ]
            for process in processes:
                running.callback(process.kill)
            said = []
            for process in processes:
                out, log = process.communicate(timeout=100)
                assert process.returncode == 0, log
                said.append(out)
        return said

    return run


def check_equal(found, expected):
    """Two folders have the same state, and equal files of what is no table."""
    assert_equal(state_in(found), state_in(expected))
    for name in ("dense.npz", "progress.npz"):
        with np.load(found / name) as there, np.load(expected / name) as here:
            assert_equal(dict(there), dict(here))


@pytest.mark.parametrize("steps", [27, pytest.param(20, marks=pytest.mark.long)])
def test_a_checkpoint_is_that_of_one_process_and_either_goes_on_with_it(steps, train, tmp_path):
    """At the end of an epoch, and within one."""
    alone, apart, end = tmp_path / "alone", tmp_path / "apart", tmp_path / "end"
    train(alone, num_dense=0, epochs=2, max_steps=steps)
    train(apart, epochs=2, max_steps=steps)
    check_equal(apart, alone)
    whole = train(end, num_dense=0, epochs=2)
    for number, num_dense in enumerate((0, 1)):  # what the others wrote
        source = apart if num_dense == 0 else alone
        said = train(tmp_path / str(number), num_dense=num_dense, load=source, epochs=2)
        check_equal(tmp_path / str(number), end)
        assert {line.split(" ", 1)[1] for line in said} == {whole[0].split(" ", 1)[1]}
        assert all(line.startswith(f"{40 - steps} ") for line in said)


@pytest.mark.long
def test_many_workers_go_on_within_an_epoch(train, tmp_path):
    """`fit` saves after its steps, too, and what the second dense worker draws is its own."""
    many = {"num_readers": 2, "num_dense": 2, "epochs": 2}
    train(tmp_path / "end", **many)
    train(tmp_path / "again", **many, max_steps=7, save_to=str(tmp_path / "c"))
    check_equal(tmp_path / "c", tmp_path / "again")
    train(tmp_path / "found", **many, load=tmp_path / "c")
    check_equal(tmp_path / "found", tmp_path / "end")


@pytest.mark.parametrize("method", ["fit", "save", "load"])
def test_a_checkpoint_that_cannot_be_written_or_read_is_refused_by_all(method, train, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "notes").write_text("mine")
    fit = {"max_steps": 3, "save_to": str(notes)} if method == "fit" else {"max_steps": 3}
    said = train(
        notes if method == "save" else tmp_path / "c",
        load=notes if method == "load" else None,
        **fit,
    )
    assert len(said) == 2
    for each in said:
        assert ("a folder with manifest.json" if method == "load" else "replaces another") in each
    assert not (tmp_path / "c").exists()
    assert [path.name for path in notes.iterdir()] == ["notes"]
