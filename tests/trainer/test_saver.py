"""Checkpoints during training: each is of one step, whatever is trained while it is written."""

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import hetero_pipe as hp
from hetero_pipe.client import Client
from hetero_pipe.trainer.checkpoint import Position, read_checkpoint
from hetero_pipe.trainer.device_tables import DeviceTables
from tests.toy import Losses, assert_equal, build, state_in, state_of
from tests.trainer.test_resume import (
    EPOCHS,
    NUM_STEPS,
    STEPS_AN_EPOCH,
    Dropping,
    assert_same_files,
    open_small,
    run,
    warm_restarts,
)

ROOT = Path(__file__).parents[2]
LATER = 60.0
# Of 10 steps, 5 an epoch: those with two more in their epoch, at whose end a save is waited for.
STEPS = np.random.default_rng(6).choice([1, 2, 3, 6, 7, 8], 3, replace=False).tolist()

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return open_small(tmp_path_factory.mktemp("small"))


def names(folder):
    return sorted(os.listdir(folder))


class At:
    """Acts once a step was trained, from 1."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def on_step(self, report):
        if report.step + 1 == self.step:
            self.act()

    def on_epoch(self, epoch, evaluation):
        pass


@pytest.fixture
def held(monkeypatch):
    """Tables are read for a checkpoint once this event is set, but for those of an epoch's end."""
    event, save = threading.Event(), Client.save

    def wait_and_save(self, table, *, freeze=None):
        assert freeze is None or event.wait(LATER)
        return save(self, table, freeze=freeze)

    monkeypatch.setattr(Client, "save", wait_and_save)
    return event


@pytest.mark.parametrize(("step", "servers"), list(zip(STEPS, (0, 1, 3), strict=True)))
def test_a_run_resumed_from_a_save_amid_training_is_the_undisturbed_one(  # noqa: PLR0917
    step, servers, held, small, serve, tmp_path
):
    """Two more steps are trained before a row is read for the checkpoint."""
    undisturbed, resumed = Losses(), Losses()
    with run(servers=serve(servers), loss=undisturbed) as trainer:
        result = trainer.fit(
            small,
            epochs=EPOCHS,
            eval_reader=small,
            save_to=tmp_path / "s",
            save_every=step,
            keep=9,
            callbacks=[At(step + 2, held.set)],
        )
        trainer.save(tmp_path / "end")
    saved = read_checkpoint(tmp_path / "s" / f"step-{step:09d}")
    assert (saved.step, saved.position) == (step, Position(*divmod(step, STEPS_AN_EPOCH)))
    with run(servers=serve(servers), loss=resumed) as trainer:
        trainer.load(saved.path)
        again = trainer.fit(small, epochs=EPOCHS, eval_reader=small)
        trainer.save(tmp_path / "again")
    assert_same_files(tmp_path / "again", tmp_path / "end")
    assert resumed.values == undisturbed.values[step:]
    assert (again.loss, again.auc) == (result.loss, result.auc)
    assert again.evaluations == result.evaluations[-len(again.evaluations) :]


def test_with_staleness_the_tables_are_of_the_step_that_is_saved(held, small, tmp_path):
    """Pulls of later steps have come before: no push of theirs has."""
    with run(staleness=2) as trainer:
        trainer.fit(
            small, save_to=tmp_path, save_every=2, keep=9, callbacks=[At(4, held.set)], max_steps=4
        )
    state = state_in(tmp_path / "step-000000002")
    for name, steps in state.items():
        if name.endswith("/step"):
            assert steps.max() == 2, name


def test_a_save_that_is_due_while_another_is_written_is_left_out(held, small, tmp_path, caplog):
    with caplog.at_level(logging.INFO), run() as trainer:
        trainer.fit(small, save_to=tmp_path, save_every=1, keep=9, callbacks=[At(5, held.set)])
    for step in (2, 3, 4):
        assert f"step {step} is not saved: another checkpoint is still being" in caplog.text
        assert f"step-{step:09d}" not in names(tmp_path)
    assert {"step-000000001", "step-000000005"} <= {*names(tmp_path)}


def test_the_last_ones_are_kept_and_load_takes_the_newest(small, tmp_path):
    with run() as trainer:
        trainer.fit(small, epochs=EPOCHS, save_to=tmp_path / "s", save_every=4, keep=3)
        state = state_of(trainer, tmp_path / "end")
    assert names(tmp_path / "s") == [f"step-{step:09d}" for step in (5, 8, 10)]
    with run() as trainer:
        trainer.load(tmp_path / "s")
        assert_equal(state_of(trainer, tmp_path / "loaded"), state)


