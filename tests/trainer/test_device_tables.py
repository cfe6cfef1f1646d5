"""Tables on the device against the embedded store, and the modes that have no servers."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hetero_pipe as hp
from hetero_pipe.client import Client, RoutedKeys
from hetero_pipe.nn import Device, DeviceTable
from hetero_pipe.pipeline import Closed
from hetero_pipe.trainer.device_tables import DeviceTables
from ps_server.spec import TableSpec
from tests.oracles.thread_group import ThreadGroup
from tests.toy import DeepFM, build, read, state_in

DIM = 3
OPTIMIZERS = [
    hp.SGD(0.1),
    hp.Adagrad(0.1, initial_accumulator=0.2),
    hp.Adam(0.01, beta1=0.8, epsilon=1e-4),
]


def spec_of(optimizer, *, initializer=None):
    return TableSpec("t", DIM, optimizer, initializer or hp.Uniform(-1, 1), seed=5)


def routed(keys):
    keys = np.array(keys, np.uint64)
    return {"t": RoutedKeys(keys, np.empty(0, np.int64), np.array([0, len(keys)]))}


class Both:
    """A store and a table on the device, given the same."""

    def __init__(self, spec):
        self.store, self.tables = Client(None), DeviceTables(Device("cpu"))
        for client in (self.store, self.tables):
            client.attach([spec])

    def pull(self, keys, *, insert):
        found = self.tables.pull(routed(keys), insert=insert)["t"]
        assert isinstance(found, paddle.Tensor)
        expected = self.store.pull(routed(keys), insert=insert)["t"]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
        assert self.tables.num_rows() == self.store.num_rows()

    def push(self, keys, gradients, step):
        self.store.push(routed(keys), {"t": gradients}, step=step)
        self.tables.push(routed(keys), {"t": paddle.to_tensor(gradients)}, step=step)

    def check(self):
        found = self.tables._tables["t"].export_rows()
        expected = self.store.export_rows("t")
        order = np.argsort(found.keys)
        np.testing.assert_array_equal(found.keys[order], expected.keys)
        np.testing.assert_allclose(found.weights[order], expected.weights, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.state[order], expected.state, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found.num_pushes[order], expected.num_pushes)
        np.testing.assert_array_equal(found.steps[order], expected.steps)


KEYS = st.lists(st.integers(0, 30), unique=True, max_size=12)
CALLS = st.lists(st.tuples(st.sampled_from(["push", "pull", "insert"]), KEYS), max_size=12)


@settings(deadline=None, max_examples=30)
@given(optimizer=st.sampled_from(OPTIMIZERS), calls=CALLS, seed=st.integers(0, 99))
def test_a_table_on_the_device_does_what_the_store_does(optimizer, calls, seed):
    rng, both = np.random.default_rng(seed), Both(spec_of(optimizer))
    for step, (call, keys) in enumerate(calls, 1):
        if call == "push":
            both.push(keys, rng.normal(size=(len(keys), DIM)).astype(np.float32), step)
        else:
            both.pull(keys, insert=call == "insert")
    both.check()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: type(each).__name__)
def test_rows_stay_when_the_table_grows(optimizer):
    rng, both = np.random.default_rng(0), Both(spec_of(optimizer))
    keys = rng.integers(0, 2**63, 5000, dtype=np.int64).tolist()
    for step, end in enumerate([10, 1024, 1025, 3000, 5000], 1):
        both.push(keys[:end], rng.normal(size=(end, DIM)).astype(np.float32), step)
        both.pull(keys[end // 2 : end], insert=True)
    both.check()


def test_a_table_of_no_row_gives_no_rows():
    tables = DeviceTables(Device("cpu"))
    tables.attach([spec_of(hp.SGD(0.1))])
    assert tables.pull(routed([]), insert=True)["t"].shape == [0, DIM]
    tables.push(routed([]), {"t": np.zeros((0, DIM), np.float32)}, step=1)
    assert tables.num_rows() == {"t": 0}
    assert len(tables._tables["t"].export_rows()) == 0


def test_gradients_that_are_no_tensor_yet_are_taken():
    spec = spec_of(hp.SGD(1.0), initializer=hp.Constant(1.0))
    table = DeviceTable(spec, Device("cpu"), first_weights=lambda k: np.ones((len(k), 3), "f4"))
    keys = np.array([4, 2], np.uint64)
    table.push(keys, np.full((2, 3), 0.25, np.float32), step=1)
    assert (table.pull(keys, insert=False).numpy() == 0.75).all()


# ------------------------------------------------------------------ the modes


def trainer_of(mode, *, optimizer=None, staleness=0, servers=None):
    model, dense = build(DeepFM, optimizer=optimizer)
    workers = hp.WorkersPlan(mode=mode)
    plan = hp.default_plan(model, workers=workers, staleness=staleness, servers=servers)
    return hp.Trainer(model, optimizer=dense, plan=plan)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: type(each).__name__)
def test_cpu_only_learns_what_the_embedded_store_does(optimizer, path):
    found = []
    for mode in ("cpu_only", "bounded"):
        with trainer_of(mode, optimizer=optimizer) as trainer:
            result = trainer.fit(read(path), epochs=2, callbacks=[])
            # The second epoch's new keys are looked up, and not created.
            found.append([result.loss, trainer.num_rows(), trainer.predict(read(path))])
    (loss, rows, probabilities), (expected_loss, expected_rows, expected) = found
    assert rows == expected_rows
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-4, atol=1e-6)


def test_steps_overlap_in_cpu_only(path):
    with trainer_of("cpu_only", staleness=2) as trainer:
        result = trainer.fit(read(path), callbacks=[])
        assert np.isfinite(result.loss)
        assert result.max_staleness <= 2


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(("first", "second"), [("cpu_only", "bounded"), ("bounded", "cpu_only")])
def test_a_checkpoint_goes_from_mode_to_mode(first, second, optimizer, path, tmp_path):
    with trainer_of(first, optimizer=optimizer) as trainer:
        trainer.fit(read(path), max_steps=3, callbacks=[])
        trainer.save(tmp_path / "first")
        expected = trainer.predict(read(path))
        trainer.save(tmp_path / "again")
    with trainer_of(second, optimizer=optimizer) as trainer:
        trainer.fit(read(path), max_steps=1, callbacks=[])  # of which nothing is left
        trainer.load(tmp_path / "first")
        np.testing.assert_array_equal(trainer.predict(read(path)), expected)
        trainer.save(tmp_path / "second")
        assert trainer.fit(read(path), max_steps=1, callbacks=[]).num_steps == 1
    states = [state_in(tmp_path / name) for name in ("first", "again", "second")]
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        for name, array in states[0].items():
            np.testing.assert_array_equal(state[name], array, err_msg=name)


def test_a_mode_of_another_device_is_refused():
    with pytest.raises(
        hp.ConfigError, match=r"gpu_only trains on a GPU, got device cpu; .* has cpu"
    ):
        trainer_of("gpu_only")


def test_servers_are_left_alone(caplog):
    caplog.set_level("INFO")
    with trainer_of("cpu_only", servers=["127.0.0.1:7"]) as trainer:
        assert trainer.plan.servers is None
    assert "servers 127.0.0.1:7 are left alone" in caplog.text


@pytest.mark.parametrize("mode", ["cpu_only", "gpu_only"])
def test_a_plan_of_servers_is_refused_where_there_are_none(mode):
    model, _ = build(DeepFM)
    plan = hp.default_plan(model, servers=["127.0.0.1:7"])
    with pytest.raises(hp.ConfigError, match=rf"mode {mode} keeps .* got servers 127.0.0.1:7"):
        hp.Trainer(model, plan=replace(plan, workers=hp.WorkersPlan(mode=mode)))


@pytest.mark.parametrize("mode", ["cpu_only", "gpu_only"])
def test_dense_workers_are_refused_where_tables_are_on_the_device(mode):
    with pytest.raises(hp.PlanError, match=rf"mode {mode} a worker has .* got 1 dense workers"):
        hp.WorkersPlan(mode=mode, num_readers=2, dense=("127.0.0.1:7",))


# ------------------------------------------------------------------ a replica for each worker

PARTS = [  # of each rank: samples, and the gradient of each key
    (3, {7: [1, 2, 3], 5: [0.1, 0.2, 0.3], 9: [-1, 4, 5.3]}),
    (0, {}),
    (4, {9: [0.7, 0.1, 2.25e7], 2: [1, 1, 1], 7: [-3, 0.3, 2]}),
    (1, {9: [3, 3, -9e7]}),  # in another order, other bits are left of the 5.3
]


def replica(group):
    tables = DeviceTables(Device("cpu"))
    tables.attach([spec_of(hp.SGD(0.5), initializer=hp.Constant(1.0))])
    tables.replicate(group)
    return tables


def test_each_replica_applies_the_mean_of_all_parts_in_the_order_of_ranks():
    replicas = [replica(group) for group in ThreadGroup.members(len(PARTS))]

    def push(rank):
        tables, (weight, found) = replicas[rank], PARTS[rank]
        keys = tables.route(np.array([*found], np.uint64))
        gradients = {"t": np.array([found[int(key)] for key in keys.keys], np.float32)}
        tables.push({"t": keys}, gradients if found else {}, step=1, weight=float(weight))

    with ThreadPoolExecutor(len(PARTS)) as pool:
        list(pool.map(push, range(len(PARTS))))

    expected = {}
    for weight, found in PARTS:
        for key, gradient in found.items():
            part = np.float32(gradient) * np.float32(weight / 8)
            expected[key] = expected[key] + part if key in expected else part
    order = np.array([*expected], np.uint64)
    for tables in replicas:
        assert tables.num_rows() == {"t": 4}
        routed = RoutedKeys(order, np.arange(4), np.array([0, 4]))
        rows = tables.pull({"t": routed}, insert=False)["t"].numpy()
        mean = np.stack([*expected.values()])
        np.testing.assert_array_equal(rows, np.float32(1) - np.float32(0.5) * mean)


def test_one_update_of_all_parts_is_counted_once():
    replicas = [replica(group) for group in ThreadGroup.members(2)]

    def push(tables):
        keys = tables.route(np.array([3], np.uint64))
        tables.push({"t": keys}, {"t": np.ones((1, 3), np.float32)}, step=1, weight=2.0)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(push, replicas))
    for tables in replicas:
        assert tables._tables["t"].export_rows().num_pushes.tolist() == [1]


def test_a_replica_that_is_closed_waits_no_more():
    one, _ = (replica(group) for group in ThreadGroup.members(2))
    one.close()
    with pytest.raises(Closed):
        one.push({}, {}, step=1, weight=1.0)
