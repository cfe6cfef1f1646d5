"""A trainer is Paddle alone within rounding, the serial loop bit for bit, on any servers."""

import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial

import numpy as np
import paddle
import pytest

import hetero_pipe as hp
from ps_server.table import Table
from tests.oracles import paddle_alone
from tests.oracles.serial_trainer import SerialTrainer
from tests.toy import (
    Losses,
    assert_equal,
    build,
    differs,
    read,
    samples,
    state_of,
    training,
    write_parquet,
)

STEPS = 200

# Ours, and Paddle's of the same meaning.
OPTIMIZERS = {
    "sgd": (hp.SGD(0.5), partial(paddle.optimizer.SGD, 0.5)),
    "adagrad": (hp.Adagrad(0.05), partial(paddle.optimizer.Adagrad, 0.05)),
    "adam": (hp.Adam(0.01), partial(paddle.optimizer.Adam, 0.01, lazy_mode=True)),
}


@pytest.fixture(scope="module")
def long_reader(tmp_path_factory):
    table = samples(STEPS * 64, seed=1)
    return read(write_parquet(tmp_path_factory.mktemp("long") / "l.parquet", table), batch_size=64)


def first_rows(model, reader):
    """Returns ids by key, and the row that each key starts with, `[ids, dim]`, by table."""
    keys = np.unique(
        np.concatenate([bags.keys for batch in reader.batches(0) for bags in batch.bags.values()])
    )
    tables = {
        name: Table(layer.spec(name)).pull(keys, insert=False)
        for name, layer in (("first_order", model.first_order), ("embedding", model.embedding))
    }
    return dict(zip(keys.tolist(), range(len(keys)), strict=True)), tables


def run_ours(reader, optimizer, *, max_steps=STEPS):
    losses = Losses()
    with training(optimizer=optimizer, trainer={"loss": losses}) as trainer:
        trainer.fit(reader, max_steps=max_steps)
    return np.array(losses.values)


def run_paddle(reader, optimizer, rows_optimizer, *, sparse, max_steps=STEPS):
    model, _ = build(optimizer=optimizer)
    ids, tables = first_rows(model, reader)
    alone = paddle_alone.PaddleDeepFM(ids, tables, model, sparse=sparse)
    batches = [batch for batch, _ in zip(reader.batches(0), range(max_steps), strict=False)]
    dense_optimizer = partial(paddle.optimizer.Adam, 1e-3)
    losses = paddle_alone.train(
        alone, batches, rows_optimizer=rows_optimizer, dense_optimizer=dense_optimizer
    )
    return losses, alone


