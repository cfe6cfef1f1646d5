"""Dense state: what another process, or a model made later in this one, takes up."""

import io
import pickletools
import subprocess
import sys
import zipfile

import numpy as np
import paddle
import pytest
from paddle import nn

import hetero_pipe as hp
from hetero_pipe.nn import dense_state, load_dense_state


class Model(nn.Layer):
    def __init__(self, width=3, *, extra=False):
        super().__init__()
        self.rows = hp.Embedding(["a"], dim=2)  # no part of the dense state
        self.body = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1D(width), nn.ReLU())
        self.head = nn.Linear(width, 1)
        self.unused = nn.Linear(2, 2) if extra else None
        self.register_buffer("seen", paddle.zeros([1], "int64"))

    def forward(self, x):
        self.seen.set_value(self.seen + 1)
        return self.head(self.body(x))


def decaying():
    return paddle.optimizer.lr.ExponentialDecay(0.1, gamma=0.9)


def warming():
    return paddle.optimizer.lr.LinearWarmup(decaying(), 4, 0.0, 0.1)


OPTIMIZERS = {
    "sgd": lambda p: paddle.optimizer.SGD(0.1, parameters=p),
    "momentum": lambda p: paddle.optimizer.Momentum(0.1, parameters=p),
    "adagrad": lambda p: paddle.optimizer.Adagrad(0.1, parameters=p),
    "adam": lambda p: paddle.optimizer.Adam(0.1, parameters=p),
    "amsgrad": lambda p: paddle.optimizer.Adam(0.1, parameters=p, amsgrad=True),
    "adamw": lambda p: paddle.optimizer.AdamW(0.1, parameters=p, weight_decay=0.3),
    "named": lambda p: paddle.optimizer.Adam(0.1, parameters=p, name="mine"),
    "rmsprop": lambda p: paddle.optimizer.RMSProp(0.1, parameters=p, centered=True),
    "lamb": lambda p: paddle.optimizer.Lamb(0.1, parameters=p),
    "clipped": lambda p: paddle.optimizer.Adam(
        0.1, parameters=p, grad_clip=nn.ClipGradByGlobalNorm(1.0)
    ),
    "decayed": lambda p: paddle.optimizer.Adam(0.1, parameters=p, weight_decay=0.1),
    "scheduled": lambda p: paddle.optimizer.Adam(decaying(), parameters=p),
    "warmed": lambda p: paddle.optimizer.Momentum(warming(), parameters=p),
    "by hand": lambda p: paddle.optimizer.SGD(
        paddle.optimizer.lr.LambdaDecay(0.1, lambda epoch: 0.5**epoch), parameters=p
    ),
    "groups": lambda p: paddle.optimizer.AdamW(
        0.1, parameters=[{"params": p[:2]}, {"params": p[2:], "learning_rate": 0.5}]
    ),
    "adamax": lambda p: paddle.optimizer.Adamax(0.1, parameters=p),
    "adadelta": lambda p: paddle.optimizer.Adadelta(0.1, parameters=p),
    "nadam": lambda p: paddle.optimizer.NAdam(0.1, parameters=p),
    "radam": lambda p: paddle.optimizer.RAdam(0.1, parameters=p),
    "asgd": lambda p: paddle.optimizer.ASGD(0.1, batch_num=2, parameters=p),
    "rprop": lambda p: paddle.optimizer.Rprop(0.1, parameters=p),
    "none": lambda p: None,
}

lr = paddle.optimizer.lr
SCHEDULERS = {
    "noam": lambda: lr.NoamDecay(64, 10),
    "piecewise": lambda: lr.PiecewiseDecay([2, 4], [0.1, 0.05, 0.01]),
    "natural": lambda: lr.NaturalExpDecay(0.1, 0.5),
    "inverse": lambda: lr.InverseTimeDecay(0.1, 0.5),
    "polynomial": lambda: lr.PolynomialDecay(0.1, 5, cycle=True),
    "step": lambda: lr.StepDecay(0.1, 2),
    "steps": lambda: lr.MultiStepDecay(0.1, [2, 4]),
    "multiplied": lambda: lr.MultiplicativeDecay(0.1, lambda step: 0.95),
    "cosine": lambda: lr.CosineAnnealingDecay(0.1, 4),
    "restarts": lambda: lr.CosineAnnealingWarmRestarts(0.1, 2, 2),
    "one cycle": lambda: lr.OneCycleLR(0.1, 20),
    "cyclic": lambda: lr.CyclicLR(0.01, 0.1, 3),
    "linear": lambda: lr.LinearLR(0.1, 5),
    "warmed cosine": lambda: lr.LinearWarmup(lr.CosineAnnealingDecay(0.1, 4), 2, 0.0, 0.1),
    "plateau": lambda: lr.ReduceOnPlateau(0.1, patience=1),
}
NEEDS_LOSS = lr.ReduceOnPlateau

pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track")


def made(name="adam", *, seed=0, **options):
    paddle.seed(seed)
    model = Model(**options)
    return model, OPTIMIZERS[name](model.parameters())


def train(model, optimizer, *, steps, first=0):
    losses = []
    for step in range(first, first + steps):
        x = np.random.default_rng(step).normal(size=(8, 2)).astype(np.float32)
        loss = model(paddle.to_tensor(x)).square().mean()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.clear_grad()
            if isinstance(optimizer._learning_rate, paddle.optimizer.lr.LRScheduler):
                optimizer._learning_rate.step()
        losses.append(float(loss))
    return losses


def to_file(state):
    file = io.BytesIO()
    np.savez(file, **state)
    return file.getvalue()


def from_file(data):
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.filterwarnings("ignore:There are some unused values")  # of Paddle's LinearWarmup
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_model_made_later_goes_on_with_the_same_bits(name):
    model, optimizer = made(name)
    train(model, optimizer, steps=3)
    saved = to_file(dense_state(model, optimizer))
    expected = train(model, optimizer, steps=3, first=3)

    other, other_optimizer = made(name, seed=7)  # its layers have other numbers
    load_dense_state(other, other_optimizer, from_file(saved))
    assert_same(dense_state(other, other_optimizer), from_file(saved))
    assert train(other, other_optimizer, steps=3, first=3) == expected
    assert_same(dense_state(other, other_optimizer), dense_state(model, optimizer))


def rates(scheduler, steps):
    found = []
    for _ in range(steps):
        scheduler.step(*([1.0] if isinstance(scheduler, NEEDS_LOSS) else []))
        found.append(scheduler())
    return found


@pytest.mark.filterwarnings("ignore:There are some unused values")
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_goes_on_from_any_step(name, steps):
    model = nn.Linear(1, 1)
    saved, loaded = SCHEDULERS[name](), SCHEDULERS[name]()
    sgd = [paddle.optimizer.SGD(s, parameters=model.parameters()) for s in (saved, loaded)]
    rates(saved, steps)
    state = from_file(to_file(dense_state(model, sgd[0])))
    rates(loaded, 2)  # it has moved elsewhere
    load_dense_state(model, sgd[1], state)
    assert loaded() == saved()
    assert rates(loaded, 12) == rates(saved, 12)


@pytest.mark.parametrize("name", ["adam", "scheduled", "adamw", "none"])
def test_a_model_that_has_trained_goes_back(name):
    model, optimizer = made(name)
    train(model, optimizer, steps=3)
    saved = dense_state(model, optimizer)
    expected = train(model, optimizer, steps=3, first=3)
    load_dense_state(model, optimizer, saved)
    assert train(model, optimizer, steps=3, first=3) == expected


@pytest.mark.parametrize("name", ["adam", "adagrad", "scheduled"])
def test_a_model_that_has_trained_goes_back_to_its_first_step(name):
    model, optimizer = made(name)
    saved = dense_state(model, optimizer)
    assert not any(entry.startswith("optimizer/") for entry in saved)
    expected = train(model, optimizer, steps=3)
    load_dense_state(model, optimizer, saved)
    assert_same(dense_state(model, optimizer), saved)
    assert train(model, optimizer, steps=3) == expected


def test_a_parameter_may_first_move_after_a_load():
    model, optimizer = made(extra=True)
    train(model, optimizer, steps=2)
    other, other_optimizer = made(extra=True, seed=1)
    load_dense_state(other, other_optimizer, dense_state(model, optimizer))
    other.unused(paddle.ones([1, 2])).sum().backward()
    other_optimizer.step()
    assert "optimizer/unused.weight/moment1" in dense_state(other, other_optimizer)


