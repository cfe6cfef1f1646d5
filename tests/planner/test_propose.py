"""The planner against every plan of small spaces, and what must hold of any plan."""

import random
from dataclasses import replace

import pytest

from hetero_pipe.cost import CostModel
from hetero_pipe.errors import ConfigError, PlanError
from hetero_pipe.plan import Plan
from hetero_pipe.planner import Aim, Judge, Space, Strategy, Where, box_of, propose, strategies
from hetero_pipe.planner.judge import can_run
from tests.oracles.brute_force_planner import every_plan, every_prediction
from tests.planner.problems import problem_of

SMALL = Space((64, 1024), max_staleness=1, max_per_machine=2)
WIDE = Space(
    (256,),
    max_staleness=1,
    modes=("sync", "gpu_only"),
    splits=("whole",),
    homes=("host", "device", "sharded"),
    max_per_machine=2,
)
SPLIT = Space(
    (256,),
    modes=("sync", "async"),
    splits=("split",),
    wires=("float32", "bfloat16"),
    max_per_machine=1,
)


def proposed(model, space, aim):
    """Returns the loss of the proposed plan, infinite if there is none."""
    try:
        return propose(model, space, aim)
    except PlanError:
        return None


@pytest.mark.parametrize("seed", range(8))
def test_the_plan_is_the_best_of_all(seed):
    model = problem_of(seed)
    space = [SMALL, replace(SMALL, max_staleness=0, modes=("bounded",)), WIDE, SPLIT][seed % 4]
    predictions = every_prediction(model, space)
    if not predictions:
        assert proposed(model, space, Aim()) is None
        return
    most = max(each.samples_per_second for each in predictions)
    for aim in (Aim(), Aim("epoch"), Aim("money", 0.5 * most), Aim("epoch", 0.9 * most)):
        least = min(map(aim.loss, predictions))
        found = proposed(model, space, aim)
        assert found.loss == pytest.approx(least, rel=1e-9)
        assert found.gap == 0
        assert aim.loss(found.plan.predicted) == pytest.approx(least, rel=1e-9)
    assert proposed(model, space, Aim("throughput", 1.01 * most)) is None


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_of_a_box_is_better_than_its_floor(seed):
    rng = random.Random(seed)
    model = problem_of(seed, most_machines=6)
    graph, space = model.workload.graph, [SMALL, WIDE, SPLIT][seed % 3]
    boxes = [
        box_of(s, space, model.cluster, graph) for s in strategies(space, model.cluster, graph)
    ]
    names = [table.name for table in graph.tables]
    for box in rng.sample(boxes, min(len(boxes), 8)):
        speed = Judge(model, Aim()).promise(box).speed
        for aim in (Aim(), Aim("epoch"), Aim("epoch", 0.3 * speed), Aim("money", 0.3 * speed + 1)):
            judge = Judge(model, aim)
            inner = box
            while not inner.is_single:  # down to one plan, by a random way
                outer, inner = inner, rng.choice(list(inner.parts(names)))
                whole, part = judge.promise(outer), judge.promise(inner)
                assert whole.loss <= part.loss * (1 + 1e-9)
                assert whole.speed >= part.speed * (1 - 1e-9)


def test_parts_of_a_box_have_each_plan_once():
    model = problem_of(2)
    graph = model.workload.graph
    names = [table.name for table in graph.tables]
    left = [box_of(s, WIDE, model.cluster, graph) for s in strategies(WIDE, model.cluster, graph)]
    total, found = sum(box.num_plans for box in left), []
    while left:
        box = left.pop()
        if box.is_single:
            found.append(replace(box.high(graph), stages=every_stage(box.high(graph))))
        else:
            left += box.parts(names)
    assert len(found) == len(set(found)) == total
    plans = {
        replace(plan, stages=every_stage(plan)) for plan in every_plan(WIDE, model.cluster, graph)
    }
    assert {without_addresses(plan) for plan in found} == {without_addresses(p) for p in plans}


