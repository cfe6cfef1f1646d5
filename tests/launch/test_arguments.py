"""Flags -> which processes there are, and which of them this is."""

import argparse

import pytest

import hetero_pipe as hp

DENSE = "10.0.0.2:7100,10.0.0.3:7100"
PAIR = ["--num-workers", "2", "--coordinator", "10.0.0.1:7200"]


def parse(*arguments):
    parser = argparse.ArgumentParser()
    hp.launch.add_arguments(parser)
    return parser.parse_args(arguments)


def test_without_flags_a_script_is_one_process_without_servers():
    flags = parse()
    assert flags.servers is None
    assert flags.staleness == 0
    assert flags.trace is None
    assert hp.launch.workers_plan(flags) == hp.WorkersPlan()
    assert hp.launch.worker(flags) == hp.Worker()


@pytest.mark.parametrize(
    ("arguments", "plan", "worker"),
    [
        (
            [*PAIR, "--worker", "1", "--mode", "sync"],
            hp.WorkersPlan(mode="sync", num_readers=2),
            hp.Worker("whole", 1, "10.0.0.1:7200"),
        ),
        (
            [*PAIR, "--dense-workers", DENSE, "--stage", "dense", "--worker", "1"],
            hp.WorkersPlan(num_readers=2, dense=("10.0.0.2:7100", "10.0.0.3:7100")),
            hp.Worker("dense", 1, "10.0.0.1:7200"),
        ),
        (
            [*PAIR, "--dense-workers", DENSE, "--stage", "sparse", "--wire", "bfloat16"],
            hp.WorkersPlan(
                num_readers=2, dense=("10.0.0.2:7100", "10.0.0.3:7100"), wire="bfloat16"
            ),
            hp.Worker("sparse", 0, "10.0.0.1:7200"),
        ),
        (
            ["--average-every", "4", "--mode", "async"],
            hp.WorkersPlan(mode="async", average_every=4),
            hp.Worker(),
        ),
    ],
)
def test_flags_say_which_workers_there_are_and_which_this_is(arguments, plan, worker):
    flags = parse(*arguments)
    assert hp.launch.workers_plan(flags) == plan
    assert hp.launch.worker(flags) == worker


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stage", "dense"], r"needs the addresses of the dense workers.*--dense-workers"),
        (["--stage", "sparse"], r"a sparse worker needs the addresses of the dense workers"),
        ([*PAIR, "--dense-workers", DENSE], r"got a whole one; say which it is \(--stage sparse\)"),
        (["--num-workers", "2"], r"2 workers meet somewhere, got no coordinator"),
        (
            [*PAIR, "--worker", "2"],
            r"has 2 whole workers, with ranks from 0, got whole worker 2; say which",
        ),
    ],
)
def test_a_role_that_is_missing_is_named(arguments, said):
    with pytest.raises(hp.HeteroPipeError, match=said):
        hp.launch.worker(parse(*arguments))


@pytest.mark.parametrize("address", ["host", "host:", ":7000", "host:0", "host:65536", "host:²"])
@pytest.mark.parametrize("flag", ["--coordinator", "--dense-workers"])
def test_an_address_that_is_none_is_refused(flag, address, capsys):
    with pytest.raises(SystemExit):
        parse(flag, address)
    assert f"an address is HOST:PORT with a port from 1 to 65535, got {address!r}" in (
        capsys.readouterr().err
    )


def test_servers_are_named_or_in_a_file():
    assert parse("--servers", "a:1, b:2").servers == ["a:1", "b:2"]
    flags = parse("--servers", "@jobs,old/servers.json", "--retry-seconds", "5")
    assert flags.servers == ["@jobs,old/servers.json"]
    assert flags.retry_seconds == 5
    assert parse().retry_seconds == 120
