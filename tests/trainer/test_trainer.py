"""Trainer: fit, evaluate and predict on small real files, and every mistake along the way."""

import io
import logging
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812  # as everybody writes it
import pytest
from paddle import nn

import hetero_pipe as hp
from hetero_pipe.plan import STAGES
from hetero_pipe.trainer import Evaluation, Progress
from ps_server.server import Server
from tests.toy import (
    DeepFM,
    Losses,
    RowsAlone,
    assert_equal,
    build,
    read,
    samples,
    state_of,
    training,
    write_csv,
    write_parquet,
)


def read_csv(path, **options):
    columns = {"slots": ["user", "item", "tags"], "dense": ["price", "age"]}
    return hp.read_csv(path, **{**columns, "batch_size": 32, "multi_hot_separator": "|", **options})


# ------------------------------------------------------------------ fit


def test_fit_trains_every_batch_of_every_epoch(reader):
    losses = Losses()
    with training(trainer={"loss": losses}) as trainer:
        result = trainer.fit(reader, epochs=3)
    assert result.num_steps == len(losses.values) == 60
    assert result.num_samples == 3 * 640
    assert result.seconds > 0
    assert result.samples_per_second == result.num_samples / result.seconds
    assert result.loss == pytest.approx(np.mean(losses.values[40:]), rel=1e-6)
    assert 0.5 < result.auc <= 1
    assert result.evaluations == ()
    assert np.mean(losses.values[40:]) < np.mean(losses.values[:20])


def test_each_epoch_has_an_order_of_its_own(reader):
    labels = []

    def loss(logits, label):
        labels.append(label.numpy().tolist())
        return logits.mean()

    with training(trainer={"loss": loss}) as trainer:
        trainer.fit(reader, epochs=2)
    assert labels[:20] != labels[20:]
    expected = [batch.label.tolist() for epoch in (0, 1) for batch in reader.batches(epoch)]
    assert labels == expected


def test_no_epochs_train_nothing(reader):
    with training() as trainer:
        result = trainer.fit(reader, epochs=0)
        assert trainer.num_rows() == {"first_order": 0, "embedding": 0}
    assert (result.num_steps, result.loss, result.auc) == (0, None, None)
    assert result.samples_per_second == 0


@pytest.mark.parametrize("max_steps", [0, 1, 19, 20, 21, 30])
def test_max_steps_counts_the_steps_of_the_call(max_steps, reader):
    with training() as trainer:
        assert trainer.fit(reader, epochs=2, max_steps=max_steps).num_steps == max_steps
        assert trainer.fit(reader, max_steps=3).num_steps == 3


def test_a_fit_after_another_goes_on_with_the_same_tables(reader, tmp_path):
    losses = Losses()
    with training(trainer={"loss": losses}) as trainer:
        trainer.fit(reader)
        trainer.fit(reader)
        state = state_of(trainer, tmp_path / "c")
    assert state["step"] == 40
    assert np.mean(losses.values[20:]) < np.mean(losses.values[:20])


