"""`hetero-pipe simulate`: what it prints, writes and refuses."""

import json
from dataclasses import replace

import pytest

from hetero_pipe.cli import main
from hetero_pipe.cluster import save_cluster
from tests.simulate.plans import cluster, plan, prediction
from tests.traces import Trace

COSTS = {"read": 0.001, "route": 0.002, "pull": 0.003, "dense": 0.005, "push": 0.002}


@pytest.fixture
def files(tmp_path):
    predicted = prediction(num_workers=2, **COSTS)
    planned = replace(plan(staleness=2, per_machine=2), predicted=predicted)
    (tmp_path / "plan.json").write_text(planned.to_json())
    save_cluster(cluster(), tmp_path / "cluster.toml")
    return ["--plan", str(tmp_path / "plan.json"), "--cluster", str(tmp_path / "cluster.toml")]


def run(files, *flags):
    return main(["simulate", *files, *flags])


def test_a_plan_prints_what_its_run_would(files, capsys):
    assert run(files) == 0
    said = capsys.readouterr().out
    assert "2 workers, 200 steps each, " in said
    assert "a step takes 5 ms, predicted 5 ms" in said
    assert "<- bottleneck" in said
    assert "advice: dense bounds the run" in said


def test_figures_are_json_and_the_trace_is_one(files, tmp_path, capsys):
    path = tmp_path / "trace.json.gz"
    assert run(files, "--json", "--steps", "50", "--trace", str(path)) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["bottleneck"] == "dense"
    assert figures["step_seconds"] == pytest.approx(0.005)
    assert [worker["num_steps"] for worker in figures["workers"]] == [50, 50]
    trace = Trace.read(path)
    trace.check()
    assert trace.steps("worker 1 ", "dense") == list(range(50))


def test_flags_say_what_does_not_go_as_predicted(files, capsys):
    def step_seconds(*flags):
        assert run(files, "--json", *flags) == 0
        return json.loads(capsys.readouterr().out)["step_seconds"]

    assert step_seconds("--straggler", "1:3") == pytest.approx(0.015, rel=0.02)
    assert 0.005 < step_seconds("--straggler", "1:3:100-110") < 0.007
    assert step_seconds("--slow", "trainer:cores:2") == pytest.approx(0.01)
    assert 0.005 < step_seconds("--slow", "trainer:cores:2:0.5-0.7") < 0.007
    assert step_seconds("--vary", "0.5") > 0.005
    assert step_seconds("--vary", "read=0.1") == pytest.approx(0.005)


def test_a_failure_stops_the_run_or_is_paid_for(files, capsys):
    assert run(files, "--fail", "whole:1@0.5") == 0
    assert "not all steps were done" in capsys.readouterr().out
    again = ("--restart-after", "3", "--checkpoint-every", "20")
    assert run(files, "--fail", "whole:1@0.5", *again) == 0
    said = capsys.readouterr().out
    assert "steps were done again" in said
    assert "not all" not in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--straggler", "1"], "--straggler 1: a number, or a part of it, is missing"),
        (["--straggler", "1:0"], "--straggler 1:0: a straggler is a worker with a factor"),
        (["--straggler", "7:2"], "ranks are from 0, of processes 2 whole"),
        (["--slow", "trainr:cores:2"], "did you mean 'trainer'"),
        (["--fail", "whole"], "--fail whole: a number"),
        (["--vary", "dens=1"], "got 'dens'"),
        (["--restart-after", "3"], "give both --restart-after and --checkpoint-every"),
        (["--trace", "/nowhere/at/all"], "name another one (--trace)"),
    ],
)
def test_what_cannot_be_is_refused_with_a_word(files, capsys, flags, said):
    assert run(files, *flags) == 1
    assert said in capsys.readouterr().err


def test_a_plan_without_a_prediction_is_refused(files, tmp_path, capsys):
    (tmp_path / "plan.json").write_text(plan().to_json())
    assert run(files) == 1
    assert "plan.json: a simulation is of a plan with its prediction" in capsys.readouterr().err
    (tmp_path / "plan.json").write_text("{")
    assert run(files) == 1
    assert "plan.json: a plan is JSON" in capsys.readouterr().err
    (tmp_path / "plan.json").unlink()
    assert run(files) == 1
    assert "a plan is read from a file" in capsys.readouterr().err
