"""A planner reaches a trainer as a Planning: it chooses, and is told what came of it."""

from dataclasses import replace

import paddle
import pytest

import hetero_pipe as hp
from hetero_pipe.plan import Breakdown, Part, Prediction, StagePrediction
from tests.toy import DeepFM, read, samples, write_parquet


class Fixed:
    """Chooses one staleness, and predicts a second for everything."""

    def __init__(self, sample, model):
        self.sample = sample
        self.graphs, self.learned = [], []
        self._model = model

    def choose(self, graph):
        self.graphs.append(graph)
        stages = tuple(
            StagePrediction(name, "whole", Breakdown.of("all", 1.0, "worker"), 1.0)
            for name in ("read", "route", "pull", "dense", "push")
        )
        predicted = Prediction(1.0, 32.0, stages, (), (Part("dense", 1.0),))
        plan = hp.default_plan(self._model, staleness=2)
        return replace(plan, batch_size=32, predicted=predicted)

    def learn(self, plan, measured):
        self.learned.append((plan, measured))


@pytest.fixture
def reader(tmp_path):
    return read(write_parquet(tmp_path / "data.parquet", samples(32 * 25)))


def test_a_planning_sees_the_graph_and_is_told_what_its_plan_took(reader):
    model = DeepFM()
    planning = Fixed(next(iter(reader)), model)
    with hp.Trainer(model, plan=planning) as trainer:
        assert trainer.plan.staleness == 2
        result = trainer.fit(reader)
    (graph,), ((plan, measured),) = planning.graphs, planning.learned
    assert {table.name for table in graph.tables} == {"first_order", "embedding"}
    assert plan == trainer.plan
    assert [stage.name for stage in measured.stages] == ["read", "route", "pull", "dense", "push"]
    assert measured.num_steps == 25
    assert measured.samples == 32
    assert measured.step_seconds == pytest.approx(result.seconds / 25)
    assert 0 < measured.stages[3].cpu <= measured.stages[3].busy * 1.01
    assert "predicted and measured" in str(result.summary)
    assert "warning: step took" in str(result.summary)


def test_too_few_steps_teach_nothing(reader):
    model = DeepFM()
    planning = Fixed(next(iter(reader)), model)
    with hp.Trainer(model, plan=planning) as trainer:
        result = trainer.fit(reader, max_steps=5)
    assert planning.learned == []
    assert "predicted and measured" not in str(result.summary)


def test_tracing_for_a_plan_changes_no_bit(reader):
    losses = []
    for planned in (False, True):
        paddle.seed(5)
        model = DeepFM()
        plan = Fixed(next(iter(reader)), model) if planned else None
        optimizer = paddle.optimizer.Adam(parameters=model.parameters())
        if planned:
            plan.choose = lambda graph, model=model: hp.default_plan(model)
        with hp.Trainer(model, optimizer=optimizer, plan=plan) as trainer:
            losses.append(trainer.fit(reader).loss)
    assert losses[0] == losses[1]


@pytest.mark.parametrize("change", [{"home": "device"}, {"home": "sharded"}, {"cached_rows": 100}])
def test_what_no_trainer_runs_is_refused(change):
    model = DeepFM()
    plan = hp.default_plan(model)
    table = replace(plan.tables[0], **change)
    with pytest.raises(hp.PlanError, match=f"of table {table.name!r}; plan without --wide"):
        hp.Trainer(model, plan=replace(plan, tables=(table, *plan.tables[1:])))