def test_the_eval_reader_is_evaluated_after_each_epoch(reader, path):
    told = []

    class Callback:
        def on_step(self, report):
            told.append(("step", report.epoch, report.step))

        def on_epoch(self, epoch, evaluation):
            told.append(("epoch", epoch, evaluation))

    with training() as trainer:
        result = trainer.fit(reader, epochs=2, eval_reader=read(path), callbacks=[Callback()])
        last = trainer.evaluate(read(path))
    assert len(result.evaluations) == 2
    assert result.evaluations[1] == last
    assert [t for t in told if t[0] == "epoch"] == [
        ("epoch", 0, result.evaluations[0]),
        ("epoch", 1, result.evaluations[1]),
    ]
    assert [t[1:] for t in told if t[0] == "step"] == [(i // 20, i) for i in range(40)]
    assert told[20][0] == told[41][0] == "epoch"


def test_an_epoch_that_max_steps_cuts_is_not_evaluated(reader, path):
    with training() as trainer:
        assert trainer.fit(reader, eval_reader=read(path), max_steps=5).evaluations == ()


def test_a_report_says_where_training_stands(reader):
    reports, losses = [], Losses()

    class Callback:
        def on_step(self, report):
            reports.append((report.loss, report.auc(), report.samples_per_second))

        def on_epoch(self, epoch, evaluation):
            pass

    with training(trainer={"loss": losses}) as trainer:
        result = trainer.fit(reader, callbacks=[Callback()])
    means = np.cumsum(losses.values) / np.arange(1, 21)
    np.testing.assert_allclose([loss for loss, _, _ in reports], means, rtol=1e-6)
    assert reports[-1][:2] == (result.loss, result.auc)
    assert all(speed > 0 for _, _, speed in reports)


@pytest.mark.parametrize("is_tty", [True, False])
def test_progress_is_one_line_on_a_terminal_and_quiet_elsewhere(is_tty, reader, path):
    class Terminal(io.StringIO):
        def isatty(self):
            return is_tty

    stream = Terminal()
    with training() as trainer:
        progress = Progress(stream, seconds=0)
        trainer.fit(reader, epochs=2, eval_reader=read(path), callbacks=[progress])
    text = stream.getvalue()
    if not is_tty:
        assert text == ""
        return
    assert text.count("\n") == 2
    assert text.count("\r\033[K") == 42
    assert "epoch 2 · step 40 · loss 0." in text
    assert " samples/s · evaluation auc 0." in text


def test_progress_takes_an_undefined_auc():
    stream = io.StringIO()
    stream.isatty = lambda: True
    Progress(stream).on_epoch(0, Evaluation(None, 0.5, 3))
    assert "epoch 1 · evaluation auc undefined log loss 0.5000" in stream.getvalue()


# ------------------------------------------------------------------ callbacks that fail


class Failing:
    def __init__(self, at, error):
        self.at, self.error, self.told = at, error, []

    def on_step(self, report):
        self.told.append(report.step)
        if report.step == self.at:
            raise self.error

    def on_epoch(self, epoch, evaluation):
        pass


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), KeyboardInterrupt()])
def test_what_a_callback_raises_ends_training_between_two_steps(error, staleness, reader, tmp_path):
    callback = Failing(4, error)
    losses = Losses()
    with training(trainer={"staleness": staleness, "loss": losses}) as trainer:
        with pytest.raises(type(error)) as raised:
            trainer.fit(reader, callbacks=[callback])
        assert raised.value is error
        state = state_of(trainer, tmp_path / "c")  # it can be saved: no step is half applied
        assert 5 <= state["step"] < 20
        assert len(losses.values) == state["step"]
        assert state["embedding/step"].max() == state["step"]
        assert callback.told[:5] == [0, 1, 2, 3, 4]
        assert trainer.fit(reader, epochs=1).num_steps == 20

    with training(trainer={"loss": Losses()}) as other:
        other.load(tmp_path / "c")
        assert other.fit(reader).num_steps == 20 - state["step"]


def test_a_second_interrupt_ends_at_once(reader):
    class Impatient(Failing):
        def on_step(self, report):
            self.told.append(report.step)
            raise KeyboardInterrupt

    impatient = Impatient(0, None)
    with training(trainer={"staleness": 2}) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(reader, callbacks=[impatient])
        assert impatient.told in ([0], [0, 1])
        assert trainer.fit(reader).num_steps == 20


def test_a_step_that_some_servers_have_cannot_be_saved(reader, tmp_path):
    with ExitStack() as one, Server("127.0.0.1:0") as two:
        address = one.enter_context(Server("127.0.0.1:0")).address
        calls = []

        def loss(logits, labels):
            calls.append(1)
            if len(calls) == 6:  # between the pull and the push of step 5
                one.close()
            return nn.functional.binary_cross_entropy_with_logits(logits, labels)

        with training(trainer={"servers": [address, two.address], "loss": loss}) as trainer:
            with pytest.raises(hp.ServerUnavailable, match=address):
                trainer.fit(reader)
            with pytest.raises(hp.CheckpointError, match="got step 5 applied in part"):
                trainer.save(tmp_path / "c")
            with pytest.raises(hp.DataError):  # which tears nothing, and mends nothing
                trainer.fit(Broken(reader, 0, hp.DataError("broken")))
            with pytest.raises(hp.CheckpointError, match="applied in part"):
                trainer.save(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ evaluate and predict


def test_predictions_come_in_file_order_though_the_reader_shuffles(path):
    shuffled, plain = read(path, shuffle=1000), read(path)
    with training() as trainer:
        trainer.fit(shuffled)
        found = trainer.predict(shuffled)
        assert found.shape == (640,)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, trainer.predict(plain))
        np.testing.assert_allclose(found, trainer.predict(read(path, batch_size=1000)), rtol=1e-5)
    assert ((found > 0) & (found < 1)).all()
    labels = np.concatenate([batch.label for batch in plain.batches(0)])
    assert np.corrcoef(found, labels)[0, 1] > 0.2