def test_names_are_paths_of_the_model():
    model, optimizer = made("scheduled")
    train(model, optimizer, steps=1)
    names = set(dense_state(model, optimizer))
    assert {
        "model/body.0.weight",
        "model/body.1._mean",
        "model/seen",
        "optimizer/head.bias/moment1",
        "optimizer/head.bias/beta1_pow_acc",
        "scheduler",
    } <= names
    assert not any("rows" in name for name in names)


def test_the_state_is_a_copy():
    model, optimizer = made()
    train(model, optimizer, steps=1)
    state = dense_state(model, optimizer)
    before = {name: array.copy() for name, array in state.items()}
    train(model, optimizer, steps=1, first=1)
    assert_same(state, before)


def test_no_pickle_is_in_the_file():
    model, optimizer = made("scheduled")
    train(model, optimizer, steps=1)
    state = dense_state(model, optimizer)
    assert not any(array.dtype.hasobject for array in state.values())
    with zipfile.ZipFile(io.BytesIO(to_file(state))) as file:
        assert len(file.namelist()) == len(state)
        for name in file.namelist():
            assert file.read(name).startswith(b"\x93NUMPY")
            with pytest.raises(Exception, match=r"opcode|pickle"):
                list(pickletools.genops(file.read(name)))


CHILD = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from tests.nn import test_state as t
model, optimizer = t.made("scheduled", seed=5)
t.load_dense_state(model, optimizer, t.from_file(open(sys.argv[1], "rb").read()))
print(t.train(model, optimizer, steps=3, first=3))
"""


def test_another_process_goes_on_with_the_same_bits(tmp_path):
    made("adam")  # so that layers have other numbers here
    model, optimizer = made("scheduled")
    train(model, optimizer, steps=3)
    (tmp_path / "state.npz").write_bytes(to_file(dense_state(model, optimizer)))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path / "state.npz"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(train(model, optimizer, steps=3, first=3))


# ------------------------------------------------------------------ what does not fit


@pytest.mark.parametrize(
    ("saved", "built", "said"),
    [
        ({}, {"width": 4}, r"body.0.weight with shape \[2, 3\] saved and \[2, 4\] built"),
        ({}, {"extra": True}, r"unused.weight with shape None saved and \[2, 2\] built"),
        ({"extra": True}, {}, r"unused.weight with shape \[2, 2\] saved and None built"),
        ({"name": "sgd"}, {}, None),
        ({}, {"name": "sgd"}, "of SGD, got .*moment1.* saved and {} built"),
        ({}, {"name": "amsgrad"}, "of Adam, got .*moment1"),
        ({"name": "amsgrad"}, {}, "of Adam, got .*moment2_max"),
        ({}, {"name": "adagrad"}, "of Adagrad, got"),
        ({"name": "momentum"}, {"name": "adamw"}, "of AdamW, got .*velocity"),
        ({}, {"name": "none"}, "optimizer state, got optimizer=None"),
        ({"name": "scheduled"}, {}, "got one with a scheduler saved and NoneType built"),
        ({}, {"name": "scheduled"}, "without a scheduler saved and ExponentialDecay built"),
    ],
)
@pytest.mark.parametrize("steps", [0, 2])
def test_another_model_or_optimizer_is_refused_and_nothing_has_changed(saved, built, said, steps):
    model, optimizer = made(**saved)
    train(model, optimizer, steps=2)
    state = dense_state(model, optimizer)
    other, other_optimizer = made(**built, seed=1)
    train(other, other_optimizer, steps=steps)
    before = dense_state(other, other_optimizer)
    if said is None:  # SGD has no state: any optimizer begins anew
        load_dense_state(other, other_optimizer, state)
        return
    with pytest.raises(hp.CheckpointError, match=said):
        load_dense_state(other, other_optimizer, state)
    assert_same(dense_state(other, other_optimizer), before)
    undisturbed, its_optimizer = made(**built, seed=1)
    train(undisturbed, its_optimizer, steps=steps)
    assert train(other, other_optimizer, steps=2, first=9) == train(
        undisturbed, its_optimizer, steps=2, first=9
    )
