"""Memory of rows, of the dense part and of a machine, by hand."""

import pytest

from hetero_pipe.cost import Constants, CostModel, cut_bytes, dense_memory, table_bytes
from hetero_pipe.cost.memory import device_rows_memory
from tests.cluster.clusters import known
from tests.cost.problems import ITEMS, ROWS, USERS, model, plan, servers, workers, workload


def peaks(chosen, **changes):
    found = CostModel(known(), workload(**changes)).predict(chosen).memory
    return {(each.host, each.device): each for each in found}


def amounts(memory):
    return {part.label: part.amount for part in memory.peak.parts}


def on_host(rows):
    return table_bytes(USERS, rows)


def test_the_dense_part_is_parameters_gradients_state_activations_and_rows():
    graph = model(hidden=64)
    found = {p.label: p.amount for p in dense_memory(graph, 10, state=2).parts}
    weights = 4 * 32 * 64
    assert found["parameters"] == found["gradients"] == weights
    assert found["optimizer"] == 2 * weights
    assert found["activations"] == graph.activation_bytes(10)
    assert found["rows of a batch"] == 2 * 4 * (9 * 16 + 60 * 8)
    predicting = dense_memory(graph, 10, state=2, is_training=False)
    assert predicting.total == weights


def test_servers_share_the_rows_and_skew_makes_one_larger():
    rows = ROWS["users"]
    even = peaks(plan(servers(per_machine=2), workers()))["server", "cpu"]
    assert amounts(even)["table users"] == 2 * on_host(rows / 2)  # both on one machine
    skewed = peaks(plan(servers(per_machine=2), workers()), skew=1.5)["server", "cpu"]
    assert amounts(skewed)["table users"] == 2 * on_host(0.75 * rows)
    most = peaks(plan(servers(per_machine=2), workers()), skew=9.0)["server", "cpu"]
    assert amounts(most)["table users"] == 2 * on_host(rows)  # each has all at the most


def test_all_roles_of_a_machine_share_its_memory():
    apart = peaks(plan(servers(), workers()))
    together = peaks(plan(servers(host="trainer"), workers()))
    assert set(apart) == {("server", "cpu"), ("trainer", "cpu")}
    assert together["trainer", "cpu"].peak.total == pytest.approx(
        sum(each.peak.total for each in apart.values())
    )


def test_tables_without_servers_are_in_each_worker():
    alone = amounts(peaks(plan(workers()))["trainer", "cpu"])
    assert alone["table users"] == table_bytes(USERS, ROWS["users"])


def test_a_device_has_the_dense_part_and_its_machine_the_batches():
    found = peaks(plan(servers(), workers(device="gpu", per_machine=2)))
    assert "activations" in amounts(found["trainer", "gpu"])
    on_machine = amounts(found["trainer", "cpu"])
    assert "activations" not in on_machine
    assert on_machine["process"] == 2 * Constants().process


def kept(chosen, role, device="cpu"):
    return amounts(peaks(chosen)[role, device])["kept by allocators"]


def test_what_a_process_keeps_goes_with_its_rows_its_messages_and_its_activations():
    assumed, graph = Constants(), workload().graph
    rows = 4 * (900 * 16 + 6000 * 8)  # distinct ones of 1000 users and 6000 items
    message = rows + 8 * (900 + 6000)
    tables = on_host(ROWS["users"]) + table_bytes(ITEMS, ROWS["items"])
    dense = assumed.kept_activation * graph.activation_bytes(1000)
    alone = assumed.kept_base + assumed.kept_row * rows + assumed.kept_table * tables
    assert kept(plan(workers()), "trainer") == pytest.approx(alone + dense, rel=1e-9)
    served = assumed.kept_base + assumed.kept_client + assumed.kept_message * message
    on_servers = plan(servers(), workers(), staleness=0)
    assert kept(on_servers, "trainer") == pytest.approx(served + dense)
    on_gpu = plan(servers(), workers(device="gpu"), staleness=0)
    assert kept(on_gpu, "trainer") == pytest.approx(served + assumed.kept_upload * rows)
    on_server = assumed.kept_table * tables + assumed.kept_served * message
    assert kept(on_servers, "server") == pytest.approx(on_server)
    ahead = 2 * assumed.kept_served_ahead * message
    assert kept(plan(servers(), workers(), staleness=2), "server") == pytest.approx(
        on_server + ahead
    )


def test_batches_are_read_ahead_and_rows_wait_for_the_gate():
    found = amounts(peaks(plan(servers(), workers(), staleness=3, capacity=5))["trainer", "cpu"])
    batch = 8 * 7000 + 4 * 1000 * (4 + 1)  # keys, dense columns and labels
    assert found["batches read ahead"] == 6 * batch
    assert found["batches under way"] == (4 + 3 * 5) * batch
    rows, keys = 4 * (900 * 16 + 6000 * 8), 8 * (900 + 6000)
    assert found["rows under way"] == 5 * 2 * (rows + keys)


def test_rows_on_devices_are_there_once_each_or_shared_out_with_room_to_double():
    replicated = plan(workers(device="gpu"), homes={"users": "device", "items": "sharded"})
    found = {
        p.label: p.amount for p in device_rows_memory(replicated, workload(), num_devices=4).parts
    }
    # 1e6 rows double from 1024 to 1024 x 2**10; 1e5 / 4 to 1024 x 2**5.
    assert found["table users"] == 2**20 * USERS.bytes_per_row
    assert found["table items"] == 2**15 * ITEMS.bytes_per_row


def test_a_cache_has_weights_alone():
    cached = plan(servers(), workers(device="gpu"), cached={"users": 5000})
    found = amounts(peaks(cached)["trainer", "gpu"])
    assert found["table users"] == 5000 * 4 * 16


def test_what_is_too_large_does_not_fit():
    chosen = plan(servers(), workers())
    assert CostModel(known(), workload()).predict(chosen).fits
    large = CostModel(known(), workload(rows=ROWS | {"users": 1e9})).predict(chosen)
    assert not large.fits
    assert [each.host for each in large.memory if not each.fits] == ["server"]


def test_a_cut_is_half_as_wide_in_half_the_bits():
    graph = model()
    # Both pooled outputs cross after the tables, [10, 16] and [10, 2 x 8] floats.
    assert cut_bytes(graph, 10, "items") == 10 * (16 + 16) * 4
    assert cut_bytes(graph, 10, "items", width=2) == 10 * (16 + 16) * 2
