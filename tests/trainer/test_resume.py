"""A run that was stopped anywhere and resumed is the undisturbed run, bit for bit."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paddle import nn

import hetero_pipe as hp
from hetero_pipe.trainer.checkpoint import CheckpointWriter, Position, read_checkpoint
from tests.toy import (
    COLUMNS,
    DeepFM,
    Losses,
    assert_equal,
    read,
    samples,
    state_of,
    training,
    write_csv,
    write_parquet,
)

ROOT = Path(__file__).parents[2]
STEPS_AN_EPOCH, EPOCHS = 5, 2
NUM_STEPS = STEPS_AN_EPOCH * EPOCHS

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track")


class Dropping(DeepFM):
    """With all that a forward may carry over: Dropout, and a BatchNorm's statistics."""

    def __init__(self, **options):
        super().__init__(**options)
        self.norm = nn.BatchNorm1D(2)
        self.dropout = nn.Dropout(0.4)

    def forward(self, batch):
        rows = self.dropout(self.embedding(batch))
        return self.logits(self.first_order(batch), rows, self.norm(batch["dense"]))


def warm_restarts(parameters):
    rate = paddle.optimizer.lr.CosineAnnealingWarmRestarts(0.02, T_0=3, T_mult=2)
    return paddle.optimizer.AdamW(rate, parameters=parameters, weight_decay=0.01)


def run(**trainer):
    return training(Dropping, dense=warm_restarts, optimizer=hp.Adam(0.02), trainer=trainer)


def open_small(folder):
    """5 batches of 32, the last one of 22, in windows that fit neither."""
    path = folder / "small.parquet"
    if not path.exists():
        write_parquet(path, samples(150))
    return read(path, shuffle=60)


def assert_same_files(found, expected):
    """Byte for byte."""
    names = [
        sorted(p.relative_to(f) for p in f.rglob("*") if p.is_file()) for f in (found, expected)
    ]
    assert names[0] == names[1]
    for name in names[0]:
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return open_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def undisturbed(small, tmp_path_factory):
    """The whole run: result, checkpoint, predictions."""
    folder = tmp_path_factory.mktemp("undisturbed") / "c"
    with run() as trainer:
        result = trainer.fit(small, epochs=EPOCHS, eval_reader=small, save_to=folder)
        return result, folder, trainer.predict(small)


def assert_resumes(saved, small, undisturbed, folder, **trainer):
    """Resumes in a new Trainer, with a new model, and compares everything."""
    expected, expected_folder, predictions = undisturbed
    step = read_checkpoint(saved).step
    paddle.seed(12345)  # what the process drew before is no part of it
    with run(**trainer) as resumed:
        paddle.seed(54321)
        resumed.load(saved)
        result = resumed.fit(small, epochs=EPOCHS, eval_reader=small, save_to=folder)
        np.testing.assert_array_equal(resumed.predict(small), predictions)
    assert result.num_steps == NUM_STEPS - step
    assert (result.loss, result.auc) == (expected.loss, expected.auc)
    left = result.evaluations
    assert left == expected.evaluations[EPOCHS - len(left) :]
    if trainer.get("servers"):
        return
    assert_same_files(folder, expected_folder)


def test_dropout_draws_in_this_model(small, undisturbed, tmp_path):
    """Or the tests below would not see a generator that is forgotten."""
    with run() as trainer:
        paddle.seed(99)
        trainer.fit(small, epochs=EPOCHS, eval_reader=small)
        assert trainer.fit(small, epochs=0).num_steps == 0
        assert not np.array_equal(trainer.predict(small), undisturbed[2])


@pytest.mark.parametrize("stop", range(NUM_STEPS + 1))
def test_a_run_stopped_after_any_step_goes_on_bit_for_bit(stop, small, undisturbed, tmp_path):
    with run() as trainer:
        trainer.fit(small, epochs=EPOCHS, max_steps=stop, save_to=tmp_path / "c")
        trainer.save(tmp_path / "c")
    assert_resumes(tmp_path / "c", small, undisturbed, tmp_path / "d")


