"""Mode `elastic` in one process: the serial loop, what becomes of ranges, what is refused."""

import threading
from itertools import islice

import numpy as np
import paddle
import pytest
from paddle import nn

import hetero_pipe as hp
from hetero_pipe.client import Ask, Client, LeaseKind, Origin
from hetero_pipe.nn import DenseRows
from hetero_pipe.trainer.holder import Holder
from hetero_pipe.trainer.leased import LeasedBatches, Place
from ps_server.spec import SGD, Constant, TableSpec
from tests.oracles.serial_trainer import SerialTrainer
from tests.toy import DeepFM, RowsAlone, build, pushes_on, read, samples, write_parquet

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track")

LATER = 60.0
BATCHES = 20  # of `reader`
KINDS = {
    "sgd": lambda parameters: paddle.optimizer.SGD(0.05, parameters=parameters),
    "adagrad": lambda parameters: paddle.optimizer.Adagrad(0.01, parameters=parameters),
    "adam": lambda parameters: paddle.optimizer.Adam(1e-3, parameters=parameters),
}


class Normed(DeepFM):
    """With statistics that a forward moves, a frozen parameter, and one that no logit needs."""

    def __init__(self):
        super().__init__()
        # Of a bias before a BatchNorm the gradient is rounding alone, which Adam blows up.
        first, norm = nn.Linear(14, 150, bias_attr=False), nn.BatchNorm1D(150)
        self.deep = nn.Sequential(first, norm, nn.ReLU(), nn.Linear(150, 1))
        self.frozen = self.create_parameter([3], default_initializer=nn.initializer.Constant(2.0))
        self.frozen.stop_gradient = True
        self.idle = nn.Linear(2, 2)

    def logits(self, first_order, rows, dense):
        return super().logits(first_order, rows, dense) * self.frozen[0]


def elastic(addresses, model, optimizer, *, size=3, seconds=LATER, staleness=0):
    """Returns a Trainer of mode `elastic`."""
    workers = hp.WorkersPlan(mode="elastic", range_batches=size, lease_seconds=seconds)
    plan = hp.default_plan(model, servers=addresses, staleness=staleness, workers=workers)
    return hp.Trainer(model, optimizer=optimizer, plan=plan)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [1, 2])
def test_one_worker_is_the_serial_loop(serve, reader, kind, number):
    losses = nn.functional.binary_cross_entropy_with_logits
    model, optimizer = build(Normed, dense=KINDS[kind])
    serial = SerialTrainer(model, optimizer=optimizer, loss=losses)
    serial.fit(reader, epochs=2)
    expected = {name: each.numpy() for name, each in model.state_dict().items()}

    model, optimizer = build(Normed, dense=KINDS[kind])
    with elastic(serve(number), model, optimizer) as trainer:
        result = trainer.fit(reader, epochs=2)
        predicted = trainer.predict(reader)
    assert (result.num_steps, result.num_samples) == (2 * BATCHES, 2 * 640)
    np.testing.assert_allclose(predicted, serial.predict(reader), rtol=1e-4)
    for name, found in model.state_dict().items():
        np.testing.assert_allclose(
            found.numpy(), expected[name], rtol=1e-4, atol=1e-6, err_msg=name
        )


def test_every_dense_row_is_pushed_once_a_batch(serve, reader):
    addresses = serve(2)
    model, optimizer = build(Normed)
    with elastic(addresses, model, optimizer, staleness=2) as trainer:
        trainer.fit(reader, epochs=3)
    specs = DenseRows(model, optimizer).specs
    found = pushes_on(addresses, specs)
    assert [len(found[spec.name]) for spec in specs] == [3, 1]
    for spec in specs:
        assert set(found[spec.name].values()) == {3 * BATCHES}


def keys_of(batches):
    """Returns the keys of each batch, by which to tell one."""
    return [batch.bags["user"].keys.tolist() for batch in batches]


@pytest.fixture
def attached(serve, request):
    """A client with one table whose run is open, on two servers; a range has 3 batches."""
    size = getattr(request, "param", 3)
    with Client(serve(2)) as client:
        client.attach([TableSpec("rows", 1, SGD(1.0), Constant(0.0))])
        opening, worker = client.lease("rows", ask(1, size=size), wait_seconds=0)
        assert opening.kind is LeaseKind.OPEN
        client.finish(worker, worker)
        client.end_lease("rows", opening.number, holder=1, num_batches=0)
        yield client


def ask(holder, *held, size=3, seconds=LATER):
    return Ask(holder, frozenset(held), size=size, seconds=seconds, epochs=1)


def leased(client, reader, *, size=3, limit=None):
    """Returns a holder, not entered, and its batches."""
    workers = hp.WorkersPlan(mode="elastic", range_batches=size, lease_seconds=LATER)
    holder = Holder(client, "rows", workers=workers, epochs=1, rng=np.random.default_rng(5))
    return holder, LeasedBatches(reader, client=client, holder=holder, limit=limit)