def test_predict_needs_no_labels(path):
    with training() as trainer:
        trainer.fit(read(path))
        found = trainer.predict(read(path, label=None))
        np.testing.assert_array_equal(found, trainer.predict(read(path)))


def test_evaluate_is_what_the_predictions_say(path):
    from sklearn.metrics import log_loss, roc_auc_score

    with training() as trainer:
        trainer.fit(read(path))
        found, predicted = trainer.evaluate(read(path)), trainer.predict(read(path))
    labels = np.concatenate([batch.label for batch in read(path).batches(0)])
    assert found.auc == pytest.approx(roc_auc_score(labels, predicted))
    assert found.log_loss == pytest.approx(log_loss(labels, predicted.astype(float)))
    assert found.num_samples == 640


@pytest.mark.parametrize("number", [0, 2])
def test_evaluation_changes_nothing_and_creates_no_row(number, serve, reader, unseen, tmp_path):
    with training(trainer={"servers": serve(number)}) as trainer:
        trainer.fit(reader)
        before, rows = state_of(trainer, tmp_path / "a"), trainer.num_rows()
        trainer.evaluate(unseen)
        trainer.predict(unseen)
        assert trainer.num_rows() == rows
        assert_equal(state_of(trainer, tmp_path / "b"), before)


def test_an_unseen_key_has_the_row_it_would_start_with(unseen, reader):
    class Constant(nn.Layer):
        def __init__(self):
            super().__init__()
            self.rows = hp.Embedding(
                ["user", "item"], dim=1, initializer=hp.Constant(0.75), optimizer=hp.SGD(0.5)
            )

        def forward(self, batch):
            return self.rows(batch).sum(axis=[1, 2])

    with training(Constant) as trainer:
        before = trainer.predict(unseen)
        np.testing.assert_allclose(before, 1 / (1 + np.exp(-1.5)), rtol=1e-6)
        trainer.fit(reader)
        np.testing.assert_array_equal(trainer.predict(unseen), before)


def test_predicting_unseen_keys_and_then_training_them_starts_at_the_same_row(unseen):
    probabilities = []

    def loss(logits, labels):
        probabilities.append(nn.functional.sigmoid(logits).numpy())
        return logits.mean()

    with training(trainer={"loss": loss}) as trainer:
        predicted = trainer.predict(unseen)
        trainer.fit(unseen, max_steps=1)
    np.testing.assert_array_equal(predicted[:32], probabilities[0])


@pytest.mark.parametrize("label", [0, 1])
def test_the_auc_of_one_class_is_none_and_said_so(label, tmp_path, caplog):
    table = samples(40)
    i = table.column_names.index("label")
    table = table.set_column(i, "label", [np.full(40, label)])
    reader = read(write_parquet(tmp_path / "one.parquet", table))
    with training() as trainer:
        result = trainer.fit(reader, eval_reader=reader)
    assert result.auc is None
    assert result.evaluations[0].auc is None
    assert result.evaluations[0].log_loss > 0
    assert f"the AUC is undefined: all 40 labels are {label}" in caplog.messages


def test_evaluation_of_a_reader_without_labels_is_refused(path):
    with training() as trainer, pytest.raises(hp.ConfigError, match="samples with labels"):
        trainer.evaluate(read(path, label=None))


def test_dropout_is_for_training_alone(path):
    class Dropping(DeepFM):
        def __init__(self):
            super().__init__()
            self.deep.add_sublayer("drop", nn.Dropout(0.9))

    with training(Dropping) as trainer:
        trainer.fit(read(path))
        np.testing.assert_array_equal(trainer.predict(read(path)), trainer.predict(read(path)))


# ------------------------------------------------------------------ other models and losses