@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(stops=st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_a_run_stopped_again_and_again_goes_on_bit_for_bit(
    stops, small, undisturbed, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("stopped")
    for i, stop in enumerate(stops):
        with run() as trainer:
            if i:
                trainer.load(folder / "c")
            trainer.fit(small, epochs=EPOCHS, max_steps=stop, save_to=folder / "c")
    assert_resumes(folder / "c", small, undisturbed, folder / "d")


@pytest.mark.parametrize("stop", [3, 8])
@pytest.mark.parametrize("servers", [(2, 0), (0, 2), (2, 3)])
def test_it_goes_on_bit_for_bit_on_another_number_of_servers(
    servers, stop, serve, undisturbed, tmp_path
):
    small = open_small(undisturbed[1].parent)
    before, after = servers
    with run(servers=serve(before)) as trainer:
        trainer.fit(small, epochs=EPOCHS, max_steps=stop, save_to=tmp_path / "c")
    assert_resumes(tmp_path / "c", small, undisturbed, tmp_path / "d", servers=serve(after))
    with run() as trainer:  # however the rows are cut into files
        trainer.load(tmp_path / "d")
        found = state_of(trainer, tmp_path / "found")
        trainer.load(undisturbed[1])
        assert_equal(found, state_of(trainer, tmp_path / "expected"))


class Interrupt:
    """Ctrl-C at a step, by a signal as the terminal's."""

    def __init__(self, at):
        self.at = at

    def on_step(self, report):
        if report.step == self.at:
            os.kill(os.getpid(), signal.SIGINT)

    def on_epoch(self, epoch, evaluation):
        pass


@pytest.mark.parametrize("stop", [0, 4, 6])
def test_a_run_stopped_by_ctrl_c_goes_on_bit_for_bit(stop, small, undisturbed, tmp_path):
    with run() as trainer, pytest.raises(KeyboardInterrupt):
        trainer.fit(small, epochs=EPOCHS, save_to=tmp_path / "c", callbacks=[Interrupt(stop)])
    assert read_checkpoint(tmp_path / "c").step > stop
    assert_resumes(tmp_path / "c", small, undisturbed, tmp_path / "d")


def test_ctrl_c_between_an_epoch_and_its_save_keeps_the_epoch(
    small, undisturbed, tmp_path, monkeypatch
):
    finish, calls = CheckpointWriter.finish, []

    def finish_second(self, **contents):
        calls.append(contents["step"])
        if len(calls) == 1:
            raise KeyboardInterrupt
        finish(self, **contents)

    monkeypatch.setattr(CheckpointWriter, "finish", finish_second)
    with run() as trainer, pytest.raises(KeyboardInterrupt):
        trainer.fit(small, epochs=EPOCHS, save_to=tmp_path / "c")
    assert calls == [5, 5]
    assert_resumes(tmp_path / "c", small, undisturbed, tmp_path / "d")


@pytest.mark.parametrize("line", range(0, 40, 5))
def test_ctrl_c_at_any_line_of_the_callers_thread_loses_no_count(
    line, small, undisturbed, tmp_path
):
    """Position, steps and metrics agree with what was trained, wherever it falls."""
    seen = [0]

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.endswith(("trainer/loop.py", "pipeline/executor.py")):
            return None
        if frame.f_code.co_name in ("run_epoch", "__enter__", "__exit__", "_counting", "__init__"):
            return None  # a Ctrl-C outside the results is another test's
        if event == "line":
            seen[0] += 1
            if seen[0] == 8 + line:
                raise KeyboardInterrupt
        return trace

    with run() as trainer:
        sys.settrace(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                trainer.fit(small, epochs=EPOCHS, save_to=tmp_path / "c", callbacks=[])
        finally:
            sys.settrace(None)
    assert_resumes(tmp_path / "c", small, undisturbed, tmp_path / "d")


CHILD = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from tests.trainer import test_resume as t
folder, mode = Path(sys.argv[1]), sys.argv[2]

class Save:
    def on_step(self, report): pass
    def on_epoch(self, epoch, evaluation):
        print("epoch", flush=True)
        sys.stdin.readline()

small = t.open_small(folder)
with t.run() as trainer:
    if mode == "die":
        trainer.fit(small, max_steps=3, epochs=2)
        trainer.save(folder / "c")
        trainer.load(folder / "c")
        trainer.fit(small, epochs=2, callbacks=[Save()])
    else:
        trainer.load(folder / "c")
        trainer.fit(small, epochs=2, eval_reader=small, save_to=folder / "d")
"""


def test_another_process_goes_on_after_kill_9(undisturbed, tmp_path):
    """What was trained after the save is gone with the process; the rest is as it was."""
    small = open_small(tmp_path)
    assert small.source.paths[0].read_bytes()
    options = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True}
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    with subprocess.Popen(
        [*command, "die"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
    ) as process:
        assert process.stdout.readline() == "epoch\n"
        process.kill()
    assert read_checkpoint(tmp_path / "c").position == Position(0, 3)
    subprocess.run([*command, "resume"], check=True, timeout=100, **options)
    assert_same_files(tmp_path / "d", undisturbed[1])


# ------------------------------------------------------------------ steps that fail


def test_a_step_that_fails_draws_nothing(small, tmp_path):
    """A NaN is found after Dropout has drawn; what is saved is the state before that step."""

    class Once(Losses):
        def __call__(self, logits, labels):
            loss = super().__call__(logits, labels)
            return loss * float("nan") if len(self.values) == 4 else loss

    with run(loss=Once()) as trainer, pytest.raises(hp.NonFiniteError):
        trainer.fit(small, epochs=EPOCHS, save_to=tmp_path / "failed")
    with run() as trainer:
        trainer.fit(small, epochs=EPOCHS, max_steps=3, save_to=tmp_path / "stopped")
    found, expected = read_checkpoint(tmp_path / "failed"), read_checkpoint(tmp_path / "stopped")
    assert found.position == expected.position == Position(0, 3)
    assert found.progress.keys() == expected.progress.keys()
    assert "random/cpu" in found.progress
    for name in found.progress:
        np.testing.assert_array_equal(found.progress[name], expected.progress[name], name)


# ------------------------------------------------------------------ another run than was saved


@pytest.fixture(scope="module")
def within(small, tmp_path_factory):
    """A checkpoint within an epoch."""
    folder = tmp_path_factory.mktemp("within") / "c"
    with run() as trainer:
        trainer.fit(small, max_steps=3, save_to=folder)
    return folder


@pytest.fixture(scope="module")
def between(small, tmp_path_factory):
    """A checkpoint at an epoch's end."""
    folder = tmp_path_factory.mktemp("between") / "c"
    with run() as trainer:
        trainer.fit(small, save_to=folder)
    return folder


def others(small, folder):
    path = small.source.paths[0]
    more = write_parquet(folder / "small.parquet", samples(151))
    csv = write_csv(folder / "small.csv", samples(150))
    return {
        "batch_size=32 saved and 16 now": read(path, shuffle=60, batch_size=16),
        "seed=3 saved and 4 now": read(path, shuffle=60, seed=4),
        "shuffle=60 saved and 0 now": read(path),
        "source.paths.0=": read(more, shuffle=60),
        "source.kind='ParquetSource' saved and 'CsvSource' now": hp.read_csv(
            csv, **COLUMNS, batch_size=32, seed=3, shuffle=60, multi_hot_separator="|"
        ),
        "last_hash=": small.split(0.5)[1],
    }


def test_within_an_epoch_a_reader_of_other_batches_is_refused(within, small, tmp_path):
    with run() as trainer:
        trainer.load(within)
        for said, other in others(small, tmp_path).items():
            with pytest.raises(hp.CheckpointError) as raised:
                trainer.fit(other, epochs=EPOCHS)
            assert said in str(raised.value)
            assert "goes on at batch 3 of an epoch" in str(raised.value)
        assert trainer.fit(small).num_steps == 2  # nothing has changed


def test_a_file_that_was_moved_is_the_same(within, small, tmp_path):
    moved = tmp_path / "small.parquet"
    moved.write_bytes(small.source.paths[0].read_bytes())
    with run() as trainer:
        trainer.load(within)
        assert trainer.fit(read(moved, shuffle=60)).num_steps == 2


def test_between_epochs_another_reader_is_a_choice_that_is_told(between, small, tmp_path, caplog):
    for said, other in others(small, tmp_path).items():
        with run() as trainer:
            trainer.load(between)
            caplog.clear()
            trainer.fit(other, epochs=EPOCHS, max_steps=1)
            assert said in caplog.text


def test_the_same_run_is_told_nothing(within, between, small, caplog):
    for saved in (within, between):
        with run() as trainer:
            trainer.load(saved)
            trainer.fit(small, epochs=EPOCHS)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_other_staleness_and_other_tables_are_told(within, small, caplog):
    with run(staleness=1) as trainer:
        trainer.load(within)
        trainer.fit(small)
    assert "staleness=0 saved and 1 now" in caplog.text
    with training(Dropping, dense=warm_restarts, optimizer=hp.Adam(0.5), seed=8) as trainer:
        caplog.clear()
        trainer.load(within)
    assert "seed=0 saved and 8 built" in caplog.text
    assert "optimizer=" in caplog.text


class Custom:
    """A reader that is no dataclass."""

    def __init__(self, reader):
        self.slots, self.dense, self.batches = reader.slots, reader.dense, reader.batches


def test_a_reader_that_is_not_known_is_told_within_an_epoch(within, between, small, caplog):
    for saved, is_told in ((within, True), (between, False)):
        with run() as trainer:
            trainer.load(saved)
            caplog.clear()
            trainer.fit(Custom(small), epochs=EPOCHS)
            assert ("nothing is known of the reader that is given now" in caplog.text) == is_told


def test_without_resume_an_epoch_of_other_data_begins(within, small, tmp_path):
    path = write_parquet(tmp_path / "new.parquet", samples(64, seed=3))
    with run() as trainer:
        trainer.load(within, resume=False)
        trainer.save(tmp_path / "c")
        assert read_checkpoint(tmp_path / "c").position == Position()
        assert trainer.fit(read(path)).num_steps == 2
        trainer.save(tmp_path / "c")
    assert read_checkpoint(tmp_path / "c").step == 5


# ------------------------------------------------------------------ the format before this one


def test_a_checkpoint_of_version_1_loads_and_says_what_it_lacks(within, small, tmp_path, caplog):
    from hetero_pipe.trainer.checkpoint import _crc_of

    old = tmp_path / "old"
    old.mkdir()
    manifest = json.loads((within / "manifest.json").read_text())
    for name in manifest["files"]:
        if name != "progress.npz":
            (old / name).parent.mkdir(parents=True, exist_ok=True)
            (old / name).write_bytes((within / name).read_bytes())
    del manifest["run"], manifest["crc32"], manifest["files"]["progress.npz"]
    manifest["format"] = "hetero_pipe-checkpoint-v1"
    manifest["crc32"] = _crc_of(manifest)
    (old / "manifest.json").write_text(json.dumps(manifest))
    with run() as trainer:
        trainer.load(old)
        assert "saved by an earlier version" in caplog.text
        assert trainer.fit(small).num_steps == 2
        assert "nothing is known of the reader that was saved" in caplog.text
