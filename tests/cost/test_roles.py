"""Roles: a plan for machines or devices that are not there is refused, and says so."""

import pytest

from hetero_pipe.cost import CostModel
from hetero_pipe.errors import ConfigError, PlanError
from hetero_pipe.plan import ProcessPlan
from tests.cluster.clusters import known
from tests.cost.problems import plan, servers, workers, workload


def predict(*processes, **more):
    return CostModel(known(), workload()).predict(plan(*processes, **more))


@pytest.mark.parametrize(
    ("processes", "message"),
    [
        ([servers(machines=2), workers()], "host 'server' has 1 machines, got a plan with role se"),
        (
            [servers(), workers(machines=3)],
            "host 'trainer' has 2 machines, got a plan with role wh",
        ),
        (
            [servers(), workers(device="gpu", per_machine=3)],
            "2 of 'gpu', one for each process, got",
        ),
        ([servers(), workers(host="trainer-0")], "got the machine 'trainer-0' of host 'trainer'"),
        ([servers(), workers(device="xpu")], "the devices cpu, gpu, got role whole on 'xpu'"),
        ([servers()], "whole workers, or sparse and dense ones, and servers.* got server"),
        ([servers(), workers("sparse")], "got server, sparse"),
        ([servers(), servers(), workers()], "got server, server, whole"),
        (
            [servers(), workers(), workers("sparse"), workers("dense")],
            "got dense, server, sparse, wh",
        ),
        ([servers(), workers("sparse", device="gpu"), workers("dense")], "compute on the cpu"),
    ],
)
def test_processes_that_cannot_be_are_refused(processes, message):
    with pytest.raises(PlanError, match=message):
        predict(*processes)


def test_a_host_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'trainer'"):
        predict(servers(), workers(host="trainr"))


def test_dense_workers_have_no_tables():
    with pytest.raises(PlanError, match="got the tables items on devices; use whole workers"):
        predict(servers(), workers("sparse"), workers("dense"), homes={"items": "device"})


def test_a_plan_without_servers_has_one_worker_or_tables_on_devices():
    with pytest.raises(PlanError, match="2 workers share the tables users on servers"):
        predict(workers(per_machine=2), homes={"items": "device"}, mode="gpu_only", staleness=0)


def test_a_plan_without_a_batch_or_of_another_model_is_refused():
    with pytest.raises(PlanError, match="got batch_size=None"):
        predict(servers(), workers(), batch=None)
    fewer = plan(servers(), workers())
    fewer = type(fewer)(fewer.stages, fewer.tables[:1], 0, batch_size=10)
    with pytest.raises(PlanError, match="tables of the workload's graph, items, users, got users"):
        CostModel(known(), workload()).predict(fewer)


def test_a_plan_that_does_not_say_where_is_on_the_first_host():
    found = predict(batch=100)
    assert {each.host for each in found.memory} == {"trainer"}
    assert found.samples == 100


def test_all_gpus_of_a_machine_may_be_taken():
    found = predict(servers(), ProcessPlan("whole", "trainer", "gpu", 2, 2), batch=10)
    assert found.samples == 40