def test_ctrl_c_saves_what_was_trained(small, tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    with run() as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(small, save_to=tmp_path / "s", save_every=2, callbacks=[At(3, interrupt)])
        state = state_of(trainer, tmp_path / "end")
    newest = tmp_path / "s" / names(tmp_path / "s")[-1]
    assert read_checkpoint(newest).step >= 3
    assert_equal(state_in(newest), state)


def test_a_disk_that_fails_for_a_while_is_told_and_training_goes_on(small, tmp_path, caplog):
    folder = tmp_path / "s"

    def fail():
        folder.rename(tmp_path / "away")
        folder.write_text("no folder")

    def mend():
        folder.unlink()

    with run() as trainer:
        result = trainer.fit(
            small,
            epochs=EPOCHS,
            save_to=folder,
            save_every=3,
            callbacks=[At(1, fail), At(6, mend)],
        )
    assert result.num_steps == NUM_STEPS
    assert (
        "step 3 is not saved, training goes on: a checkpoint must be written whole" in caplog.text
    )
    assert "step 5 is not saved, training goes on" in caplog.text  # at the end of an epoch
    assert read_checkpoint(folder / "step-000000010").step == 10


def test_what_is_not_saved_in_the_end_is_raised_when_all_is_trained(small, wait_until, tmp_path):
    folder = tmp_path / "s"

    def fail():
        wait_until((folder / "step-000000003").exists)
        folder.rename(tmp_path / "away")
        folder.write_text("no folder")

    with run() as trainer:
        with pytest.raises(hp.CheckpointError, match="must be written whole"):
            trainer.fit(small, save_to=folder, save_every=3, callbacks=[At(4, fail)])
        assert trainer.fit(small, max_steps=1).num_steps == 1  # it can go on
        trainer.save(tmp_path / "c")
    assert read_checkpoint(tmp_path / "c").step == 6
    assert read_checkpoint(tmp_path / "away" / "step-000000003").step == 3


def test_tables_on_the_device_are_saved_amid_training_too(held, small, monkeypatch, tmp_path):
    def plan_of(model):
        return hp.default_plan(model, workers=hp.WorkersPlan("cpu_only"))

    def train():
        model, optimizer = build(Dropping, dense=warm_restarts, optimizer=hp.Adam(0.02))
        return hp.Trainer(model, optimizer=optimizer, plan=plan_of(model))

    save = DeviceTables.save

    def wait_and_save(self, table, *, freeze=None):
        assert freeze is None or held.wait(LATER)
        return save(self, table, freeze=freeze)

    monkeypatch.setattr(DeviceTables, "save", wait_and_save)
    with train() as trainer:
        trainer.fit(
            small, save_to=tmp_path / "s", save_every=2, keep=9, callbacks=[At(4, held.set)]
        )
        state = state_of(trainer, tmp_path / "end")
    with train() as trainer:
        trainer.load(tmp_path / "s" / "step-000000002")
        trainer.fit(small)
        assert_equal(state_of(trainer, tmp_path / "again"), state)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"save_every": 3}, "save_every needs save_to, a folder, got save_every=3 alone"),
        ({"save_every": 0, "save_to": "x"}, "at least 1, got save_every=0 and keep=2"),
        ({"save_every": 3, "keep": 0, "save_to": "x"}, "got save_every=3 and keep=0"),
    ],
)
def test_settings_that_save_nothing_are_refused(options, said, small):
    with run() as trainer, pytest.raises(hp.ConfigError, match=said):
        trainer.fit(small, **options)


# ------------------------------------------------------------------ kill -9

CHILD = """
import os
import signal
import sys
from pathlib import Path

import tests.trainer.test_resume as t

folder, last, num_epochs = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


class Die:
    def on_step(self, report):
        if report.step + 1 == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch(self, epoch, evaluation):
        pass


with t.run() as trainer:
    if any(folder.glob("s/step-*")):
        trainer.load(folder / "s")
    trainer.fit(
        t.open_small(folder),
        epochs=num_epochs,
        save_to=folder / "s",
        save_every=2,
        callbacks=[Die()],
    )
    trainer.save(folder / "end")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_kills", "num_epochs"), [(2, EPOCHS), pytest.param(20, 14, marks=pytest.mark.long)]
)
def test_a_run_killed_at_random_steps_and_resumed_is_the_undisturbed_one(
    num_kills, num_epochs, tmp_path
):
    """By its own hand, at a step that it has counted; a save may be under way."""
    num_steps = num_epochs * STEPS_AN_EPOCH
    rng = np.random.default_rng(num_kills)
    kills = np.sort(rng.choice(np.arange(1, num_steps), num_kills, replace=False)).tolist()
    with run() as trainer:
        trainer.fit(open_small(tmp_path), epochs=num_epochs)
        trainer.save(tmp_path / "undisturbed")
    for last in [*kills, 0]:
        ended = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path), str(last), str(num_epochs)],
            check=False,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=100,
        )
        assert ended.returncode == (-signal.SIGKILL if last else 0)
    assert_same_files(tmp_path / "end", tmp_path / "undisturbed")
    left = [name for name in names(tmp_path / "s") if name.startswith(".")]
    assert left == []
    assert len(names(tmp_path / "s")) == 2
