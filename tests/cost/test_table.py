"""Costs of pull and push against arithmetic by hand."""

import math

import pytest

from hetero_pipe.cluster import Cluster, Device, Edge, Host, Path, Rate, Spread, Ways
from hetero_pipe.cost import (
    Constants,
    Link,
    TableRates,
    pull_cost,
    push_cost,
    route_cost,
    table_rates,
)
from hetero_pipe.cost.table import call_cost
from hetero_pipe.graph import Table

TABLE = Table("t", 16, {"s": 1.0}, state_per_weight=1)
RATES = TableRates(pull=1e-6, push=3e-6, is_measured=True)


def way(bandwidth, latency):
    return Ways((Path((Edge("a", "b", "NIC", bandwidth, latency),)),))


def parts(cost):
    return {(part.label, part.resource): part.amount for part in cost.parts}


def test_rows_in_the_workers_process_are_its_core_alone():
    assert parts(pull_cost(TABLE, 1000, RATES, Link())) == {("pull", "worker"): pytest.approx(1e-3)}
    assert parts(push_cost(TABLE, 1000, RATES, Link())) == {("push", "worker"): pytest.approx(3e-3)}


def test_servers_share_the_rows_and_the_worker_packs_for_all():
    link = Link(num_servers=4, message_byte=1e-9)
    assert parts(pull_cost(TABLE, 1000, RATES, link)) == {
        ("pull", "server"): pytest.approx(1e-3 / 4),
        ("message", "worker"): pytest.approx(1000 * (8 + 64) * 1e-9 / 2),
        ("message", "server"): pytest.approx(1000 * (8 + 64) * 1e-9 / 2 / 4),
    }


def test_a_pull_waits_for_keys_to_come_and_rows_to_come_back():
    link = Link(num_servers=1, ways=way(1e9, 1e-5), uplink=math.inf)
    found = parts(pull_cost(TABLE, 1000, RATES, link))
    assert found["latency", "wait"] == pytest.approx(2e-5)
    assert found["network", "network"] == pytest.approx(8e3 / 1e9 + 64e3 / 1e9)
    found = parts(push_cost(TABLE, 1000, RATES, link))
    assert found["network", "network"] == pytest.approx(72e3 / 1e9)


def test_each_server_has_a_link_of_its_own_until_the_workers_is_full():
    def network(num_servers):
        link = Link(num_servers=num_servers, ways=way(1e9, 0.0), uplink=4e9)
        return pull_cost(TABLE, 1000, RATES, link).on("network")

    assert [network(1) / network(n) for n in (2, 4, 8)] == pytest.approx([2, 4, 4])


def test_the_busiest_server_is_last():
    link = Link(num_servers=4, skew=2.0)
    assert pull_cost(TABLE, 1000, RATES, link).on("server") == pytest.approx(1e-3 / 2)
    assert Link(num_servers=2, skew=5.0).share == 1.0


def test_requests_are_started_one_by_one_and_waited_for_once():
    assert parts(call_cost(3, call=500e-6, call_cpu=100e-6)) == {
        ("call", "worker"): pytest.approx(300e-6),
        ("call", "server"): pytest.approx(100e-6),
        ("call", "wait"): pytest.approx(300e-6),
    }
    assert call_cost(0, call=1.0, call_cpu=1.0).total == 0
    assert call_cost(1, call=0.0, call_cpu=1.0).on("wait") == 0


def test_a_key_is_routed_in_a_time_of_its_own():
    assert route_cost(1e6, constants=Constants()).on("worker") == pytest.approx(30e-3)


# ---------------------------------------------------------------- rates


def measured(dim, seconds, *, what="pull", size=1000, optimizer="adagrad"):
    return Rate(what, "a", Spread.of([seconds]), optimizer=optimizer, dim=dim, size=size)


def rates_at(dim, *rates, state=1):
    host = Host("a", (Device("cpu", memory=1, cores=1),))
    table = Table("t", dim, {"s": 1.0}, state_per_weight=state)
    return table_rates(Cluster((host,), rates=rates), "a", table, constants=Constants())


def test_between_measured_dims_it_goes_straight_and_beyond_them_with_the_bytes():
    rates = [measured(8, 1e-7), measured(16, 3e-7)]
    found = [rates_at(dim, *rates).pull for dim in (1, 8, 12, 16, 32)]
    assert found == pytest.approx([1e-7, 1e-7, 2e-7, 3e-7, 6e-7])


def test_of_several_sizes_it_is_the_largest_in_which_rows_are_in_no_cache():
    rates = [measured(8, 9e-7, size=10**6), measured(8, 1e-7, size=10), measured(16, 2e-6)]
    assert rates_at(8, *rates).pull == pytest.approx(9e-7)


def test_rates_are_of_the_tables_optimizer_or_assumed():
    rates = [measured(16, 1e-9, optimizer="adam")]
    assert not rates_at(16, *rates).is_measured
    assert rates_at(16, *rates).pull == Constants().pull_row
    assert rates_at(16, *rates, state=2).pull == 1e-9
    assert not rates_at(16, *rates, state=2).is_measured  # nobody measured a push
    assert rates_at(16, *rates, measured(16, 2e-9, what="push", optimizer="adam"), state=2) == (
        TableRates(1e-9, 2e-9, is_measured=True)
    )


def test_wider_rows_are_assumed_to_take_longer():
    assert rates_at(4).pull < rates_at(16).pull < rates_at(64).pull
