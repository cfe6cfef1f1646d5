"""A trainer whose plan `hp.auto_plan` chooses: what stands beside it, and what it learns."""

import pytest

import hetero_pipe as hp
from hetero_pipe.plan import Plan
from tests.toy import DeepFM, build, read, samples, write_parquet


@pytest.fixture
def reader(tmp_path):
    return read(write_parquet(tmp_path / "a.parquet", samples(32 * 25)))


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
    rows = {row.name: row for row in result.summary.comparison.rows}
    assert rows["step"].predicted == plan.predicted.step_seconds
    assert rows["dense"].measured == result.timeline.stage("dense").busy / result.num_steps
    assert profile.exists()
    assert {each.place.stage for each in planning.corrections.found} >= {"pull", "dense", "push"}


def test_a_planned_run_learns_what_an_unplanned_one_does(reader):
    losses = []
    for planning in (None, hp.auto_plan(reader, max_staleness=0)):
        model, optimizer = build(DeepFM)
        with hp.Trainer(model, optimizer=optimizer, plan=planning) as trainer:
            losses.append(trainer.fit(reader).loss)
    assert losses[0] == losses[1]
