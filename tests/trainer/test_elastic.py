"""Mode `elastic` in one process: the serial loop, whatever happens to ranges, and what is refused."""

import threading

import numpy as np
import paddle
import pytest
from paddle import nn

import hetero_pipe as hp
from hetero_pipe.client import Ask, Client, LeaseKind
from hetero_pipe.nn import DenseRows
from hetero_pipe.trainer.holder import Holder
from hetero_pipe.trainer.leased import LeasedBatches
from tests.oracles.serial_trainer import SerialTrainer
from tests.toy import SLOTS, DeepFM, RowsAlone, build, pushes_on, read, samples, write_parquet

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
