"""`hetero-pipe plan`: a plan of a shipped model, and what it says of mistakes."""

import json
import math
from pathlib import Path

import pytest

from hetero_pipe.cli import main
from hetero_pipe.cli.plan import teller
from hetero_pipe.plan import Plan
from hetero_pipe.planner import Progress

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "examples" / "ctr" / "models"
CLUSTER = str(ROOT / "examples" / "ctr" / "cluster.toml")
DEEPFM = f"{MODELS / 'deepfm.py'}:DeepFM"

UNTRACED = """\
import hetero_pipe as hp
from paddle import nn


class Model(nn.Layer):
    def __init__(self):
        super().__init__()
        self.rows = hp.Embedding(["user", "movie"], dim=4)
        self.linear = nn.Linear(8, 1)

    def forward(self, batch):
        rows = self.rows(batch).flatten(1)
        if rows.sum() > 0:
            rows = -rows
        return self.linear(rows)
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # whose profile is another machine's


def test_the_plan_of_a_shipped_model_is_explained(capsys, tmp_path):
    out = tmp_path / "plan.json"
    rows = ["--rows", "embedding=1e9", "--rows", "first_order=1e9"]
    options = ["--batch-size", "1024,4096", "--out", str(out)]
    code = main(["plan", "--cluster", CLUSTER, "--model", DEEPFM, *rows, *options])
    told = capsys.readouterr().out
    assert code == 0
    for part in ("plan for most samples a second", "table embedding", "bottleneck: ", "runners-up"):
        assert part in told
    assert "an epoch of 100,836 samples" in told
    plan = Plan.from_json(out.read_text())
    assert plan.predicted.fits
    assert {table.name: table.dim for table in plan.tables} == {"first_order": 1, "embedding": 16}
    assert f"{plan.predicted.samples_per_second:,.0f} samples/s" in told


def test_json_has_the_plan_and_those_that_lost(capsys):
    assert (
        main(["plan", "--model", DEEPFM, "--batch-size", "512", "--staleness", "1", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    plan = Plan.from_json(json.dumps(found["plan"]))
    assert (plan.batch_size, plan.staleness) in {(512, 1), (512, 0)}  # cpu_only has none
    assert found["gap"] == 0
    assert found["loss"] == pytest.approx(1 / plan.predicted.samples_per_second)
    assert len({each["kind"] for each in found["runners_up"]}) == len(found["runners_up"]) > 0
    assert all(each["reason"] for each in found["runners_up"])


LAYERS = ["plan", "--cluster", CLUSTER, "--model", DEEPFM, "--layers", "--batch-size", "1024,4096"]


def test_layers_are_assigned_to_units(capsys):
    assert (
        main([*LAYERS, "--rows", "embedding=1e9", "--objective", "money", "--throughput", "1e6"])
        == 0
    )
    told = capsys.readouterr().out
    for part in (
        "layers for least money an hour: DeepFM, batches of ",
        "servers, sparse workers  ",
        "GPU workers  ",
        "proof: none of the 6,561 assignments of 8 layers to 3 types is better",
        "cut: a Trainer runs it: tables on servers, the dense part whole",
        "heuristic: embeddings on CPUs, the rest on others",
        "an epoch of 100,836 samples",
    ):
        assert part in told


def test_json_of_layers_is_of_the_best(capsys):
    assert main([*LAYERS, "--mode", "sync", "--wire", "bfloat16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_optimal"]
    assert found["batch_size"] in {1024, 4096}
    layers = [layer["name"] for layer in found["stack"]["layers"]]
    assert [name for stage in found["stages"] for name in stage["layers"]] == layers
    losses = [each["loss"] for each in found["instead"] if each["loss"] is not None]
    assert losses
    assert all(loss >= found["loss"] * (1 - 1e-9) for loss in losses)


def test_layers_that_do_not_fit_exit_as_plans_do(capsys):
    assert main([*LAYERS, "--rows", "embedding=5e11"]) == 3
    assert "error: with batches of 4096: what all layers hold needs" in capsys.readouterr().err


def test_flags_of_plans_are_refused_beside_layers(capsys):
    assert main([*LAYERS, "--out", "plan.json", "--staleness", "1"]) == 1
    assert "got --out, --staleness beside it" in capsys.readouterr().err


def test_what_does_not_fit_exits_with_the_cheapest_change(capsys):
    arguments = ["plan", "--cluster", CLUSTER, "--model", DEEPFM, "--rows", "embedding=5e10"]
    assert main([*arguments, "--batch-size", "1024"]) == 3
    told = capsys.readouterr().err
    assert "no plan fits: table embedding (" in told
    assert "too little; what would do, the cheapest first: 1)" in told


LONE = """\
[[host]]
name = "lone"