def push(client, place):
    client.push(
        {"rows": client.route(np.arange(9, dtype=np.uint64))},
        {"rows": np.ones((9, 1), np.float32)},
        step=place.step,
        origin=place.origin,
    )


def test_batches_of_all_ranges_are_those_of_the_reader(attached, reader):
    _, batches = leased(attached, reader)
    found, places = [], []
    for batch in batches:
        found.append(batch)
        places.append(batches.next_place())
        push(attached, places[-1])
        batches.pushed(places[-1])
    assert keys_of(found) == keys_of(reader.batches(0))
    assert [place.step for place in places] == [*range(1, BATCHES + 1)]
    assert batches.found[0].kind is LeaseKind.CLOSE
    batches.close()


def test_a_range_that_was_begun_goes_on_where_the_server_stands_that_is_behind(attached, reader):
    lease, worker = attached.lease("rows", ask(1), wait_seconds=0)
    first = attached._topology.now.connections[0].data  # the holder dies between two servers
    share = attached._topology.now.share(0)
    first.push(
        share,
        {"rows": (np.empty(0, np.uint64), np.empty((0, 1), np.float32))},
        step=1,
        worker=worker,
        sequence=1,
    ).result()
    assert attached.progress(worker) == 0
    for sequence in (1, 2):
        push(attached, Place(lease, Origin(worker, sequence)))
    attached.end_lease("rows", lease.number, holder=1)
    _, batches = leased(attached, reader)
    place_of = [(batch, batches.next_place()) for batch in islice(batches, 2)]
    assert [place.origin for _, place in place_of] == [Origin(worker, 3), Origin(worker + 1, 1)]
    assert keys_of(batch for batch, _ in place_of) == keys_of(reader.batches(0))[2:4]
    batches.close()


@pytest.mark.parametrize("attached", [BATCHES + 1], indirect=True)
def test_a_range_that_is_finished_and_not_ended_is_read_for_its_length(attached, reader):
    lease, worker = attached.lease("rows", ask(1), wait_seconds=0)
    attached.finish(worker, worker)
    attached.end_lease("rows", lease.number, holder=1)
    _, batches = leased(attached, reader)
    assert list(batches) == []
    assert batches.found[0].kind is LeaseKind.CLOSE, "so it was known where the data end"
    batches.close()


def test_what_is_held_is_given_back_by_who_leaves(attached, reader):
    holder, batches = leased(attached, reader, limit=1)
    with holder:
        assert len(list(batches)) == 1
    batches.close()
    lease, _ = attached.lease("rows", ask(2), wait_seconds=0)
    assert (lease.kind, lease.first_batch) == (LeaseKind.TRAIN, 0)


def test_a_worker_that_works_for_longer_than_its_lease_keeps_it(attached, wait_until):
    workers = hp.WorkersPlan(mode="elastic", lease_seconds=0.2)
    with Holder(attached, "rows", workers=workers, epochs=1) as holder:
        lease, _ = holder.acquire()
        silent, _ = attached.lease("rows", ask(2, seconds=0.2), wait_seconds=0)
        taken = []

        def is_taken_back():
            found, _ = attached.lease("rows", ask(3, *taken), wait_seconds=0)
            taken.append(found.number)
            return silent.number in taken

        wait_until(is_taken_back)  # from one that began later, and has as long
        assert lease.number not in taken


def test_two_workers_share_an_epoch_and_end_together(serve, reader):
    addresses = serve(2)
    models = [build(DeepFM) for _ in range(2)]
    results = []

    def run(model, optimizer):
        with elastic(addresses, model, optimizer) as trainer:
            result = trainer.fit(reader, epochs=2, callbacks=[], eval_reader=reader)
            results.append((result, trainer.predict(reader)))

    threads = [threading.Thread(target=run, args=each) for each in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LATER)
    assert sum(result.num_steps for result, _ in results) == 2 * BATCHES
    assert sum(len(result.evaluations) for result, _ in results) == 2, "by who closes an epoch"
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_who_comes_later_goes_on_and_who_comes_too_late_has_the_model(serve, reader, tmp_path):
    addresses = serve(2)
    model, optimizer = build(DeepFM)
    with elastic(addresses, model, optimizer) as trainer:
        trainer.fit(reader, epochs=2, max_steps=BATCHES + 5, save_to=tmp_path / "saved")
    for steps in (BATCHES - 5, 0):
        other, optimizer = build(DeepFM)
        with elastic(addresses, other, optimizer) as trainer:
            assert trainer.fit(reader, epochs=2).num_steps == steps
            predicted = trainer.predict(reader)
            assert trainer.num_rows().keys() == {"first_order", "embedding"}
    with elastic(addresses, *build(DeepFM)) as trainer:
        trainer.fit(reader, epochs=2)
        np.testing.assert_array_equal(trainer.predict(reader), predicted)
        trainer.save(tmp_path / "last")
    # In another mode it goes on, or predicts, with what was learned.
    for name, is_last in (("saved", False), ("last", True)):
        with hp.Trainer(build(DeepFM)[0]) as alone:
            alone.load(tmp_path / name)
            assert np.array_equal(alone.predict(reader), predicted) == is_last