def test_a_regression_trains_with_a_loss_of_its_own(tmp_path):
    table = samples(640)
    i = table.column_names.index("label")
    target = 3 + 5 * np.asarray(table["price"])
    reader = read(
        write_parquet(tmp_path / "r.parquet", table.set_column(i, "label", [target])), shuffle=640
    )
    losses = []

    def squares(logits, labels):
        loss = nn.functional.mse_loss(logits, labels)
        losses.append(float(loss))
        return loss

    with training(
        trainer={"loss": squares}, dense=lambda p: paddle.optimizer.Adam(0.05, parameters=p)
    ) as trainer:
        result = trainer.fit(reader, epochs=5)
        assert result.auc is None
        assert result.loss == pytest.approx(np.mean(losses[-20:]), rel=1e-5)
        with pytest.raises(ValueError, match="a label is 0 or 1"):
            trainer.evaluate(reader)
    assert np.mean(losses[-20:]) < np.mean(losses[:5]) / 3


def test_regression_labels_with_cross_entropy_are_refused(tmp_path):
    table = samples(64)
    i = table.column_names.index("label")
    reader = read(
        write_parquet(tmp_path / "r.parquet", table.set_column(i, "label", [np.arange(64.0)]))
    )
    with training() as trainer:
        with pytest.raises(hp.DataError, match="labels from 0 to 1, got 2 in sample 2 of step 0"):
            trainer.fit(reader)
        assert trainer.num_rows()["embedding"] > 0  # pulled, not pushed


def test_a_model_without_dense_parameters_trains(reader, tmp_path):
    with training(RowsAlone) as trainer:
        first = trainer.evaluate(reader)
        trainer.fit(reader, epochs=3)
        assert trainer.evaluate(reader).log_loss < first.log_loss
        state = state_of(trainer, tmp_path / "c")
    assert set(state) == {
        "step",
        *(f"weight/{c}" for c in ("key", "weights", "num_pushes", "step")),
    }


def test_a_batch_whose_bags_are_all_empty_trains(tmp_path):
    table = samples(64)
    i = table.column_names.index("tags")
    reader = read(
        write_parquet(tmp_path / "e.parquet", table.set_column(i, "tags", [[[]] * 64])),
        slots=["tags"],
    )
    for model in (RowsAlone, lambda slots: DeepFM(slots=slots)):
        with training(model, slots=["tags"]) as trainer:
            assert trainer.fit(reader, epochs=2).num_steps == 4
            assert sum(trainer.num_rows().values()) == 0
            assert trainer.predict(reader).shape == (64,)


def test_one_sample_batches_train(path):
    with training() as trainer:
        assert trainer.fit(read(path, batch_size=1), max_steps=50).num_steps == 50


def test_optimizer_none_trains_the_tables_alone(reader, tmp_path):
    losses = Losses()
    with training(dense=None, trainer={"loss": losses}) as trainer:
        before = {p: t.numpy() for p, t in build()[0].named_parameters()}
        trainer.fit(reader, epochs=3)
        state = state_of(trainer, tmp_path / "c")
    for path, array in before.items():
        np.testing.assert_array_equal(state[f"model/{path}"], array)
    assert np.mean(losses.values[-20:]) < np.mean(losses.values[:20])


def test_a_scheduler_is_stepped_once_a_step(reader):
    scheduler = paddle.optimizer.lr.StepDecay(0.1, step_size=1000)
    with training(
        dense=lambda p: paddle.optimizer.SGD(scheduler, parameters=p), trainer={"staleness": 2}
    ) as trainer:
        trainer.fit(reader, epochs=2)
        trainer.evaluate(reader)
    assert scheduler.last_epoch == 40


# ------------------------------------------------------------------ mistakes, and going on


def test_a_reader_that_lacks_a_slot_is_told_which(path):
    reader = read(path, slots=["user", "tags"])
    with training() as trainer:
        for work in (
            lambda: trainer.fit(reader),
            lambda: trainer.fit(read(path), eval_reader=reader),
            lambda: trainer.evaluate(reader),
            lambda: trainer.predict(reader),
        ):
            with pytest.raises(
                hp.ConfigError, match="got none of item for 'first_order'; it has user, tags"
            ):
                work()
        assert sum(trainer.num_rows().values()) == 0


def test_fit_without_labels_is_refused_and_the_trainer_goes_on(path):
    with training() as trainer:
        with pytest.raises(hp.ConfigError, match=r"training needs labels"):
            trainer.fit(read(path, label=None))
        assert trainer.fit(read(path)).num_steps == 20