def test_workers_that_step_together_each_get_a_batch():
    graph = problem_of(3).workload.graph
    where = (
        Where("sparse", "h0", "cpu"),
        Where("dense", "h1", "cpu"),
        Where("server", "h0", "cpu"),
    )
    for mode, num_dense, can in (("sync", 2, True), ("sync", 3, False), ("bounded", 3, True)):
        counts = {"sparse": (2, 1), "dense": (num_dense, 1), "server": (1, 1)}
        homes = tuple((table.name, "host") for table in graph.tables)
        plan = Strategy(where, mode, 64, homes=homes).plan(graph, counts, staleness=0)
        assert can_run(plan) is can


def every_stage(plan):
    return tuple(replace(stage, layers=()) for stage in plan.stages)


def without_addresses(plan):
    tables = tuple(replace(table, servers=()) for table in plan.tables)
    return (plan.processes, tables, plan.staleness, plan.batch_size, plan.workers.mode)


@pytest.mark.parametrize("seed", range(6))
def test_hosts_that_must_have_a_role_have_one_in_the_best_plan(seed):
    model = problem_of(seed, num_hosts=3)
    space = replace(SMALL, max_staleness=0, max_per_machine=1)
    names = {"h0", "h2"}
    losses = [
        Aim().loss(prediction)
        for plan in every_plan(space, model.cluster, model.workload.graph)
        if names <= {each.host for each in plan.processes}
        and (prediction := model.predict(plan)).fits
    ]
    found = proposed(model, replace(space, hosts=tuple(names)), Aim())
    if not losses:
        assert found is None
        return
    assert names <= {each.host for each in found.plan.processes}
    assert found.loss == pytest.approx(min(losses), rel=1e-9)


def test_a_host_that_must_have_a_role_is_there():
    with pytest.raises(ConfigError, match="got 'h7'"):
        propose(problem_of(0), replace(SMALL, hosts=("h7",)))


def test_more_hosts_with_a_role_than_there_are_roles_is_told():
    model = problem_of(1, num_hosts=3)
    with pytest.raises(PlanError, match="got no way to do so with the hosts h0, h1, h2"):
        propose(model, replace(SMALL, splits=("whole",), hosts=("h0", "h1", "h2")))


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_fits_runs_and_goes_through_json(seed):
    found = proposed(problem_of(seed), SMALL, Aim())
    if found is None:
        return
    plan = found.plan
    assert plan.predicted.fits
    assert Plan.from_json(plan.to_json()) == plan
    assert len(plan.workers.dense) == sum(p.count for p in plan.processes_of("dense"))
    assert len(plan.servers or ()) == sum(p.count for p in plan.processes_of("server"))
    for runner in found.runners_up:
        assert runner.plan is None or runner.plan.predicted.fits
        assert runner.reason


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_more_of_anything_is_never_worse(seed):
    model = problem_of(seed)
    before = proposed(model, SMALL, Aim())
    if before is None:
        return
    cluster = model.cluster
    more = [
        [replace(host, count=host.count + 1) for host in cluster.hosts],
        [
            replace(host, devices=tuple(replace(d, memory=2 * d.memory) for d in host.devices))
            for host in cluster.hosts
        ],
        [
            replace(
                host,
                devices=tuple(
                    replace(d, cores=2 * d.cores) if d.cores else replace(d, count=2 * d.count)
                    for d in host.devices
                ),
            )
            for host in cluster.hosts
        ],
    ]
    for hosts in more:
        larger = CostModel(replace(cluster, hosts=tuple(hosts)), model.workload)
        assert propose(larger, SMALL, Aim()).loss <= before.loss * (1 + 1e-9)
    wider = replace(SMALL, batch_sizes=(64, 256, 1024), max_staleness=2)
    assert propose(model, wider, Aim()).loss <= before.loss * (1 + 1e-9)


