"""A folder of checkpoints: the newest whole one is found, whatever a crash has left."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hetero_pipe as hp
from hetero_pipe.trainer.checkpoint import CheckpointWriter, Position, read_checkpoint
from hetero_pipe.trainer.series import Series, read_newest

ROOT = Path(__file__).parents[2]


def write(folder, step):
    """Writes a small checkpoint that tells its step by all that it has."""
    with CheckpointWriter(folder) as writer:
        for name in ("buckets-0000-0255.arrow", "buckets-0256-0511.arrow"):
            writer.add_snapshot("user", name, [bytes([step % 256]) * 300] * 4)
        state = {"weight": np.full(60, step)}
        writer.finish(
            dense=state, step=step, position=Position(), tables=[], run=None, progress=state
        )


@pytest.fixture
def series(tmp_path):
    series = Series(tmp_path / "s", keep=2)
    series.begin(0)
    for step in (100, 200):
        write(series.path_of(step), step)
    return series


def names(series):
    return sorted(os.listdir(series.folder))


def test_the_newest_is_by_step_and_not_by_name_or_time(series):
    write(series.path_of(1_000_000_000), 1_000_000_000)  # of more digits
    write(series.path_of(50), 50)
    assert read_newest(series.folder).step == 1_000_000_000


def test_a_path_that_is_a_checkpoint_is_taken_itself(series, tmp_path):
    assert read_newest(series.path_of(100)).step == 100
    write(tmp_path / "c", 7)
    write(tmp_path / "c" / "step-000000100", 100)
    assert read_newest(tmp_path / "c").step == 7


@pytest.mark.parametrize("name", ["dense.npz", "manifest.json", "tables/user"])
def test_a_broken_one_is_skipped_and_what_is_wrong_is_told(name, series, caplog):
    broken = series.path_of(200) / name
    shutil.rmtree(broken) if broken.is_dir() else broken.write_bytes(b"")
    assert read_newest(series.folder).step == 100
    assert "a broken checkpoint is skipped" in caplog.text
    assert str(broken) in caplog.text


def test_where_none_is_whole_the_newest_is_told(series):
    for step in (100, 200):
        (series.path_of(step) / "dense.npz").unlink()
    with pytest.raises(hp.CheckpointError, match=r"got 2 broken in .*step-000000200/dense.npz"):
        read_newest(series.folder)
    with pytest.raises(hp.CheckpointError, match=r"a checkpoint is a folder with manifest\.json"):
        read_newest(series.folder.parent / "nothing")


def test_pruning_keeps_the_last_and_those_of_later_steps(series):
    for step in (300, 400, 900):
        write(series.path_of(step), step)
    (series.folder / "notes.txt").write_text("mine")
    series.prune(400)
    assert names(series) == ["notes.txt", *(f"step-{step:09d}" for step in (300, 400, 900))]


def test_what_a_crash_left_is_removed(series):
    (series.folder / ".step-000000300.1").mkdir()
    (series.folder / ".step-000000300.1" / "dense.npz").write_bytes(b"half")
    shutil.copytree(series.path_of(100), series.folder / ".step-000000100.old")
    series.path_of(200).rename(series.folder / ".step-000000200.old")  # between two renames
    (series.folder / ".step-other").mkdir()
    assert read_newest(series.folder).step == 200
    Series(series.folder, keep=2).begin(200)
    assert names(series) == [".step-other", "step-000000100", "step-000000200"]
    assert read_newest(series.folder).step == 200


def test_a_run_does_not_save_below_a_later_one(series):
    for step in (200, 250):
        series.begin(step)
    with pytest.raises(hp.CheckpointError, match=r"got step 150 and .*step-000000200; load that"):
        series.begin(150)
    (series.path_of(200) / "dense.npz").unlink()
    series.begin(150)  # it has gone on from 100, as 200 is broken
    with pytest.raises(hp.CheckpointError, match=r"got step 99 and .*step-000000100"):
        series.begin(99)


def test_a_path_that_is_a_checkpoint_or_a_file_is_refused(series, tmp_path):
    with pytest.raises(
        hp.CheckpointError, match=r"is a folder of checkpoints, got .*step-000000100"
    ):
        Series(series.path_of(100), keep=2).begin(300)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(hp.CheckpointError, match="must be written whole"):
        Series(tmp_path / "file", keep=2).begin(300)
    assert (tmp_path / "file").read_text() == "mine"


def test_what_a_killed_process_left_beside_a_path_is_removed(tmp_path):
    write(tmp_path / "c", 1)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    for name in (f".c.{gone.pid}", f".c.{os.getppid()}", ".c.d.1", ".c.x"):
        (tmp_path / name).mkdir()
    write(tmp_path / "c", 2)
    assert sorted(os.listdir(tmp_path)) == [f".c.{os.getppid()}", ".c.d.1", ".c.x", "c"]


# ------------------------------------------------------------------ a crash at any point

CUTTER = """
import os, resource, signal, sys
from pathlib import Path
from hetero_pipe.trainer.series import Series
from tests.trainer.test_series import write

folder, way, at = Path(sys.argv[1]), sys.argv[2], [int(each) for each in sys.argv[3].split(",")]


def save(cut):
    series = Series(folder / f"{way}-{cut}", keep=2)
    num_events = 0

    def count(event, arguments):
        nonlocal num_events
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"):
            if str(series.folder) in str(arguments[0]) or isinstance(arguments[0], int):
                num_events += 1
                if num_events == cut:
                    os.kill(os.getpid(), signal.SIGKILL)

    if way == "kill":
        sys.addaudithook(count)
    else:  # a file of more bytes is cut there, as by a disk that is full
        resource.setrlimit(resource.RLIMIT_FSIZE, (cut, cut))
    write(series.path_of(300), 300)
    series.prune(300)


for cut in at:
    child = os.fork()
    if child == 0:
        try:
            save(cut)
        except OSError:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(cut, os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.mark.parametrize(
    ("way", "cuts"), [("kill", range(1, 41)), ("short", [*range(1, 1_201, 19), 1 << 20])]
)
def test_a_save_cut_anywhere_leaves_the_previous_one_whole(way, cuts, tmp_path):
    """By a kill before each change of a file or folder, or by writes that fall short."""
    before = Series(tmp_path / "before", keep=2)
    before.begin(0)
    for step in (100, 200):
        write(before.path_of(step), step)
    for cut in cuts:
        shutil.copytree(before.folder, tmp_path / f"{way}-{cut}")
    told = subprocess.run(
        [sys.executable, "-c", CUTTER, str(tmp_path), way, ",".join(map(str, cuts))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=100,
    ).stdout
    codes = dict(map(int, line.split()) for line in told.splitlines())
    assert codes.keys() == {*cuts}
    found = {}
    for cut in cuts:
        series = Series(tmp_path / f"{way}-{cut}", keep=2)
        newest = read_newest(series.folder)
        found[cut] = newest.step
        assert (newest.dense["weight"] == newest.step).all()
        assert newest.step == 300 or codes[cut] != 0
        assert read_checkpoint(series.path_of(200)).step == 200  # pruned, if at all, was the oldest
        series.begin(newest.step)
        write(series.path_of(300), 300)
        series.prune(300)
        assert names(series) == ["step-000000200", "step-000000300"]
    assert {*found.values()} == {200, 300}
    assert sum(step == 200 for step in found.values()) >= (15 if way == "kill" else 50)