def test_a_dense_column_that_the_reader_lacks_is_told(path):
    with training() as trainer:
        with pytest.raises(hp.ConfigError, match="a batch has label, got 'dense'"):
            trainer.fit(read(path, dense=[]))
        assert trainer.fit(read(path)).num_steps == 20


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_malformed_line_surfaces_with_file_and_line_and_training_goes_on(
    staleness, tmp_path, reader
):
    path = write_csv(tmp_path / "bad.csv", samples(640))
    lines = path.read_text().splitlines()
    lines[400] = lines[400].rsplit(",", 1)[0] + ",maybe"
    path.write_text("\n".join(lines) + "\n")
    broken = read_csv(path)
    with training(trainer={"staleness": staleness}) as trainer:
        with pytest.raises(hp.DataError, match=r"bad\.csv, line 401"):
            trainer.fit(broken)
        trainer.save(tmp_path / "c")  # of whole steps
        assert trainer.fit(reader).num_steps == 20
        with pytest.raises(hp.DataError, match=r"bad\.csv, line 401"):
            trainer.evaluate(broken)
        assert trainer.evaluate(reader).num_samples == 640


class Broken:
    """A reader that fails after some batches."""

    def __init__(self, reader, after, error):
        self.slots, self.dense = reader.slots, reader.dense
        self.reader, self.after, self.error = reader, after, error

    def batches(self, epoch, *, skip=0):
        for i, batch in enumerate(self.reader.batches(epoch, skip=skip)):
            if i == self.after:
                raise self.error
            yield batch

    def in_order(self):
        return self


@pytest.mark.parametrize("after", [0, 7])
def test_steps_before_an_error_of_the_reader_are_applied(after, reader, tmp_path):
    with training() as trainer:
        with pytest.raises(hp.StageError, match=f"stage read failed at step {after}: .*mine") as e:
            trainer.fit(Broken(reader, after, ZeroDivisionError("mine")))
        assert isinstance(e.value.__cause__, ZeroDivisionError)
        found = state_of(trainer, tmp_path / "a")
    with training() as trainer:
        trainer.fit(reader, max_steps=after)
        assert_equal(found, state_of(trainer, tmp_path / "b"))


def test_an_error_of_the_model_is_the_callers_and_tells_where(reader):
    class Wrong(DeepFM):
        def forward(self, batch):
            return super().forward(batch) @ paddle.ones([3, 3])

    with training(Wrong) as trainer:
        with pytest.raises(hp.StageError, match="stage dense failed at step 0") as raised:
            trainer.fit(reader)
        assert raised.value.__cause__ is not None
        with pytest.raises(hp.StageError, match="stage dense failed"):
            trainer.predict(reader)


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_nan_names_table_and_slot_and_training_goes_on(staleness, reader, tmp_path):
    calls = []

    def loss(logits, labels):
        calls.append(1)
        factor = float("nan") if len(calls) == 6 else 1.0
        return nn.functional.binary_cross_entropy_with_logits(logits * factor, labels)

    with training(trainer={"staleness": staleness, "loss": loss}) as trainer:
        with pytest.raises(
            hp.NonFiniteError, match=r"table 'first_order' for the key of slot 'user' in .* step 5"
        ):
            trainer.fit(reader)
        state = state_of(trainer, tmp_path / "c")
        assert state["step"] == 5
        assert all(np.isfinite(a).all() for n, a in state.items() if n != "scheduler")
        assert trainer.fit(reader).num_steps == 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"servers": "127.0.0.1:7000"}, r"servers is a list .*write \['127.0.0.1:7000'\]"),
        ({"servers": []}, "servers names at least one HOST:PORT, got none; None is embedded"),
        ({"servers": ["nowhere"]}, "HOST:PORT"),
        ({"staleness": -1}, "staleness is at least 0, got staleness=-1"),
        ({"optimizer": hp.Adam()}, "optimizer is of paddle.optimizer"),
    ],
)
def test_a_wrong_argument_is_named(arguments, said):
    model, optimizer = build()
    with pytest.raises(ValueError, match=said) as raised:
        hp.Trainer(model, **{"optimizer": optimizer, **arguments})
    assert isinstance(raised.value, hp.HeteroPipeError)