def apart(some, others):
    """Largest relative difference."""
    return float(np.max(np.abs(some - others) / np.abs(others)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_step_moves_rows_and_parameters_as_paddle_alone(name, long_reader, tmp_path):
    ours, paddles = OPTIMIZERS[name]
    losses = Losses()
    with training(optimizer=ours, trainer={"loss": losses}) as trainer:
        trainer.fit(long_reader, max_steps=1)
        state = state_of(trainer, tmp_path / "c")
    loss, alone = run_paddle(long_reader, ours, paddles, sparse=True, max_steps=1)
    assert abs(losses.values[0] - loss[0]) <= 1e-6
    for table, layer in (("first_order", alone.first_order), ("embedding", alone.embedding)):
        ids = [alone.ids[key] for key in state[f"{table}/key"].tolist()]
        expected = layer.weight.numpy()[ids]
        np.testing.assert_allclose(state[f"{table}/weights"], expected, rtol=0, atol=1e-6)
    for path, parameter in alone.named_parameters():
        if path.startswith("de"):  # dense and deep
            np.testing.assert_allclose(
                state[f"model/{path}"], parameter.numpy(), rtol=0, atol=1e-6, err_msg=path
            )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_stay_as_close_to_paddles_as_its_own_two_ways_do(name, long_reader):
    ours, paddles = OPTIMIZERS[name]
    found = run_ours(long_reader, ours)
    sparse, _ = run_paddle(long_reader, ours, paddles, sparse=True)
    assert len(found) == len(sparse) == STEPS
    assert apart(found[:20], sparse[:20]) <= 1e-5
    # Paddle's own dense Adam moves every row each step: it is another optimizer.
    own = 0.0
    if name != "adam":
        dense, _ = run_paddle(long_reader, ours, paddles, sparse=False)
        own = apart(sparse, dense)
    early, late = apart(found[:20], sparse[:20]), apart(found, sparse)
    print(f"{name}: {early:.1e} over 20 steps, {late:.1e} over {STEPS}; Paddle's own {own:.1e}")
    # Paddle's two ways may be bit-equal; a loss in float32 is rounded to 6e-8 of itself.
    assert apart(found, sparse) <= max(3 * own, 1e-6)


# ------------------------------------------------------------------ the serial loop, bit for bit


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_staleness_0_is_the_serial_loop_bit_for_bit(name, pooling, reader, unseen, tmp_path):
    options = {"optimizer": OPTIMIZERS[name][0], "pooling": pooling}
    losses = Losses()
    with training(**options, trainer={"loss": losses}) as trainer:
        trainer.fit(reader, epochs=2)
        ours = trainer.predict(reader), trainer.predict(unseen), state_of(trainer, tmp_path / "c")

    model, optimizer = build(**options)
    expected = Losses()
    serial = SerialTrainer(model, optimizer=optimizer, loss=expected)
    serial.fit(reader, epochs=2)
    assert losses.values == expected.values
    assert len(losses.values) == 40
    np.testing.assert_array_equal(ours[0], serial.predict(reader))
    np.testing.assert_array_equal(ours[1], serial.predict(unseen))
    state = {k: v for k, v in ours[2].items() if not k.startswith("optimizer/")}
    assert_equal(state, serial.state())


def test_serial_oracle_sees_a_difference_of_one_step(reader, tmp_path):
    with training() as trainer:
        trainer.fit(reader, max_steps=19)
        state = state_of(trainer, tmp_path / "c")
    model, optimizer = build()
    serial = SerialTrainer(model, optimizer=optimizer, loss=Losses())
    serial.fit(reader)
    changed = {name for name in differs(state, serial.state()) if not name.startswith("optimizer/")}
    assert {"step", "embedding/weights", "embedding/state", "model/deep.0.weight"} <= changed


# ------------------------------------------------------------------ servers


@contextmanager
def ps_servers(number):
    """Daemons as a user starts them; yields their addresses."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "ps_server", "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(number)
    ]
    try:
        yield [p.stdout.readline().removeprefix("listening on ").strip() for p in processes]
    finally:
        for process in processes:
            process.terminate()
        assert [process.wait(10) for process in processes] == [0] * number
        for process in processes:
            process.stdout.close()


def learned(servers, reader, unseen, folder):
    losses = Losses()
    with training(trainer={"loss": losses, "servers": servers}) as trainer:
        result = trainer.fit(reader, epochs=2)
        found = trainer.evaluate(reader)
        predicted = trainer.predict(unseen)
        rows = trainer.num_rows()
        state = state_of(trainer, folder)
    return {
        **state,
        "losses": losses.values,
        "result": [result.loss, result.auc, result.num_steps],
        "evaluation": [found.auc, found.log_loss, found.num_samples],
        "predicted": predicted,
        "rows": list(rows.items()),
    }


@pytest.mark.parametrize("number", [1, 2, 3])
def test_servers_give_the_embedded_run_bit_for_bit(number, serve, reader, unseen, tmp_path):
    embedded = learned(None, reader, unseen, tmp_path / "embedded")
    assert_equal(learned(serve(number), reader, unseen, tmp_path / "served"), embedded)


def test_daemon_processes_give_the_embedded_run_bit_for_bit(reader, unseen, tmp_path):
    embedded = learned(None, reader, unseen, tmp_path / "embedded")
    with ps_servers(2) as servers:
        assert_equal(learned(servers, reader, unseen, tmp_path / "served"), embedded)


def test_servers_named_in_another_order_hold_the_same_rows(serve, reader, tmp_path):
    servers = serve(2)
    with training(trainer={"servers": servers}) as trainer:
        trainer.fit(reader)
        before = state_of(trainer, tmp_path / "a")
    with training(trainer={"servers": servers[::-1]}) as trainer:
        after = state_of(trainer, tmp_path / "b")
    rows = [name for name in before if name.startswith(("embedding/", "first_order/"))]
    assert len(rows) == 10
    assert_equal({n: after[n] for n in rows}, {n: before[n] for n in rows})


# ------------------------------------------------------------------ staleness


class Asked:
    """A reader that says when its batch `number` is asked for."""

    def __init__(self, reader, number):
        self.slots, self.dense = reader.slots, reader.dense
        self.reader, self.number, self.reached = reader, number, threading.Event()

    def batches(self, epoch, *, skip=0):
        for i, batch in enumerate(self.reader.batches(epoch, skip=skip)):
            if i == self.number:
                self.reached.set()
            yield batch


@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
@pytest.mark.parametrize("number", [0, 2])
def test_a_pull_misses_at_most_staleness_pushes(staleness, number, serve, reader):
    losses = Losses()

    def wait_and_lose(logits, labels):
        # While step 0 is trained, pulls go on as far as the gate lets them. It holds the one of
        # step k + 1: behind it the hand-offs fill, and the reader is asked for no more than this.
        assert asked.reached.wait(60)
        return losses(logits, labels)

    with training(
        trainer={"staleness": staleness, "servers": serve(number), "loss": wait_and_lose}
    ) as trainer:
        waiting = sum(trainer.plan.stage(name).capacity for name in ("read", "route"))
        held_by = 3  # pull, route and the reader itself
        asked = Asked(reader, staleness + waiting + held_by)
        result = trainer.fit(asked)
    assert result.max_staleness == staleness
    assert 0 <= result.mean_staleness <= staleness
    assert result.num_steps == 20


@pytest.mark.parametrize("staleness", [0, 3])
def test_training_learns_at_any_staleness(staleness, path):
    losses = Losses()
    with training(dense=None, trainer={"staleness": staleness, "loss": losses}) as trainer:
        trainer.fit(read(path, batch_size=16, shuffle=1000), epochs=6)
    assert np.mean(losses.values[-40:]) < 0.9 * np.mean(losses.values[:40])
