"""What pull and push cost where rows are on devices, or cached there."""

from pathlib import Path

import pytest

from hetero_pipe.cluster import load_cluster
from hetero_pipe.cost import Constants, CostModel, Members, all_gather_time, all_to_all_time
from hetero_pipe.plan import ProcessPlan
from tests.cluster.clusters import known
from tests.cost.problems import plan, servers, workers, workload

EXAMPLE = Path(__file__).parents[2] / "examples" / "ctr" / "cluster.toml"
GPUS = ProcessPlan("whole", "trainer", "gpu", 2, 2)
BATCH = 1000
USERS, ITEMS = 900, 6000  # distinct rows of a batch
FOUR = workload(distinct={"users": [(1000, 900), (4000, 3000)], "items": [(1000, 6000)]})


def stages(chosen, found=None):
    predicted = CostModel(known(), found or workload()).predict(chosen)
    return {stage.name: stage.whole_cost for stage in predicted.stages}


def amount(cost, label):
    return sum(part.amount for part in cost.parts if part.label == label)


def on_devices(home, processes=GPUS):
    return plan(processes, staleness=0, mode="gpu_only", homes={"users": home, "items": home})


def test_one_device_with_all_rows_asks_nobody():
    found = stages(on_devices("device", workers(device="gpu")))
    for name in ("pull", "push"):
        assert {part.label for part in found[name].parts} <= {
            "route", "launch", "other ops", "upload",
        }  # fmt: skip


def test_replicas_gather_keys_and_gradients_of_all_each_step():
    members = Members.of(known(), GPUS, constants=Constants())
    push = stages(on_devices("device"))["push"]
    of_all = [4 * USERS * (8 + 4 * 16), 4 * ITEMS * (8 + 4 * 8)]
    expected = sum(all_gather_time(size, members) for size in of_all)
    assert amount(push, "all-gather") == pytest.approx(expected)
    assert amount(push, "route") == pytest.approx(4 * (USERS + ITEMS) * Constants().route_key)
    assert amount(push, "all-to-all") == 0


def test_devices_that_share_rows_out_send_keys_rows_and_gradients():
    members = Members.of(known(), GPUS, constants=Constants())
    found = stages(on_devices("sharded"))

    def seconds(*sizes):
        return sum(all_to_all_time(size, members) for size in sizes)

    pulled = seconds(USERS * 8, USERS * 64, ITEMS * 8, ITEMS * 32)
    assert amount(found["pull"], "all-to-all") == pytest.approx(pulled)
    assert amount(found["push"], "all-to-all") == pytest.approx(seconds(USERS * 72, ITEMS * 40))
    assert amount(found["push"], "all-gather") == 0


def test_each_replica_applies_the_distinct_rows_of_all_and_a_shared_table_its_share():
    replicated = stages(on_devices("device"), FOUR)["push"].on("device")
    shared = stages(on_devices("sharded"), FOUR)["push"].on("device")
    alone = stages(on_devices("device", workers(device="gpu")), FOUR)["push"].on("device")
    # A key of several batches is one row.
    assert alone < replicated < 4 * alone
    assert shared == pytest.approx(replicated / 4)


def test_rows_on_a_device_are_not_asked_of_servers_nor_uploaded():
    def predicted(home):
        return stages(plan(servers(), workers(device="gpu"), homes={"items": home}))["pull"]

    host, device = predicted("host"), predicted("device")
    for label in ("message", "upload", "network"):
        assert amount(device, label) < amount(host, label)
    assert device.on("device") > host.on("device") == 0


def test_a_cache_saves_the_pulls_that_it_hits_and_no_push():
    hot = workload(hits={"users": [(1000, 0.75)]})

    def found(rows):
        return stages(plan(servers(), workers(device="gpu"), cached={"users": rows}), hot)

    none, some = found(0), found(1000)
    saved = 0.75 * USERS
    rate = Constants().pull_row
    assert amount(none["pull"], "pull") - amount(some["pull"], "pull") == pytest.approx(
        saved * rate
    )
    assert none["pull"].on("network") > some["pull"].on("network")
    assert some["pull"].on("device") > none["pull"].on("device") == 0
    assert none["push"] == some["push"]


def test_replicas_that_average_now_and_then_pay_for_it_by_the_step():
    synchronous = stages(plan(servers(), GPUS, staleness=0, mode="sync"))["dense"]
    averaged = stages(plan(servers(), GPUS, staleness=0, average_every=10))["dense"]
    assert amount(synchronous, "all-reduce") > 0
    assert amount(averaged, "all-reduce") == pytest.approx(amount(synchronous, "all-reduce") / 10)
    assert amount(stages(plan(servers(), workers()))["dense"], "all-reduce") == 0


def network(num_workers, num_servers):
    """Returns the seconds of a pull on the network, all on machines of one host."""
    processes = workers("whole", "server", machines=num_workers, per_machine=2)
    model = CostModel(load_cluster(EXAMPLE), workload())
    chosen = plan(servers(machines=num_servers), processes, mode="bounded", batch=10**7)
    found = model.predict(chosen)
    return amount(found.stage("pull").cost, "network")


def test_beside_its_servers_a_worker_sends_what_is_on_other_machines():
    assert network(1, 1) == 0
    two, three, four = (network(num, num) for num in (2, 3, 4))
    # All bytes over one uplink: a half, two thirds and three quarters of them.
    assert two > 0
    assert three / two == pytest.approx((2 / 3) / (1 / 2), rel=0.01)
    assert four / two == pytest.approx((3 / 4) / (1 / 2), rel=0.01)
    # A worker whose machine has no server sends all.
    assert network(4, 1) == pytest.approx(2 * two, rel=0.01)