@pytest.mark.parametrize("arguments", [{"epochs": -1}, {"max_steps": -1}])
def test_negative_counts_are_refused(arguments, reader):
    (name,) = arguments
    with training() as trainer, pytest.raises(hp.ConfigError, match=f"{name}=-1"):
        trainer.fit(reader, **arguments)


def test_a_model_without_tables_is_paddles_to_train():
    with pytest.raises(hp.ConfigError, match=r"needs an hp.Embedding, got none in Linear"):
        hp.Trainer(nn.Linear(1, 1))


# ------------------------------------------------------------------ tables that are there already


def test_attaching_to_tables_goes_on_with_their_rows(serve, reader, caplog):
    servers = serve(2)
    with training(trainer={"servers": servers}) as trainer:
        trainer.fit(reader)
        rows, before = trainer.num_rows(), trainer.evaluate(reader)
        dense = trainer._model.state_dict()
    caplog.set_level(logging.INFO)
    model, optimizer = build()
    model.set_state_dict(dense)
    with hp.Trainer(model, optimizer=optimizer, servers=servers) as trainer:
        said = [m for m in caplog.messages if m.startswith("attached")]
        assert [m.split(" on ")[0] for m in said] == [
            f"attached to table {name}: {number} rows" for name, number in rows.items()
        ]
        assert trainer.num_rows() == rows
        assert trainer.evaluate(reader) == before
        steps = []
        trainer.fit(reader, max_steps=1, callbacks=[Steps(steps)])
        assert steps == [20]  # Adam's bias correction goes on where it was


class Steps:
    def __init__(self, steps):
        self.steps = steps

    def on_step(self, report):
        self.steps.append(report.step)

    def on_epoch(self, epoch, evaluation):
        pass


def test_fresh_drops_the_tables_first(serve, reader):
    servers = serve(2)
    with training(trainer={"servers": servers}) as trainer:
        trainer.fit(reader)
    with training(trainer={"servers": servers, "fresh": True}) as trainer:
        assert sum(trainer.num_rows().values()) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dim": 8}, "dim=4"),
        ({"optimizer": hp.SGD(0.05)}, "Adagrad"),
        ({"optimizer": hp.Adagrad(0.1)}, "learning_rate=0.05"),
        ({"seed": 1}, "seed=0"),
    ],
)
def test_a_table_of_another_spec_is_refused_and_stays(options, said, serve, reader):
    servers = serve(1)
    with training(trainer={"servers": servers}) as trainer:
        trainer.fit(reader)
        rows = trainer.num_rows()
        with (
            pytest.raises(hp.SpecMismatch, match=said),
            training(trainer={"servers": servers}, **options),
        ):
            pass
        assert trainer.num_rows() == rows
        assert trainer.fit(reader).num_steps == 20


# ------------------------------------------------------------------ plans


def test_the_default_plan_is_what_the_trainer_runs():
    model, _ = build()
    plan = hp.default_plan(model, staleness=2)
    assert hp.Plan.from_json(plan.to_json()) == plan
    assert [stage.name for stage in plan.stages] == ["read", "route", "pull", "dense", "push"]
    assert [(t.name, t.dim, t.slots, t.servers) for t in plan.tables] == [
        ("first_order", 1, ("user", "item", "tags"), ()),
        ("embedding", 4, ("user", "item", "tags"), ()),
    ]
    assert plan.servers is None
    with hp.Trainer(model, staleness=2) as trainer:
        assert trainer.plan == plan


def test_a_plan_brings_its_own_servers_and_staleness(serve, reader):
    servers = serve(2)
    model, optimizer = build()
    plan = hp.default_plan(model, servers=servers, staleness=1)
    with hp.Trainer(model, optimizer=optimizer, plan=plan) as trainer:
        assert trainer.plan.servers == tuple(servers)
        assert trainer.fit(reader).max_staleness <= 1


def test_fit_tells_which_stage_holds_the_others_up(reader):
    model, optimizer = build()
    never = threading.Event()

    def slow_loss(logits, labels):
        never.wait(0.02)  # the work of a device
        return F.binary_cross_entropy_with_logits(logits, labels)

    with hp.Trainer(model, optimizer=optimizer, loss=slow_loss) as trainer:
        result = trainer.fit(reader, epochs=2)
    assert result.timeline.bottleneck == "dense"
    assert [stage.name for stage in result.timeline.stages] == list(STAGES)
    assert {stage.num_steps for stage in result.timeline.stages} == {result.num_steps}
    # At staleness 0 a pull waits for the step before it to be pushed.
    assert result.timeline.stage("pull").waiting_at_gate > 0
    assert result.mean_staleness == 0


