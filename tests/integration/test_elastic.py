"""Workers that come, go, die and sleep: what is learned has each batch once, an epoch."""

import json
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hetero_pipe.data import occurrences
from hetero_pipe.nn import DenseRows, find_embeddings
from tests.toy import build, pushes_on, read, samples, write_parquet

SCRIPT = Path(__file__).parent / "elastic_worker.py"
LATER = 60.0
LEASE_SECONDS = 1.0
BATCHES = 40
EPOCHS = 2


class Worker:
    """A process; what it says goes into a queue that it shares with others."""

    def __init__(self, number, said, **told):
        self.number, self.num_steps = number, 0
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps({**told, "seed": number})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(said,))
        self._reader.start()

    def _read(self, said):
        for line in self.process.stdout:
            said.put((self, json.loads(line)))
        said.put((self, {"gone": True}))

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def cluster(daemon, tmp_path):
    """Returns workers, what they say, and a function that kills a server and starts it again."""
    durable = ("--durability", "process", "--data-dir")
    servers = [daemon(*durable, str(tmp_path / f"server-{i}")) for i in range(2)]
    addresses = [server.address for server in servers]
    data = write_parquet(tmp_path / "toy.parquet", samples(32 * BATCHES))
    said, workers = queue.SimpleQueue(), []

    def restart(number):
        servers[number].signal(signal.SIGKILL)
        servers[number].process.wait()
        folder = str(tmp_path / f"server-{number}")
        servers[number] = daemon(*durable, folder, "--listen", addresses[number])

    told = {"servers": addresses, "data": str(data), "epochs": EPOCHS, "seconds": LEASE_SECONDS}
    try:
        workers += [Worker(i, said, delay=0.02, **told) for i in range(5)]
        yield workers, said, restart, addresses, data
    finally:
        for worker in workers:
            worker.end()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_each_batch_is_trained_once_an_epoch_whoever_dies_or_sleeps(cluster, seed):
    workers, said, restart, addresses, data = cluster
    rng = np.random.default_rng(seed)
    first, second, third, fourth, fifth = workers
    # After so many steps of all: who dies, and who comes in its place; who sleeps; a server dies.
    moments = np.sort(rng.choice(np.arange(4, BATCHES * EPOCHS - 20), 4, replace=False)).tolist()

    def kill(worker, successor):
        worker.process.kill()
        successor.go()

    events = [
        lambda: kill(first, fourth),
        lambda: second.process.send_signal(signal.SIGSTOP),
        lambda: restart(int(rng.integers(2))),
        lambda: kill(third, fifth),
    ]
    num_steps, closed, ended, is_awake, num_ready = 0, [], {}, False, 0
    while len(ended) < 3:
        worker, found = said.get(timeout=LATER)
        if "ready" in found:
            num_ready += 1
            if num_ready == len(workers):
                for each in (first, second, third):
                    each.go()
        elif "step" in found:
            num_steps += 1
            if moments and num_steps == moments[0]:
                moments.pop(0)
                events.pop(0)()
        elif "closed" in found:
            closed.append(found["closed"])
        elif "ended" in found:
            ended[worker.number] = found["ended"]
            if not is_awake:  # all of the data are trained, and what it holds is long another's
                second.process.send_signal(signal.SIGCONT)
                is_awake = True
        elif worker.process.wait() == 0:
            assert worker.number in ended
    assert not events
    assert ended.keys() == {second.number, fourth.number, fifth.number}
    assert set(closed) == {*range(EPOCHS)}  # one who dies meanwhile has a successor in it

    reader, (model, optimizer) = read(data, shuffle=200), build()
    embeddings = find_embeddings(model)
    specs = [layer.spec(name) for name, layer in embeddings.items()]
    dense = [spec for spec in DenseRows(model, optimizer).specs]
    found = pushes_on(addresses, [*specs, *dense])
    for name, layer in embeddings.items():
        assert found[name] == pushes_in(reader, layer.slots), name
    (of_dense,) = {tuple(found[dense[0].name].values())}
    assert set(of_dense) == {BATCHES * EPOCHS}


def pushes_in(reader, slots):
    """Returns in how many batches of all epochs each key is."""
    counts = Counter()
    for epoch in range(EPOCHS):
        for batch in reader.batches(epoch):
            counts.update(set(occurrences(batch, slots).tolist()))
    return dict(counts)
