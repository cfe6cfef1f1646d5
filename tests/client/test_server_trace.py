"""What servers record of the requests of one client, and of workers that wait for one another."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hetero_pipe.client import Client
from hetero_pipe.pipeline import merge
from ps_server.spec import SGD, Constant, TableSpec
from tests.traces import Trace

LATER = 30.0
SPEC = TableSpec("t", 2, SGD(1.0), Constant(0.0))


def test_a_server_records_between_start_and_stop(servers):
    addresses = servers(2)
    with Client(addresses) as client:
        assert client.stop_trace() == []
        client.start_trace()
        found = client.stop_trace()
        assert sorted(spans.role for spans in found) == sorted(
            f"ps-server {address}" for address in addresses
        )
        assert [len(spans) for spans in found] == [0, 0]
        assert client.stop_trace() == []
    with Client(None) as client:  # the tables' work is within the trainer's own spans
        client.start_trace()
        assert client.stop_trace() == []


def test_a_server_records_whose_request_waits_for_other_workers(daemon):
    address, steps = daemon().address, range(1, 6)

    def work(rank):
        with Client([address]) as client:
            client.attach([SPEC])
            client.join(rank=rank, num_workers=2)
            client.begin(0)
            both.wait(LATER)
            keys = {"t": client.route(np.arange(4, dtype=np.uint64))}
            for step in steps:
                client.pull(keys, insert=True, after_step=step - 1, step=step)
                client.push(keys, {"t": np.ones((4, 2), np.float32)}, step=step, weight=1.0)
            client.end()
            both.wait(LATER)
            client.goodbye()

    both = threading.Barrier(2)
    with Client([address]) as client, ThreadPoolExecutor(2) as threads:
        client.start_trace()
        for future in [threads.submit(work, rank) for rank in (0, 1)]:
            future.result(LATER)
        (spans,) = client.stop_trace()
    trace = Trace(merge([spans]))
    trace.check()
    waits = trace.slices("ps-server", None, "waiting for other workers")
    for step in steps:
        asked = [
            trace.slices("ps-server", None, f"{what} of worker {rank}")[step - 1]
            for what in ("Pull", "Push")
            for rank in (0, 1)
        ]
        assert [each.step for each in asked] == [step - 1] * 4
        within = [sum(w.track == each.track and w.is_within(each) for w in waits) for each in asked]
        assert within[:2] == [1, 1]
        assert sorted(within[2:]) == [0, 1]  # of two parts of a step, the first waits
    assert len(waits) == 3 * len(steps)
