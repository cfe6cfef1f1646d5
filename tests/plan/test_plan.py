"""Plans: to and from JSON, and what is none."""

import json
from dataclasses import FrozenInstanceError, replace

import pytest

from hetero_pipe.errors import PlanError
from hetero_pipe.plan import (
    STAGES,
    Breakdown,
    MemoryPrediction,
    Part,
    Plan,
    Prediction,
    ProcessPlan,
    StagePlan,
    StagePrediction,
    TablePlan,
    Worker,
    WorkersPlan,
)

SERVERS = ("10.0.0.1:7000", "10.0.0.2:7000")


def plan_of(servers=SERVERS, staleness=2):
    return Plan(
        stages=tuple(
            StagePlan(name, "gpu:0" if name == "dense" else "cpu", i + 1)
            for i, name in enumerate(STAGES)
        ),
        tables=(
            TablePlan("user", 16, ("user_id",), servers),
            TablePlan("item.wide", 1, ("item_id", "genres"), servers),
        ),
        staleness=staleness,
    )


@pytest.mark.parametrize("servers", [(), SERVERS])
@pytest.mark.parametrize("staleness", [0, 3])
def test_json_gives_the_plan_back(servers, staleness):
    plan = plan_of(servers, staleness)
    assert Plan.from_json(plan.to_json()) == plan
    assert hash(Plan.from_json(plan.to_json())) == hash(plan)


def test_json_is_for_eyes():
    fields = json.loads(plan_of().to_json())
    assert list(fields) == ["stages", "tables", "staleness"]
    assert fields["stages"][3] == {"name": "dense", "device": "gpu:0", "capacity": 4}
    assert fields["tables"][1]["slots"] == ["item_id", "genres"]
    assert "\n  " in plan_of().to_json()


def test_servers_are_those_of_the_tables_or_none():
    assert plan_of().servers == SERVERS
    assert plan_of(()).servers is None
    assert replace(plan_of(), tables=()).servers is None


def test_stage_is_found_by_name():
    assert plan_of().stage("dense").device == "gpu:0"


def test_plans_are_frozen():
    with pytest.raises(FrozenInstanceError):
        plan_of().staleness = 1


@pytest.mark.parametrize(
    "stages",
    [
        plan_of().stages[:-1],
        plan_of().stages[::-1],
        (*plan_of().stages, plan_of().stages[0]),
        (),
    ],
)
def test_stages_other_than_the_five_in_order_are_refused(stages):
    with pytest.raises(PlanError, match="has the stages read, route, pull, dense, push, got"):
        replace(plan_of(), stages=stages)


def test_table_twice_is_refused():
    with pytest.raises(PlanError, match="names each table once, got user, user"):
        replace(plan_of(), tables=plan_of().tables[:1] * 2)


def test_tables_on_different_servers_are_refused():
    tables = (plan_of().tables[0], replace(plan_of().tables[1], servers=SERVERS[:1]))
    with pytest.raises(PlanError, match="on the same servers, got"):
        replace(plan_of(), tables=tables)


@pytest.mark.parametrize("staleness", [-1, 0.5, True, "1", None])
def test_staleness_that_is_no_count_is_refused(staleness):
    with pytest.raises(PlanError, match=f"at least 0, got staleness={staleness}"):
        plan_of(staleness=staleness)


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "2", None])
def test_capacity_that_is_no_count_is_refused(capacity):
    with pytest.raises(PlanError, match=r"capacity >= 1, got StagePlan\(name='read'"):
        StagePlan("read", "cpu", capacity)


@pytest.mark.parametrize("changes", [{"dim": 0}, {"dim": "8"}, {"slots": ()}])
def test_table_without_dim_or_slots_is_refused(changes):
    with pytest.raises(PlanError, match="dim >= 1 and a slot, got"):
        replace(plan_of().tables[0], **changes)


def changed(*path, to):
    fields = json.loads(plan_of().to_json())
    *inner, last = path
    part = fields
    for key in inner:
        part = part[key]
    if to is KeyError:
        del part[last]
    else:
        part[last] = to
    return json.dumps(fields)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        "{}",
        changed("staleness", to=KeyError),
        changed("staleness", to="1"),
        changed("stages", to=None),
        changed("stages", to=[None] * 5),
        changed("stages", 0, "name", to="reading"),
        changed("stages", 0, "name", to=[]),
        changed("stages", 0, "capacity", to="many"),
        changed("stages", 0, "speed", to=3),
        changed("stages", 0, "device", to=KeyError),
        changed("tables", to=3),
        changed("tables", 0, "slots", to="user_id"),
        changed("tables", 0, "servers", to="10.0.0.1:7000"),
        changed("tables", 0, "slots", to=[1]),
        changed("tables", 0, "dim", to=KeyError),
        changed("tables", 0, "dim", to=None),
    ],
)
def test_text_that_is_no_plan_is_refused(text):
    with pytest.raises(PlanError, match="got"):
        Plan.from_json(text)


