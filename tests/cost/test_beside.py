"""Factors of work beside other work: those that made a job longer are found again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.cluster import BESIDE, Cluster, Device, Host, Rate, Spread
from hetero_pipe.cost import Constants, CostModel, OnCores, beside_factors
from tests.cost.problems import plan, servers, workers, workload

FACTORS = st.fixed_dictionaries({kind: st.floats(0.6, 4.0) for kind in BESIDE})
SIDES = {"worker": 1e-3, "server": 2e-3, "wait": 1e-9, "aside": 5e-4}
CALLS = [
    Rate(what, "a", Spread.of([seconds]), side=side, size=10**6)
    for what in ("grpc_pull", "grpc_push")
    for side, seconds in SIDES.items()
]
CLUSTER = Cluster((Host("a", (Device("cpu", memory=10**12, cores=8),)),)).with_rates(CALLS)
WHOLE = (workers(host="a"),)
JOBS = {
    "embedded": WHOLE,
    "served": (servers("a"), *WHOLE),
    "split": (servers("a"), workers("sparse", host="a"), workers("dense", host="a")),
}


def predicted(job, cluster=CLUSTER):
    model = CostModel(cluster, workload(), Constants(read_value=0.0))
    return model.predict(plan(*JOBS[job]))


def on_cores(found, job):
    """Returns what a job takes that is just as it is predicted."""
    stages = {stage.name: stage for stage in found.stages}
    own = {name: stages[name].cpu for name in ("route", "pull", "dense", "push")}
    workers_all = sum(stage.whole_cost.on("worker") for stage in found.stages)
    served = sum(stage.whole_cost.on("server") for stage in found.stages)
    return OnCores(own, workers_all, 0.0 if job == "embedded" else served)


@given(FACTORS)
@pytest.mark.parametrize(
    ("job", "kinds"),
    [
        ("embedded", {"route", "dense", "pull", "push"}),
        ("served", {"route", "dense", "call", "server"}),
    ],
)
def test_the_factors_of_a_job_are_found_again(job, kinds, factors):
    rates = [
        Rate("beside", "a", Spread.of([factor]), device="cpu", kind=kind)
        for kind, factor in factors.items()
    ]
    longer = predicted(job, CLUSTER.with_rates(rates))
    found = dict(beside_factors(predicted(job), on_cores(longer, job)))
    assert found.keys() == kinds
    assert found == pytest.approx({kind: factors[kind] for kind in kinds})


def test_a_job_that_is_as_predicted_has_none():
    for job in JOBS:
        alone = predicted(job)
        found = dict(beside_factors(alone, on_cores(alone, job)))
        assert all(factor >= 0.5 for factor in found.values())
    split = dict(beside_factors(predicted("split"), on_cores(predicted("split"), "split")))
    assert split.keys() == {"route", "dense", "cut"}


def test_what_was_disturbed_is_cut_off():
    alone = predicted("embedded")
    stages = {name: 1e3 for name in ("route", "pull", "dense", "push")}
    assert set(dict(beside_factors(alone, OnCores(stages, 4e3))).values()) == {5.0}