[[host.device]]
kind = "cpu"
cores = 1
memory = "100MiB"
"""


@pytest.mark.parametrize("rows", ["1000", "1e15"])
def test_a_host_that_is_alone_and_too_small_gets_no_second_one(rows, tmp_path, capsys):
    path = tmp_path / "cluster.toml"
    path.write_text(LONE)
    arguments = ["--cluster", str(path), "--rows", f"embedding={rows}", "--batch-size", "256"]
    assert main(["plan", "--model", DEEPFM, *arguments]) == 3
    told = capsys.readouterr().err
    assert "no plan fits: " in told
    assert "of memory of each lone/cpu" in told
    assert "more of host" not in told


def test_a_class_that_is_no_model_is_told(tmp_path, capsys):
    path = tmp_path / "no_model.py"
    path.write_text("class Model:\n    pass\n")
    assert main(["plan", "--model", f"{path}:Model"]) == 1
    assert "a model is a paddle.nn.Layer, got the class" in capsys.readouterr().err


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_file_that_is_no_python_names_the_line(is_imported, tmp_path, capsys):
    broken = tmp_path / f"broken_{is_imported}.py"  # modules of one name are loaded once
    broken.write_text("class Model:\n    dim = = 16\n")
    path = broken
    if is_imported:
        path = tmp_path / "importing.py"
        path.write_text(f"from {broken.stem} import Model\n")
    assert main(["plan", "--model", f"{path}:Model"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("hetero-pipe: error: a model's file must be Python, got ")
    assert f"{broken}:2: dim = = 16; correct that line" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "deepfm.py"], "a model is FILE:CLASS, got 'deepfm.py'"),
        (["--model", "no.py:Model"], "got no file 'no.py'"),
        (["--model", f"{MODELS / 'deepfm.py'}:DeepFN"], "got 'DeepFN'; it has DeepFM"),
        (["--model", DEEPFM, "--rows", "emb=3"], "--rows is of one of the tables first_order, emb"),
        (["--model", DEEPFM, "--cluster", "none.toml"], "cluster file must be readable"),
        (["--model", DEEPFM, "--objective", "money"], "how many samples a second (--throughput)"),
        (["--model", DEEPFM, "--objective", "epoch"], "give price_per_hour in the cluster file"),
    ],
)
def test_mistakes_are_told(arguments, message, capsys):
    assert main(["plan", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cores = 48", "cors = 48", "unknown key 'cors'; did you mean 'cores'?"),
        ('memory = "192GiB"', "", "memory"),
        ('["server", "leaf"]', '["server", "laef"]', "did you mean 'leaf'?"),
    ],
)
def test_a_wrong_cluster_file_names_the_key_and_the_nearest_right_one(
    old, new, message, tmp_path, capsys
):
    path = tmp_path / "cluster.toml"
    text = Path(CLUSTER).read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert main(["plan", "--model", DEEPFM, "--cluster", str(path)]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert "cluster.toml" in told


def test_a_model_that_cannot_be_traced_names_the_line(tmp_path, capsys):
    path = tmp_path / "untraced.py"
    path.write_text(UNTRACED)
    data = str(ROOT / "examples/ctr/data/movielens/movielens.parquet")
    assert main(["plan", "--model", f"{path}:Model", "--data", data]) == 1
    told = capsys.readouterr().err
    line = 1 + UNTRACED.split("\n").index("        if rows.sum() > 0:")
    assert f"untraced.py:{line}" in told


@pytest.mark.parametrize(
    "wrong",
    [
        ["--rows", "embedding"],
        ["--rows", "embedding=many"],
        ["--rows", "embedding=inf"],
        ["--batch-size", "0"],
        ["--mode", "x"],
        ["--shared-keys", "a"],
    ],
)
def test_wrong_flags_are_refused(wrong, capsys):
    with pytest.raises(SystemExit) as raised:
        main(["plan", "--model", DEEPFM, *wrong])
    assert raised.value.code == 2
    told = capsys.readouterr().err
    assert f"argument {wrong[0]}: " in told
    assert "invalid _" not in told  # the name of a function of ours


def test_how_far_a_long_search_has_come_is_told_every_few_seconds(capsys):
    seconds = iter([0.0, 1.0, 4.0, 6.0, 8.0, 12.0])
    tell = teller(clock=lambda: next(seconds))
    for number in range(4):
        tell(Progress("the best plan", 1000 + number, math.inf, 0.0))
    tell(Progress("the best plan", 2000, 4.0, 3.0))
    assert capsys.readouterr().err.splitlines() == [
        "hetero-pipe: 6 s, 1,002 predictions, the best plan: no plan yet",
        "hetero-pipe: 12 s, 2,000 predictions, the best plan: the best so far is at most 25% "
        "from the best",
    ]