def test_the_plan_takes_no_more_than_it_needs():
    found = propose(problem_of(3), SMALL, Aim())
    model, plan = problem_of(3), found.plan
    fewer = [
        replace(
            plan,
            processes=(
                *plan.processes[:i],
                replace(p, machines=p.machines - 1),
                *plan.processes[i + 1 :],
            ),
        )
        for i, p in enumerate(plan.processes)
        if p.machines > 1
    ]
    for each in fewer:
        assert Aim().loss(model.predict(each)) > found.loss * (1 + 1e-12)


def test_money_needs_prices():
    model = problem_of(1)
    hosts = tuple(replace(host, price_per_hour=None) for host in model.cluster.hosts)
    priceless = CostModel(replace(model.cluster, hosts=hosts), model.workload)
    with pytest.raises(ConfigError, match="got none of h0, h1; give price_per_hour"):
        propose(priceless, SMALL, Aim("epoch"))
    propose(priceless, SMALL, Aim())


def test_time_that_runs_out_leaves_a_plan_and_how_far_it_may_be_from_the_best():
    model = problem_of(8, most_machines=16)
    space = replace(SMALL, max_staleness=2, max_per_machine=None)
    whole = propose(model, space, Aim("epoch"))
    ticks = iter(range(10**6))
    rushed = propose(model, space, Aim("epoch"), seconds=2, clock=lambda: float(next(ticks)))
    assert rushed.plan.predicted.fits
    assert rushed.num_predicted < whole.num_predicted
    assert rushed.bound <= whole.loss * (1 + 1e-9) <= rushed.loss * (1 + 2e-9)
    assert 0 < rushed.gap < 1


def test_a_plan_that_is_not_found_in_time_is_told_and_nothing_goes_on():
    model = problem_of(8, most_machines=16)
    space = replace(SMALL, max_staleness=2, max_per_machine=None)
    most = propose(model, space).plan.predicted.samples_per_second
    ticks = iter(range(10**6))
    hardly = Aim("money", most * (1 + 1e-6))  # no plan is: to prove it takes longer than to begin
    with pytest.raises(PlanError, match=r"found in 3 s, got [\d,]+ samples/s of the required"):
        propose(model, space, hardly, seconds=3, clock=lambda: float(next(ticks)))
    assert next(ticks) < 20


def test_what_is_impossible_is_told_in_time():
    model = problem_of(8, most_machines=16)
    ticks = iter(range(10**6))
    with pytest.raises(PlanError, match=r"no plan is fast enough: .* no time to try all changes"):
        propose(model, SMALL, Aim("money", 1e12), seconds=2, clock=lambda: float(next(ticks)))
    assert next(ticks) < 200


def test_how_far_a_search_has_come_is_told_and_may_end_it():
    model, found = problem_of(8, most_machines=16), []
    best = propose(model, SMALL, Aim("epoch"), told=found.append)
    assert found[0].what == "the best plan"
    assert any(each.what.startswith("runner-up: ") for each in found)
    numbers = [each.num_predicted for each in found]
    assert numbers == sorted(numbers)
    assert numbers[-1] <= best.num_predicted
    of_best = [each for each in found if each.what == "the best plan"]
    assert all(each.bound <= best.loss * (1 + 1e-9) <= each.loss * (1 + 2e-9) for each in of_best)

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        propose(model, SMALL, Aim("epoch"), told=stop)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"what": "speed"}, "one of throughput, money, epoch, got 'speed'"),
        ({"throughput": -1.0}, "at least 0"),
        ({"what": "money"}, "say how many samples a second"),
    ],
)
def test_aims_that_are_none_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        Aim(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"modes": ("fast",)}, "modes to choose from are some of sync, .* got 'fast'"),
        ({"batch_sizes": ()}, "batch sizes from 1"),
        ({"max_staleness": -1}, "staleness from 0"),
        ({"wires": ()}, "got none"),
        ({"cached_rows": (-1,)}, "at least 0 rows"),
    ],
)
def test_spaces_that_are_none_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        replace(SMALL, **wrong)