def test_workers_survive_json_and_an_old_plan_has_one():
    workers = WorkersPlan("sync", num_readers=2, dense=("10.0.0.3:7100",), wire="bfloat16")
    plan = replace(plan_of(staleness=0), workers=workers)
    assert Plan.from_json(plan.to_json()) == plan
    fields = json.loads(plan.to_json())
    del fields["workers"]
    assert Plan.from_json(json.dumps(fields)).workers == WorkersPlan()
    assert (workers.num_processes, workers.num_dense) == (3, 1)
    assert (WorkersPlan(num_readers=2).num_processes, WorkersPlan(num_readers=2).num_dense) == (
        2,
        2,
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "fast"}, "mode is one of sync, bounded"),
        ({"wire": "int8"}, "wire is one of float32"),
        ({"average_every": 0}, r"at least 1, got average_every=0 \(--average-every\)"),
        ({"num_readers": 0}, r"at least 1, got num_readers=0 \(--num-workers\)"),
        ({"dense": ("a:1", "a:1")}, "each worker once"),
        ({"mode": "sync", "dense": ("a:1", "b:1")}, "got 2 dense workers and 1 that read"),
    ],
)
def test_workers_that_are_none_are_refused(fields, message):
    with pytest.raises(PlanError, match=message):
        WorkersPlan(**fields)


def test_sync_has_no_staleness_and_workers_share_servers():
    with pytest.raises(PlanError, match="mode sync"):
        replace(plan_of(staleness=1), workers=WorkersPlan("sync"))
    with pytest.raises(PlanError, match="on servers, got none"):
        replace(plan_of(()), workers=WorkersPlan(num_readers=2))


@pytest.mark.parametrize(
    ("workers", "worker", "message"),
    [
        (
            WorkersPlan(),
            Worker("sparse"),
            "has 1 whole workers, with ranks from 0, got sparse worker 0",
        ),
        (WorkersPlan(num_readers=2), Worker(rank=2, coordinator="a:1"), "2 whole workers"),
        (WorkersPlan(dense=("a:1",)), Worker("dense", 1, "a:1"), "1 sparse and 1 dense"),
        (WorkersPlan(num_readers=2), Worker(), "got no coordinator"),
    ],
)
def test_worker_is_one_of_its_plan(workers, worker, message):
    with pytest.raises(PlanError, match=message):
        worker.check(workers)


def test_worker_of_the_plan_is_taken():
    Worker().check(WorkersPlan())
    Worker("dense", 1, "a:1").check(WorkersPlan(dense=("a:1", "b:1")))


PREDICTED = Prediction(
    step_seconds=0.01,
    samples=512.0,
    stages=(
        StagePrediction(
            "pull",
            "whole",
            Breakdown.of("table", 0.002, "server") + Breakdown.of("pack", 0.001, "worker"),
            busy=0.004,
        ),
    ),
    memory=(MemoryPrediction("whole", "trainer", "gpu", Breakdown.of("rows", 2e9), 1e9),),
    bounds=(Part("gate", 0.009), Part("dense", 0.005)),
    price_per_hour=3.6,
    assumed=("the rate of a matmul on gpu",),
)


def test_a_plan_of_a_cluster_goes_to_json_with_what_was_predicted():
    plan = replace(
        plan_of(()),
        batch_size=512,
        processes=(ProcessPlan("whole", "trainer", "gpu", machines=2, per_machine=8),),
        predicted=PREDICTED,
    )
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.processes_of("whole")[0].count == 16
    assert plan.processes_of("server") == ()


def test_a_prediction_tells_rate_money_and_what_does_not_fit():
    assert PREDICTED.samples_per_second == pytest.approx(51200)
    assert PREDICTED.money(51200) == pytest.approx(0.001)
    assert replace(PREDICTED, price_per_hour=None).money(1) is None
    assert PREDICTED.bottleneck == "gate"
    assert not PREDICTED.fits
    assert PREDICTED.stage("pull").cpu == 0.001


@pytest.mark.parametrize(
    "wrong",
    [
        {"home": "gpu"},
        {"home": "device", "servers": ("10.0.0.1:7000",)},
        {"home": "sharded", "cached_rows": 3},
        {"cached_rows": -1},
    ],
)
def test_a_table_has_one_home(wrong):
    with pytest.raises(PlanError, match="table 'user'"):
        TablePlan("user", 16, ("user_id",), **wrong)


def test_tables_on_devices_need_no_servers():
    own = TablePlan("item", 16, ("item_id",), home="device")
    plan = replace(plan_of(), tables=(own, *plan_of().tables))
    assert plan.servers == SERVERS
    alone = replace(plan_of(), tables=(own,), workers=WorkersPlan(num_readers=2))
    assert alone.servers is None