def test_a_plan_with_the_tightest_hand_offs_gives_the_same_bits(reader, tmp_path):
    model, optimizer = build()
    plan = hp.default_plan(model)
    plan = replace(plan, stages=tuple(replace(stage, capacity=1) for stage in plan.stages))
    with hp.Trainer(model, optimizer=optimizer, plan=plan) as trainer:
        trainer.fit(reader)
        found = state_of(trainer, tmp_path / "a")
    with training() as trainer:
        trainer.fit(reader)
        assert_equal(found, state_of(trainer, tmp_path / "b"))


@pytest.mark.parametrize(
    "other",
    [{"dim": 8}, {"slots": ["user", "item"]}, {"slots": ["item", "user", "tags"]}],
)
def test_a_plan_of_another_model_is_refused(other):
    plan = hp.default_plan(build()[0])
    with pytest.raises(hp.PlanError, match="a plan is of the model's tables"):
        hp.Trainer(build(**other)[0], plan=plan)


def test_default_plan_refuses_what_is_no_list_of_servers():
    model, _ = build()
    with pytest.raises(hp.ConfigError, match="servers is a list"):
        hp.default_plan(model, servers="a:1")
    with pytest.raises(hp.ConfigError, match="got none; None is embedded"):
        hp.default_plan(model, servers=[])
    with pytest.raises(hp.PlanError, match="staleness=-2"):
        hp.default_plan(model, staleness=-2)


def test_a_second_interrupt_gives_up_a_server_that_hangs(daemon, reader, tmp_path):
    server = daemon()

    class Impatient:
        def on_step(self, report):
            server.freeze()  # the steps under way now wait for it, for up to a minute
            main = threading.main_thread().ident
            threading.Timer(0.5, signal.pthread_kill, [main, signal.SIGINT]).start()
            signal.raise_signal(signal.SIGINT)

        def on_epoch(self, epoch, evaluation):
            """Never comes."""

    start = time.monotonic()
    with training(trainer={"servers": [server.address]}) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(reader, callbacks=[Impatient()], save_to=tmp_path / "checkpoint")
        assert time.monotonic() - start < 30
        with pytest.raises(hp.HeteroPipeError):
            trainer.save(tmp_path / "checkpoint")
        assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("method", ["save", "load", "evaluate", "predict", "fit"])
def test_nothing_is_saved_or_evaluated_while_steps_are_under_way(method, reader, tmp_path):
    class Meddler:
        def on_step(self, report):
            subject = tmp_path / "checkpoint" if method in ("save", "load") else reader
            getattr(trainer, method)(subject)

        def on_epoch(self, epoch, evaluation):
            """Never comes."""

    with training() as trainer:
        with pytest.raises(hp.ConfigError, match=f"{method} is called when no step is under way"):
            trainer.fit(reader, callbacks=[Meddler()])
        assert not (tmp_path / "checkpoint").exists()
        trainer.save(tmp_path / "checkpoint")


def test_epochs_may_be_saved_and_evaluated_from_on_epoch(reader, tmp_path):
    class Keeper:
        def on_step(self, report):
            """Nothing to do."""

        def on_epoch(self, epoch, evaluation):
            trainer.save(tmp_path / f"epoch-{epoch}")

    with training() as trainer:
        trainer.fit(reader, epochs=2, callbacks=[Keeper()])
        trainer.load(tmp_path / "epoch-0")
        assert trainer.fit(reader, epochs=2).num_steps == 20


def test_a_trainer_whose_tables_another_one_dropped_stops(serve, reader):
    servers = serve(2)
    with training(trainer={"servers": servers}) as one:
        one.fit(reader)
        with training(trainer={"servers": servers, "fresh": True}) as other:
            with pytest.raises(hp.TableNotFound, match=r"another trainer dropped it, with fresh"):
                one.fit(reader)
            with pytest.raises(hp.TableNotFound, match=r"another trainer dropped it, with fresh"):
                one.evaluate(reader)
            assert other.fit(reader).num_steps == 20
