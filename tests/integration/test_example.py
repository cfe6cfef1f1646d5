"""examples/ctr/train.py as a user meets it: another process, real files, real servers."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import hetero_pipe as hp
from tests.traces import Trace

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples" / "ctr" / "train.py"
SAMPLE = ROOT / "examples" / "ctr" / "data" / "movielens" / "movielens.parquet"
SECONDS = 120


class User:
    """Someone in a folder of their own, with a folder for temporary files."""

    def __init__(self, home):
        self.home, self.temporary = home / "home", home / "tmp"
        self.home.mkdir()
        self.temporary.mkdir()

    def options(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)}
        return {"cwd": self.home, "env": environment, "text": True}

    def train(self, *flags):
        done = subprocess.run(
            [sys.executable, TRAIN, *map(str, flags)],
            capture_output=True,
            timeout=SECONDS,
            check=False,
            **self.options(),
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert self.left_behind() == []
        return done

    def left_behind(self):
        """Temporary files that are not a running server's."""
        return [path for path in self.temporary.iterdir() if not path.match("ps-server-*")]

    def result(self, *flags):
        done = self.train(*flags, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def error(self, *flags):
        """The message of a run that must fail."""
        done = self.train(*flags)
        assert done.returncode == 1
        assert done.stdout == ""
        last = done.stderr.splitlines()[-1]
        assert last.startswith("error: ")
        return last

    @contextmanager
    def server(self, listen="127.0.0.1:0"):
        """A daemon; yields its address, and stops it as a user does."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ps_server", "--listen", listen],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            **self.options(),
        )
        with process:
            try:
                yield process.stdout.readline().removeprefix("listening on ").strip()
            finally:
                process.terminate()
                assert process.wait(10) == 0


@pytest.fixture
def user(tmp_path):
    return User(tmp_path)


@pytest.fixture(scope="module")
def ratings():
    """The newest 3000 ratings, and a dense column."""
    table = pq.read_table(SAMPLE)
    table = table.slice(table.num_rows - 3000)
    recent = np.linspace(0, 1, table.num_rows)
    return table.append_column("recent", pa.array(recent)).drop_columns(["rating", "timestamp"])


@pytest.fixture
def parquet(user, ratings):
    pq.write_table(ratings, user.home / "ratings.parquet")
    return "ratings.parquet"


@pytest.fixture
def csv(user, ratings):
    table = ratings
    for name in ("genres", "history"):
        texts = pa.array(["|".join(map(str, bag)) for bag in ratings[name].to_pylist()])
        table = table.set_column(table.column_names.index(name), name, texts)
    pa.csv.write_csv(table, user.home / "ratings.csv")
    return "ratings.csv"


CSV_FLAGS = ["--dense", "recent", "--multi-hot-separator", "|", "--slots", "user,movie,genres"]


# ------------------------------------------------------------------ runs


def test_by_default_it_trains_on_the_bundled_ratings(user):
    result = user.result()
    assert {
        "auc",
        "log_loss",
        "samples_per_second",
        "max_staleness",
        "rows",
        "loss",
        "steps",
        "eval_samples",
    } == set(result)
    assert result["auc"] > 0.77
    assert result["log_loss"] < 0.6
    assert result["max_staleness"] == 0
    assert result["rows"] > 10_000
    assert 9_000 < result["eval_samples"] < 11_000


@pytest.mark.slow
def test_without_json_it_prints_a_table_and_is_quiet(user, parquet):
    done = user.train("--data", parquet)
    assert done.returncode == 0
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert float(lines["auc"]) > 0.5
    assert "· step " not in done.stderr  # progress is for terminals
    assert done.stderr.splitlines()[-1].startswith("advice: ")


@pytest.mark.parametrize("model", ["wide_deep", "dcn", "dlrm", "din"])
def test_other_models_train_on_csv(model, user, csv):
    result = user.result(
        "--data", csv, "--model", model, "--epochs", "1", "--batch-size", "64", *CSV_FLAGS
    )
    assert result["steps"] == pytest.approx(2700 / 64, abs=4)
    assert result["auc"] > 0.5


@pytest.mark.slow
def test_csv_and_parquet_of_one_table_give_the_same_result(user, csv, parquet):
    flags = ["--epochs", "1", *CSV_FLAGS]
    found, expected = user.result("--data", csv, *flags), user.result("--data", parquet, *flags)
    speed = {"samples_per_second": 0}
    assert {**found, **speed} == {**expected, **speed}


def test_din_looks_up_movies_of_a_history_in_the_rows_of_movies(user, parquet, ratings):
    flags = ["--data", parquet, "--epochs", "1", "--eval-data", parquet, "--slots", "user,movie"]
    din, deepfm = user.result(*flags, "--model", "din"), user.result(*flags)
    seen = {*ratings["movie"].to_pylist(), *pc.list_flatten(ratings["history"]).to_pylist()}
    users = pc.count_distinct(ratings["user"]).as_py()
    assert din["rows"] == len(seen) + users
    assert deepfm["rows"] == 2 * (pc.count_distinct(ratings["movie"]).as_py() + users)
    said = user.error("--data", parquet, "--model", "din", "--target", "film")
    assert "got target='film' and history='history' with slots user, movie, genres" in said


@pytest.mark.slow
def test_other_files_are_evaluated_if_asked_for(user, parquet, ratings):
    pq.write_table(ratings.slice(0, 77), user.home / "held_out.parquet")
    result = user.result("--data", parquet, "--eval-data", "held_out.parquet", "--epochs", "1")
    assert result["eval_samples"] == 77
    assert result["steps"] == -(-3000 // 512)


def test_a_dry_run_prints_the_plan_and_needs_neither_servers_nor_data(user):
    done = user.train(
        "--dry-run", "--data", "nowhere.csv", "--servers", "nowhere:1,nowhere:2", "--staleness", "2"
    )
    assert done.returncode == 0
    plan = hp.Plan.from_json(done.stdout)
    assert plan.staleness == 2
    assert plan.servers == ("nowhere:1", "nowhere:2")
    assert [table.name for table in plan.tables] == ["first_order", "embedding"]


@pytest.mark.slow
def test_help_shows_every_flag(user):
    text = user.train("--help").stdout
    flags = """
        model data format label slots dense history target multi-hot-separator eval-data servers
        staleness epochs batch-size dim lr seed save load fresh connect-timeout dry-run json trace
    """
    for flag in flags.split():
        assert f"--{flag}" in text


# ------------------------------------------------------------------ servers


def test_two_daemons_give_the_embedded_result_to_the_last_digit(user, parquet):
    flags = ["--data", parquet, "--save", "checkpoint"]
    embedded = user.result(*flags)
    with user.server() as one, user.server() as two:
        served = user.result("--data", parquet, "--servers", f"{one},{two}", "--save", "served")
        loaded = user.result(*flags, "--load", "served")
        stale = user.result(
            "--data", parquet, "--servers", f"{two},{one}", "--fresh", "--staleness", "2"
        )
    for name in ("auc", "log_loss", "rows", "loss", "steps"):
        assert served[name] == embedded[name]
    for name in ("auc", "log_loss", "rows"):  # nothing is left to train
        assert loaded[name] == embedded[name]
    assert loaded["steps"] == 0
    assert 0 <= stale["max_staleness"] <= 2
    assert list(user.temporary.iterdir()) == []


def test_a_trace_shows_the_trainer_and_every_server(user, parquet):
    with user.server() as one, user.server() as two:
        servers = ["--servers", f"{one},{two}"]
        done = user.train("--data", parquet, *servers, "--trace", "t.json.gz", "--epochs", "1")
    assert done.returncode == 0
    trace = Trace.read(user.home / "t.json.gz")
    trace.check()
    roles = {name.rpartition(" ")[0] for name in trace.processes()}
    assert roles == {"trainer", f"ps-server {one}", f"ps-server {two}"}
    assert trace.steps("trainer", "push") == list(range(len(trace.slices("trainer", "read"))))
    for line in ("where time went: ", f"ps-server {one} ", f"ps-server {two} ", "bound 1 / "):
        assert f"\n{line}" in done.stderr
    assert "where time went" not in done.stdout


def test_a_trainer_may_start_before_its_servers(user, parquet):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*held.getsockname())
    flags = ["--data", parquet, "--servers", address, "--epochs", "1", "--json"]
    trainer = subprocess.Popen(
        [sys.executable, TRAIN, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **user.options(),
    )
    with trainer, ExitStack() as running:
        for line in trainer.stderr:
            if "is not reachable" in line:
                assert f"server {address} is not reachable, waiting up to 40" in line
                running.enter_context(user.server(address))
                break
        stdout, _ = trainer.communicate(timeout=SECONDS)
        assert trainer.returncode == 0
    assert json.loads(stdout)["steps"] > 0


def test_a_server_that_is_not_there_is_named_at_once_and_with_how_to_start_it(user, parquet):
    done = user.train(
        "--data", parquet, "--servers", "127.0.0.1:9", "--connect-timeout", "3", "--save", "c"
    )
    assert done.returncode == 75
    first, last = (
        next(line for line in done.stderr.splitlines() if "127.0.0.1:9" in line),
        done.stderr.splitlines()[-1],
    )
    assert "server 127.0.0.1:9 is not reachable, waiting up to 3" in first
    assert last.startswith("error: server 127.0.0.1:9 must be reachable")
    assert "ps-server --listen 127.0.0.1:9" in last
    assert not (user.home / "c").exists()


@pytest.mark.slow
def test_servers_that_are_none_are_refused(user, parquet):
    assert "got none" in user.error("--data", parquet, "--servers", ",")


# ------------------------------------------------------------------ wrong data


def test_a_wrong_column_is_told_with_those_that_are_there(user, parquet):
    said = user.error("--data", parquet, "--slots", "user,movies")
    assert "no column 'movies'" in said
    for column in ("user", "movie", "genres", "hour", "weekday", "label"):
        assert repr(column) in said
    assert "did you mean 'movie'?" in said


def test_a_malformed_line_is_told_with_file_and_line_and_what_was_trained_is_kept(user, csv):
    path = user.home / csv
    lines = path.read_text().splitlines()
    lines[2000] = "one,field,too,few"
    path.write_text("\n".join(lines) + "\n")
    said = user.error("--data", csv, "--save", "c", *CSV_FLAGS)
    assert f"at {csv}, line 2001" in said
    assert (user.home / "c" / "manifest.json").exists()


def test_an_empty_file_is_told(user):
    (user.home / "empty.csv").write_text("")
    assert "empty.csv" in user.error("--data", "empty.csv", "--slots", "a")


@pytest.mark.slow
def test_a_number_out_of_range_is_told(user, parquet):
    assert "dim=0" in user.error("--data", parquet, "--dim", "0")
    done = user.train("--lr", "0")
    assert done.returncode == 2
    assert "argument --lr: a learning rate is above 0, got 0" in done.stderr
    done = user.train("--seed", "-1")
    assert done.returncode == 2
    assert "argument --seed: a seed is at least 0" in done.stderr


# ------------------------------------------------------------------ checkpoints, Ctrl-C


@pytest.mark.slow
def test_a_saved_run_goes_on_where_it_was(user, parquet):
    through = user.result("--data", parquet, "--epochs", "2")
    first = user.result("--data", parquet, "--epochs", "1", "--save", "c")
    second = user.result("--data", parquet, "--epochs", "2", "--load", "c")
    assert first["steps"] + second["steps"] == through["steps"]
    for name in ("auc", "log_loss", "rows", "loss"):
        assert second[name] == through[name]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_told_with_its_file(user, parquet):
    user.result("--data", parquet, "--epochs", "1", "--save", "c")
    (user.home / "c" / "dense.npz").write_bytes(b"")
    assert "c/dense.npz must have" in user.error("--data", parquet, "--load", "c")


def test_a_failing_server_is_what_is_told_though_saving_fails_too(user, parquet):
    """Not the checkpoint that cannot be written of a step that was torn."""
    server = user.server()
    address = server.__enter__()
    flags = ["--data", parquet, "--servers", address, "--epochs", "100000", "--save", "c"]
    with on_a_terminal(user, *flags) as (process, until):
        until("samples/s")
        server.__exit__(None, None, None)
        text = until(None)
        assert process.wait(SECONDS) == 75
    assert f"error: server {address} must be reachable" in text
    assert "Traceback" not in text
    assert os.listdir(user.home) == [parquet]


@contextmanager
def on_a_terminal(user, *flags):
    """Yields the process and `until(text)`, which reads its terminal so far, or to the end."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, TRAIN, *flags],
        stdout=slave,
        stderr=slave,
        stdin=slave,
        start_new_session=True,
        **user.options(),
    )
    os.close(slave)
    seen = bytearray()

    def until(text):
        while text is None or text.encode() not in seen:
            try:
                piece = os.read(master, 4096)
            except OSError:  # EIO: nobody holds the terminal any more
                piece = b""
            if not piece:
                assert text is None, seen.decode()
                break
            seen.extend(piece)
        return seen.decode()

    try:
        with process:
            yield process, until
    finally:
        if process.poll() is None:
            process.kill()
        os.close(master)


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ctrl_c_keeps_what_was_trained_and_leaves_nothing_behind(number, user, parquet):
    with ExitStack() as running:
        servers = [running.enter_context(user.server()) for _ in range(number)]
        place = ["--servers", ",".join(servers)] if servers else []
        flags = ["--data", parquet, *place, "--batch-size", "64", "--staleness", "1"]
        with on_a_terminal(user, *flags, "--epochs", "100000", "--save", "c") as (process, until):
            until("samples/s")
            os.killpg(process.pid, signal.SIGINT)
            text = until(None)
            assert process.wait(SECONDS) == 130
        assert "Traceback" not in text
        assert "finishing the steps under way" in text
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
        assert sorted(os.listdir(user.home)) == ["c", parquet]
        saved = json.loads((user.home / "c" / "manifest.json").read_text())
        steps_an_epoch, epoch = saved["step"], saved["position"]["epoch"]
        resumed = user.result(*flags, "--load", "c", "--epochs", str(epoch + 1))
        batches = saved["position"]["batch"] + resumed["steps"]
        assert steps_an_epoch == epoch * batches + saved["position"]["batch"]
        assert 2600 / 64 < batches < 2800 / 64
    assert list(user.temporary.iterdir()) == []


