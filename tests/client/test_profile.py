"""Rates of routes, tables and calls: what is measured, and at which sizes."""

from hetero_pipe.client import profile_grpc, profile_route, profile_tables
from hetero_pipe.cluster import SIDES, Sampling
from hetero_pipe.launch import local_server

SAMPLING = Sampling(num_samples=2, min_seconds=1e-4, is_quick=True)


def test_a_route_is_measured_by_its_keys():
    (rate,) = profile_route("here", SAMPLING)
    assert (rate.what, rate.size) == ("route", 26 * 1024)


def test_tables_are_measured_at_few_and_many_keys_of_a_call():
    rates = list(profile_tables("here", SAMPLING, optimizers=["adagrad"]))
    assert {rate.optimizer for rate in rates} == {"adagrad"}
    found = {(rate.what, rate.size) for rate in rates}
    assert found == {(what, size) for what in ("pull", "push") for size in (512, 16384, 65536)}


def test_a_call_is_measured_by_what_it_holds_if_the_server_is_known():
    with local_server() as server:
        known = list(profile_grpc("here", server.address, SAMPLING, pid=server.pid))
        unknown = list(profile_grpc("here", server.address, SAMPLING))
    assert [rate.what for rate in unknown] == ["grpc_call", "grpc_byte"]
    found = {(rate.what, rate.side, rate.size) for rate in known if rate.side}
    sizes = [72 * n for n in (1, 2048, 16384)]
    assert found == {(f"grpc_{w}", s, n) for w in ("pull", "push") for s in SIDES for n in sizes}
