"""DenseStep: a step is taken whole or not at all."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import paddle
import pytest
from paddle import nn

import hetero_pipe as hp
from hetero_pipe.nn import DenseStep, Device, dense_state
from tests.oracles.thread_group import ThreadGroup

# Paddle says so at each step of a BatchNorm1D.
pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track")

BAGS = {"a": [[1], [2], [1], [3]], "tags": [[4, 5], [], [6], [6]]}


class Model(nn.Layer):
    """Its output may be spoiled by a slot, by what stands beside it, or by its shape."""

    def __init__(self):
        super().__init__()
        self.rows = hp.Embedding(["a", "tags"], dim=2)
        self.wide = hp.Embedding(["a"], dim=1)
        self.norm = nn.BatchNorm1D(4)
        self.linear = nn.Linear(4, 1)
        self.after = lambda logits, rows: logits

    def forward(self, batch):
        rows = self.rows(batch)
        logits = self.linear(self.norm(rows.flatten(1))) + self.wide(batch).sum(axis=1)
        return self.after(logits, rows)


def adam(model):
    return paddle.optimizer.Adam(0.1, parameters=model.parameters())


class Case:
    """A model, a batch for it and the rows of the batch."""

    def __init__(self, hand):
        paddle.seed(0)
        self.model, self.optimizer, self.hand = Model(), None, hand
        self.batch = hand.batch_of(BAGS, label=[0, 1, 1, 0])

    def make(self, *, optimizer=adam, loss=None):
        self.optimizer = optimizer and optimizer(self.model)
        dense = DenseStep(self.model, loss=loss, optimizer=self.optimizer, device=Device("cpu"))
        return dense, self.optimizer

    def sample(self):
        return self.batch, self.hand.pull(self.model, self.batch)

    def state(self):
        return dense_state(self.model, self.optimizer)


@pytest.fixture
def case(hand):
    return Case(hand)


@contextmanager
def refused(case, kind, said):
    """The block raises, and nothing of the dense part has changed."""
    before = case.state()
    with pytest.raises(kind, match=said):
        yield
    after = case.state()
    assert after.keys() == before.keys()
    for name, array in after.items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    assert all(p.grad is None for p in case.model.parameters())


# ------------------------------------------------------------------ what a step gives


@pytest.mark.parametrize("shape", [[4], [4, 1]])
def test_logits_are_batch_or_batch_by_1(shape, case):
    case.model.after = lambda logits, rows: logits.reshape(shape)
    dense, _ = case.make()
    output = dense.train(0, *case.sample())
    assert output.probabilities.shape == (4,)
    assert set(output.gradients) == {"rows", "wide"}
    assert output.gradients["rows"].shape == (6, 2)
    assert output.gradients["wide"].shape == (3, 1)
    assert dense.predict(*case.sample()).shape == (4,)


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (lambda logits, rows: rows.flatten(1), r"\[4, 4\]"),
        (lambda logits, rows: logits.sum(), r"\[\]"),
        (lambda logits, rows: logits[:2], r"\[2, 1\]"),
        (lambda logits, rows: logits.reshape([1, 4]), r"\[1, 4\]"),
        (lambda logits, rows: (logits, rows), "tuple"),
        (lambda logits, rows: None, "NoneType"),
    ],
)
def test_other_logits_are_refused_with_the_model(after, found, case):
    case.model.after = after
    dense, _optimizer = case.make()
    sample = case.sample()
    said = rf"logits \[batch\] or \[batch, 1\], batch=4, got {found} from Model.forward"
    with refused(case, hp.ConfigError, said):
        dense.train(0, *sample)
    with pytest.raises(hp.ConfigError, match=said):
        dense.predict(*sample)


def test_predictions_are_those_before_the_step_and_predict_changes_nothing(case):
    case.model.norm = nn.Identity()  # in training it sees the batch, in prediction it does not
    dense, optimizer = case.make()
    sample = case.sample()
    before = dense.predict(*sample)
    state = dense_state(case.model, optimizer)
    np.testing.assert_array_equal(dense.predict(*sample), before)
    assert {n: a.tolist() for n, a in dense_state(case.model, optimizer).items()} == {
        n: a.tolist() for n, a in state.items()
    }
    np.testing.assert_array_equal(dense.train(0, *sample).probabilities, before)
    assert (dense.predict(*sample) != before).all()


def test_the_gradient_of_rows_is_that_of_finite_differences(case):
    dense, _ = case.make(optimizer=None)
    batch, tables = case.sample()
    gradient = dense.train(0, batch, tables).gradients["rows"].copy()
    rows = tables["rows"].rows
    for row, column in np.ndindex(rows.shape):
        kept, losses = rows[row, column], []
        for sign in (1, -1):
            rows[row, column] = kept + sign * 1e-2
            losses.append(dense.train(0, batch, tables).loss)
        rows[row, column] = kept
        slope = (losses[0] - losses[1]) / 2e-2
        assert abs(slope - gradient[row, column]) < 2e-3


def test_a_loss_of_ones_own_is_what_is_minimised(case):
    def squares(logits, labels):
        assert logits.shape == labels.shape == [4]
        return ((logits - 10 * labels) ** 2).mean()

    dense, _ = case.make(loss=squares)
    losses = [dense.train(i, *case.sample()).loss for i in range(30)]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (lambda logits, labels: (logits - labels) ** 2, r"\[4\]"),
        (lambda logits, labels: 0.5, "float"),
        (lambda logits, labels: None, "NoneType"),
    ],
)
def test_a_loss_that_is_no_scalar_is_refused(loss, found, case):
    dense, _optimizer = case.make(loss=loss)
    sample = case.sample()
    with refused(
        case, hp.ConfigError, f"a loss returns a scalar tensor, got {found}; take its mean"
    ):
        dense.train(0, *sample)


def test_an_error_of_the_model_leaves_no_gradient_behind(case):
    def loss(logits, labels):
        (logits.sum() * 3).backward()
        raise ZeroDivisionError("the user's")

    dense, _optimizer = case.make(loss=loss)
    sample = case.sample()
    with refused(case, ZeroDivisionError, "the user's"):
        dense.train(0, *sample)


def test_a_table_that_the_loss_does_not_depend_on_has_no_gradient(case):
    case.model.after = lambda logits, rows: rows.sum(axis=[1, 2])
    dense, _ = case.make()
    assert set(dense.train(0, *case.sample()).gradients) == {"rows"}


def test_a_loss_that_depends_on_nothing_trains_nothing(case):
    case.model.after = lambda logits, rows: paddle.zeros([4])
    dense, _ = case.make()
    output = dense.train(0, *case.sample())
    assert output.gradients == {}
    assert output.loss == pytest.approx(np.log(2))


def test_a_model_in_bfloat16_predicts_in_float32(case):
    case.model.after = lambda logits, rows: logits.astype("bfloat16")
    dense, _ = case.make(loss=lambda logits, labels: logits.astype("float32").mean())
    output = dense.train(0, *case.sample())
    assert output.probabilities.dtype == np.float32


def test_labels_are_needed_to_train_and_not_to_predict(case):
    case.batch = case.hand.batch_of(BAGS)
    dense, _ = case.make()
    with pytest.raises(hp.ConfigError, match=r"training needs labels.*label=None"):
        dense.train(0, *case.sample())
    assert dense.predict(*case.sample()).shape == (4,)


def test_cross_entropy_refuses_labels_outside_0_and_1(case):
    case.batch = case.hand.batch_of(BAGS, label=[0, 1, 4.5, -1])
    dense, _optimizer = case.make()
    sample = case.sample()
    said = "labels from 0 to 1, got 4.5 in sample 2 of step 7; name another label, or pass loss="
    with refused(case, hp.DataError, said):
        dense.train(7, *sample)
    dense, _ = case.make(loss=nn.functional.mse_loss)
    dense.train(7, *sample)


def test_cross_entropy_takes_labels_between_0_and_1(case):
    case.batch = case.hand.batch_of(BAGS, label=[0, 0.5, 0.25, 1])
    dense, _ = case.make()
    assert np.isfinite(dense.train(0, *case.sample()).loss)


# ------------------------------------------------------------------ NaN


def spoil(value):
    """Makes the gradient of the bag of sample 2, slot `tags`, `value`; the loss stays finite."""

    class Spoiled(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, rows):
            return rows * 1.0

        @staticmethod
        def backward(ctx, gradient):
            spoiled = gradient.numpy().copy()
            spoiled[2, 1] = value
            return paddle.to_tensor(spoiled)

    return lambda logits, rows: logits + Spoiled.apply(rows).sum(axis=[1, 2]).unsqueeze(1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, (np.inf, -np.inf)])
def test_a_gradient_that_is_not_finite_names_table_slot_and_sample_and_is_not_applied(value, case):
    dense, _optimizer = case.make()
    sample = case.sample()
    dense.train(0, *sample)
    case.model.after = spoil(value)
    with refused(
        case,
        hp.NonFiniteError,
        "table 'rows' for the key of slot 'tags' in sample 2 of step 7; nothing of this step was",
    ):
        dense.train(7, *sample)
    assert dense.num_steps == 1


def test_training_goes_on_after_a_nan_as_if_it_had_not_been(case, hand):
    dense, _ = case.make()
    sample = case.sample()
    dense.train(0, *sample)
    case.model.after = lambda logits, rows: logits * float("nan")
    with pytest.raises(hp.NonFiniteError):
        dense.train(1, *sample)
    case.model.after = lambda logits, rows: logits
    loss = dense.train(1, *sample).loss

    undisturbed = Case(hand)
    dense, _ = undisturbed.make()
    dense.train(0, *undisturbed.sample())
    assert dense.train(1, *undisturbed.sample()).loss == loss
    found, expected = case.state(), undisturbed.state()
    assert {n: a.tolist() for n, a in found.items()} == {n: a.tolist() for n, a in expected.items()}


def test_rows_that_are_nan_do_not_spoil_the_running_means(case):
    dense, optimizer = case.make()
    batch, tables = case.sample()
    before = dense_state(case.model, optimizer)
    assert "model/norm._mean" in before
    tables["rows"].rows[2] = np.nan
    with refused(case, hp.NonFiniteError, "rows"):
        dense.train(0, batch, tables)


def test_a_loss_that_is_not_finite_is_refused_though_gradients_are(case):
    def loss(logits, labels):
        return logits.mean() + paddle.to_tensor(float("inf"))

    dense, _optimizer = case.make(loss=loss)
    sample = case.sample()
    with refused(case, hp.NonFiniteError, "the loss must be finite, got inf at step 3"):
        dense.train(3, *sample)


def test_a_gradient_of_the_dense_part_alone_names_the_parameter(case):
    # The root's slope at 0 is infinite; its value is 0, and rows do not reach it.
    case.model.extra = case.model.create_parameter(
        [1], default_initializer=nn.initializer.Constant(0.0)
    )
    case.model.after = lambda logits, rows: logits + case.model.extra.sqrt()
    dense, _optimizer = case.make()
    sample = case.sample()
    with refused(
        case, hp.NonFiniteError, "NaN or infinity in parameter 'extra' of the model at step 3"
    ):
        dense.train(3, *sample)


def test_a_gradient_whose_sum_overflows_is_no_nan(case):
    dense, _ = case.make(optimizer=None, loss=lambda logits, labels: logits.mean() * 3e38)
    assert np.isfinite(dense.train(0, *case.sample()).loss)


# ------------------------------------------------------------------ optimizers


def test_without_optimizer_the_dense_part_stays_and_gradients_do_not_pile_up(case):
    dense, _ = case.make(optimizer=None)
    sample = case.sample()
    before = {path: p.numpy() for path, p in case.model.named_parameters()}
    first = dense.train(0, *sample).gradients["rows"].copy()
    for step in range(1, 4):
        gradient = dense.train(step, *sample).gradients["rows"]
    np.testing.assert_array_equal(gradient, first)
    for path, parameter in case.model.named_parameters():
        if not path.startswith("norm._"):
            np.testing.assert_array_equal(parameter.numpy(), before[path])
        assert parameter.grad is None


def test_a_scheduler_is_stepped_once_a_step(case):
    scheduler = paddle.optimizer.lr.ExponentialDecay(0.1, gamma=0.5)
    dense, optimizer = case.make(
        optimizer=lambda m: paddle.optimizer.SGD(scheduler, parameters=m.parameters())
    )
    rates = []
    for step in range(3):
        rates.append(optimizer.get_lr())
        dense.train(step, *case.sample())
        dense.predict(*case.sample())
    assert rates == [0.1, 0.05, 0.025]
    assert scheduler.last_epoch == 3


def test_a_scheduler_is_not_stepped_by_a_step_that_is_refused(case):
    scheduler = paddle.optimizer.lr.ExponentialDecay(0.1, gamma=0.5)
    dense, _ = case.make(
        optimizer=lambda m: paddle.optimizer.SGD(scheduler, parameters=m.parameters())
    )
    case.model.after = lambda logits, rows: logits * float("nan")
    with pytest.raises(hp.NonFiniteError):
        dense.train(0, *case.sample())
    assert scheduler.last_epoch == 0


def test_a_scheduler_that_follows_a_metric_is_the_callers_to_step(case):
    scheduler = paddle.optimizer.lr.ReduceOnPlateau(0.1, patience=0)
    dense, optimizer = case.make(
        optimizer=lambda m: paddle.optimizer.SGD(scheduler, parameters=m.parameters())
    )
    dense.train(0, *case.sample())
    assert optimizer.get_lr() == 0.1


def test_an_optimizer_of_a_part_of_the_model_moves_that_part(case):
    dense, _ = case.make(
        optimizer=lambda m: paddle.optimizer.SGD(0.1, parameters=m.linear.parameters())
    )
    before = {path: p.numpy() for path, p in case.model.named_parameters()}
    for step in range(2):
        dense.train(step, *case.sample())
    moved = {
        p for p, t in case.model.named_parameters() if not np.array_equal(t.numpy(), before[p])
    }
    statistics = {"norm._mean", "norm._variance"}
    assert moved - statistics == {"linear.weight", "linear.bias"}


def test_an_optimizer_of_another_model_is_refused(case):
    with pytest.raises(hp.ConfigError, match=r"which are not of this Model; pass parameters="):
        case.make(optimizer=lambda _: adam(Model()))
    with pytest.raises(hp.ConfigError, match=r"which are not of this Model"):
        case.make(
            optimizer=lambda _: paddle.optimizer.Adam(
                parameters=[{"params": nn.Linear(1, 1).parameters(), "learning_rate": 0.1}]
            ),
        )


def test_a_tables_optimizer_is_refused_for_the_dense_part(case):
    with pytest.raises(hp.ConfigError, match=r"optimizer is of paddle.optimizer, got Adam\("):
        case.make(optimizer=lambda _: hp.Adam())


def test_parameter_groups_are_taken(case):
    dense, _ = case.make(
        optimizer=lambda m: paddle.optimizer.SGD(
            0.1, parameters=[{"params": m.parameters(), "learning_rate": 0.5}]
        ),
    )
    dense.train(0, *case.sample())


def test_a_frozen_parameter_stays(case):
    case.model.linear.weight.stop_gradient = True
    before = case.model.linear.weight.numpy()
    dense, _ = case.make()
    dense.train(0, *case.sample())
    np.testing.assert_array_equal(case.model.linear.weight.numpy(), before)


def test_paddles_sparse_embedding_in_the_dense_part_trains(case):
    case.model.hour = nn.Embedding(3, 1, sparse=True)
    hours = paddle.to_tensor([0, 1, 0, 1])
    case.model.after = lambda logits, rows: logits + case.model.hour(hours)
    dense, _ = case.make()
    before = case.model.hour.weight.numpy()
    dense.train(0, *case.sample())
    assert (case.model.hour.weight.numpy() != before).any(axis=1).tolist() == [True, True, False]


# ------------------------------------------------------------------ a step of several batches

PARTS = (
    ({"a": [[1], [2], [1], [3]], "tags": [[4, 5], [], [6], [6]]}, [0, 1, 1, 0]),
    ({"a": [[2]], "tags": [[5, 7]]}, [1]),
    ({"a": [[3], [9]], "tags": [[4], []]}, [0, 0]),
)


def joined(hand, parts):
    bags = {slot: [bag for bags, _ in parts for bag in bags[slot]] for slot in parts[0][0]}
    return hand.batch_of(bags, label=[label for _, labels in parts for label in labels])


def without_norm(case):
    """A BatchNorm takes the statistics of each batch; without it, a step is that of all in one."""
    case.model.norm = nn.LayerNorm(4)


def sgd(model):
    return paddle.optimizer.SGD(0.5, parameters=model.parameters())


@pytest.mark.parametrize("seats", [[[0, 1, 2]], [[0], [1, 2]], [[2], [], [0, 1]]])
def test_a_step_of_several_batches_is_that_of_their_samples_in_one(seats, hand):
    """Wherever they are: one after another here, or on other workers."""
    whole = Case(hand)
    without_norm(whole)
    dense, _ = whole.make(optimizer=sgd)
    batch = joined(hand, PARTS)
    expected = dense.train(0, batch, hand.pull(whole.model, batch))

    groups = ThreadGroup.members(len(seats))
    cases = [Case(hand) for _ in seats]
    steps = []
    for case in cases:
        without_norm(case)
        steps.append(case.make(optimizer=sgd)[0])

    def run(rank):
        batches = [hand.batch_of(PARTS[i][0], label=PARTS[i][1]) for i in seats[rank]]
        parts = [(each, hand.pull(cases[rank].model, each)) for each in batches]
        return steps[rank].train_parts(0, parts, group=groups[rank])

    with ThreadPoolExecutor(len(seats)) as pool:
        outputs = list(pool.map(run, range(len(seats))))
    states = [case.state() for case in cases]
    for name, array in whole.state().items():
        np.testing.assert_allclose(states[0][name], array, rtol=1e-5, atol=1e-6, err_msg=name)
        for state in states[1:]:
            np.testing.assert_array_equal(state[name], states[0][name], err_msg=name)
    order = [i for seat in seats for i in seat]
    of = dict(zip(order, (each for found in outputs for each in found), strict=True))
    sizes = [len(labels) for _, labels in PARTS]
    assert np.average([of[i].loss for i in range(3)], weights=sizes) == pytest.approx(expected.loss)
    found = np.concatenate([of[i].probabilities for i in range(3)])
    np.testing.assert_allclose(found, expected.probabilities, rtol=1e-5)


@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_step_that_nobody_takes_changes_nothing(is_stopping, case):
    dense, _ = case.make()
    sample = case.sample()
    dense.train(0, *sample)
    before = case.state()
    parts = [sample] if is_stopping else []
    assert dense.train_parts(1, parts, is_stopping=is_stopping) is None
    for name, array in case.state().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    assert all(p.grad is None for p in case.model.parameters())
    assert dense.num_steps == 1


def test_a_nan_of_another_worker_is_raised_here_and_nothing_is_applied(hand):
    groups = ThreadGroup.members(2)
    cases = [Case(hand), Case(hand)]
    cases[1].model.after = lambda logits, rows: logits * float("nan")
    steps = [case.make()[0] for case in cases]

    def run(rank):
        said = "found by worker 1" if rank == 0 else "table 'rows'"
        with refused(cases[rank], hp.NonFiniteError, said):
            steps[rank].train_parts(0, [cases[rank].sample()], group=groups[rank])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
