"""Stages: what a stage promises to the one that waits for it."""

import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from hetero_pipe.client import Client
from hetero_pipe.pipeline import StalenessGate
from hetero_pipe.trainer.stages import PushStage
from ps_server.spec import TableSpec

SOON, LATER = 0.3, 30.0


def test_gate_opens_when_the_servers_have_the_push_and_no_earlier(daemon):
    stuck, gate = daemon(), StalenessGate(0)
    with Client([stuck.address]) as client, ThreadPoolExecutor(2) as threads:
        client.attach([TableSpec("user", 4)])
        keys = {"user": client.route(np.arange(100, dtype=np.uint64))}
        trained = SimpleNamespace(keys=keys, gradients={"user": np.ones((100, 4), np.float32)})
        stuck.freeze()
        try:
            stage = PushStage(client, gate, lambda step, pushed: (step, pushed))
            pushed = threads.submit(stage.run, 0, trained)
            next_pull = threads.submit(gate.wait_to_pull, 1)
            with pytest.raises(TimeoutError):
                next_pull.result(SOON)
        finally:
            stuck.signal(signal.SIGCONT)
        assert pushed.result(LATER) == (0, trained)
        next_pull.result(LATER)
        assert client.num_rows() == {"user": 100}