def test_a_run_stopped_within_an_epoch_ends_as_an_undisturbed_one(user, parquet):
    """To the last digit, though Ctrl-C comes at whatever step it does."""
    flags = ["--data", parquet, "--epochs", "2", "--seed", "1", "--batch-size", "16"]
    undisturbed = user.result(*flags, "--save", "a")
    with on_a_terminal(user, *flags, "--save", "b") as (process, until):
        until("epoch 1 · step ")
        os.killpg(process.pid, signal.SIGINT)
        assert "Traceback" not in until(None)
        assert process.wait(SECONDS) == 130
    position = json.loads((user.home / "b" / "manifest.json").read_text())["position"]
    assert position["epoch"] == 0
    assert position["batch"] > 0
    resumed = user.result(*flags, "--load", "b", "--save", "b")
    assert resumed["steps"] == undisturbed["steps"] - position["batch"]
    for name in ("auc", "log_loss", "loss", "rows", "eval_samples"):
        assert resumed[name] == undisturbed[name]
    for path in (user.home / "a").rglob("*.*"):
        found = user.home / "b" / path.relative_to(user.home / "a")
        assert found.read_bytes() == path.read_bytes()


def test_ctrl_c_while_it_waits_for_servers_ends_it(user, parquet):
    flags = ["--data", parquet, "--servers", "127.0.0.1:9", "--save", "c"]
    with on_a_terminal(user, *flags) as (process, until):
        until("is not reachable")
        os.killpg(process.pid, signal.SIGINT)
        text = until(None)
        assert process.wait(SECONDS) == 130
    assert "Traceback" not in text
    assert os.listdir(user.home) == [parquet]