class Stop:
    """A callback that fails at a step, as Ctrl-C would come."""

    def on_step(self, report):
        raise KeyboardInterrupt

    def on_epoch(self, epoch, evaluation):
        pass


def test_an_interrupted_worker_leaves_its_batches_to_others(serve, reader):
    addresses = serve(1)
    model, optimizer = build(DeepFM)
    with elastic(addresses, model, optimizer) as trainer, pytest.raises(KeyboardInterrupt):
        trainer.fit(reader, callbacks=[Stop()])
    with elastic(addresses, *build(DeepFM)) as trainer:
        result = trainer.fit(reader)
    assert 0 < result.num_steps < BATCHES
    found = pushes_on(addresses, DenseRows(model, optimizer).specs)
    assert {count for rows in found.values() for count in rows.values()} == {BATCHES}


def test_a_model_without_a_dense_part_is_trained(serve, reader):
    model, _ = build(RowsAlone)
    serial = SerialTrainer(model, loss=nn.functional.binary_cross_entropy_with_logits)
    serial.fit(reader)
    with elastic(serve(2), model, None) as trainer:
        trainer.fit(reader)
        np.testing.assert_array_equal(trainer.predict(reader), serial.predict(reader))


def test_elastic_learns_as_async_does(serve, tmp_path):
    train = read(write_parquet(tmp_path / "a.parquet", samples(3200)))
    held = read(write_parquet(tmp_path / "b.parquet", samples(2400, seed=1)))
    scores = {}
    for mode in ("elastic", "async"):
        model, optimizer = build(DeepFM)
        plan = hp.default_plan(
            model, servers=serve(2), staleness=2, workers=hp.WorkersPlan(mode=mode)
        )
        with hp.Trainer(model, optimizer=optimizer, plan=plan) as trainer:
            trainer.fit(train, epochs=2)
            scores[mode] = trainer.evaluate(held).auc
    assert scores["async"] > 0.6
    assert abs(scores["elastic"] - scores["async"]) < 0.01


def scheduled(parameters):
    rate = paddle.optimizer.lr.StepDecay(0.1, step_size=3)
    return paddle.optimizer.SGD(rate, parameters=parameters)


@pytest.mark.parametrize(
    ("dense", "claim"),
    [
        (scheduled, "one learning rate, got a StepDecay"),
        (
            lambda p: paddle.optimizer.Momentum(0.1, parameters=p),
            "Adam, Adagrad or SGD .* Momentum",
        ),
        (lambda p: paddle.optimizer.AdamW(0.1, parameters=p), "Adam, Adagrad or SGD .* AdamW"),
        (lambda p: paddle.optimizer.Adam(0.1, parameters=p, weight_decay=0.1), "no weight decay"),
        (
            lambda p: paddle.optimizer.SGD(0.1, p, grad_clip=nn.ClipGradByGlobalNorm(1.0)),
            "no clipping of gradients",
        ),
        (
            lambda p: paddle.optimizer.Adam(0.1, parameters=[{"params": p, "learning_rate": 0.1}]),
            "one set of settings, got groups",
        ),
    ],
)
def test_an_optimizer_that_servers_do_not_have_is_refused(dense, claim):
    with pytest.raises(hp.ConfigError, match=claim):
        DenseRows(*build(DeepFM, dense=dense))


def test_a_parameter_with_settings_of_its_own_is_refused():
    model, optimizer = build(DeepFM)
    model.dense.weight.optimize_attr["learning_rate"] = 0.5
    with pytest.raises(hp.ConfigError, match=r"settings of its own of dense\.weight"):
        DenseRows(model, optimizer)


def test_what_a_run_that_anyone_may_join_cannot_do_is_refused(serve, reader, tmp_path):
    model, optimizer = build(DeepFM)
    addresses = serve(1)
    with elastic(addresses, model, optimizer) as trainer:
        with pytest.raises(hp.ConfigError, match="save_every=5"):
            trainer.fit(reader, save_to=tmp_path / "saved", save_every=5)
        with pytest.raises(hp.ConfigError, match=r"got .*saved to load"):
            trainer.load(tmp_path / "saved")
    plan = trainer.plan
    with pytest.raises(hp.ConfigError, match="fresh=True"):
        hp.Trainer(model, optimizer=optimizer, plan=plan, fresh=True)


def test_rows_are_the_model_and_back():
    model, optimizer = build(Normed)
    rows = DenseRows(model, optimizer)
    before, expected = rows.values(), {n: t.numpy() for n, t in model.state_dict().items()}
    assert [len(before[spec.name]) for spec in rows.specs] == [3, 1]
    rows.set({name: np.zeros_like(each) for name, each in before.items()})
    assert not any(tensor.numpy().any() for tensor in model.state_dict().values())
    rows.set(before)
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), expected[name], err_msg=name)


def test_models_whose_tensors_differ_have_other_tables():
    names = {
        DenseRows(*build(model, **options)).run
        for model, options in ((DeepFM, {}), (DeepFM, {"dim": 8}), (Normed, {}))
    }
    assert len(names) == 3
