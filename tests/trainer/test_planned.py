"""A trainer whose plan is chosen for its model, and what stands beside it after training."""

from dataclasses import replace

import pytest

import hetero_pipe as hp
from hetero_pipe.plan import Measured, Plan
from tests.toy import DeepFM, build, read, samples, write_parquet


class Planning:
    """Takes the plan of a trainer by itself, and remembers what it is told."""

    def __init__(self, reader, model):
        self.sample = next(iter(reader.batches(0)))
        self.model = model
        self.graph = None
        self.learned = []

    def choose(self, graph):
        self.graph = graph
        return hp.default_plan(self.model, staleness=1)

    def learn(self, plan, measured):
        self.learned.append((plan, measured))


@pytest.fixture
def reader(tmp_path):
    return read(write_parquet(tmp_path / "a.parquet", samples(400)))


def test_a_plan_is_chosen_for_the_graph_and_told_what_it_took(reader):
    model, optimizer = build(DeepFM)
    planning = Planning(reader, model)
    with hp.Trainer(model, optimizer=optimizer, plan=planning) as trainer:
        assert trainer.plan.staleness == 1
        assert {table.name for table in planning.graph.tables} == {"first_order", "embedding"}
        assert planning.learned == []
        result = trainer.fit(reader)
    [(plan, measured)] = planning.learned
    assert plan is trainer.plan
    assert isinstance(measured, Measured)
    assert measured.num_steps == result.num_steps
    assert measured.step_seconds == pytest.approx(result.seconds / result.num_steps)
    assert [stage.name for stage in measured.stages] == ["read", "route", "pull", "dense", "push"]
    assert result.summary.comparison is None  # nobody predicted


def test_a_run_without_a_step_teaches_nothing(reader):
    model, optimizer = build(DeepFM)
    planning = Planning(reader, model)
    with hp.Trainer(model, optimizer=optimizer, plan=planning) as trainer:
        trainer.fit(reader, epochs=0)
    assert planning.learned == []


def test_a_planned_run_has_predicted_beside_measured_and_learns(reader, tmp_path):
    profile = tmp_path / "profile.json"
    planning = hp.auto_plan(reader, max_staleness=1, profile=profile)
    model, optimizer = build(DeepFM)
    with hp.Trainer(model, optimizer=optimizer, plan=planning) as trainer:
        plan = trainer.plan
        assert plan.batch_size == 32
        assert plan.servers is None
        assert Plan.from_json(plan.to_json()) == plan
        result = trainer.fit(reader)
    rows = {name: (predicted, took) for name, predicted, took in result.summary.comparison.rows}
    assert rows["step"] == (plan.predicted.step_seconds, result.seconds / result.num_steps)
    assert rows["dense"][1] == result.timeline.stage("dense").busy / result.num_steps
    assert "predicted    measured   off by" in str(result.summary)
    assert profile.exists()
    assert {key.stage for key in planning.corrections.factors} >= {"pull", "dense", "push"}


def test_a_plan_trains_as_it_does_without_a_planner(reader):
    losses = []
    for planned in (False, True):
        model, optimizer = build(DeepFM)
        plan = hp.default_plan(model)
        if planned:
            planning = hp.auto_plan(reader, max_staleness=0)
            with hp.Trainer(model, optimizer=optimizer, plan=planning) as trainer:
                losses.append(trainer.fit(reader).loss)
        else:
            with hp.Trainer(model, optimizer=optimizer, plan=replace(plan)) as trainer:
                losses.append(trainer.fit(reader).loss)
    assert losses[0] == losses[1]
