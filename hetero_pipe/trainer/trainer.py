"""Trainer: fit, evaluate, predict, save and load."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.data import Reader
from hetero_pipe.errors import ConfigError
from hetero_pipe.nn import DenseRows, DenseStep, Device, Loss, find_embeddings, say_settings
from hetero_pipe.plan import RETRY_SECONDS, Plan, Planning, Worker
from hetero_pipe.trainer.build import check_plan, choose_plan, default_plan
from hetero_pipe.trainer.callbacks import Callback, Progress
from hetero_pipe.trainer.elastic import Beside, Elastic
from hetero_pipe.trainer.fit import Fit
from hetero_pipe.trainer.keeper import DensePart, Keeper
from hetero_pipe.trainer.loop import TrainLoop
from hetero_pipe.trainer.membership import Membership
from hetero_pipe.trainer.prediction import evaluate, predict
from hetero_pipe.trainer.result import Evaluation, FitResult
from hetero_pipe.trainer.saver import Saver
from hetero_pipe.trainer.series import Series
from hetero_pipe.trainer.stages import Prediction

__all__ = ["Trainer"]


class Trainer:
    """Trains a model whose Embeddings live on parameter servers, or in this process.

    A context manager; it holds the connections, and in-process tables live as
    long as it does. Used by one thread at a time.

    The model is called with a batch, a mapping of tensors: `batch["dense"]` is
    float32 `[batch, num_dense]`, all dense columns; `batch[column]` is one of
    them, `[batch]`; `batch["label"]` the labels. Slots are read by calling an
    `hp.Embedding` with the batch.

    Args:
        model: A `paddle.nn.Layer` with `hp.Embedding`s. Called with a batch, it
            returns logits `[batch]` or `[batch, 1]`.
        loss: Of logits `[batch]` and labels `[batch]`; None is binary
            cross-entropy with logits.
        optimizer: Paddle's, of `model.parameters()`, the dense part. Its
            learning-rate scheduler, if it has one, is stepped once a step.
            None trains the tables alone.
        servers: HOST:PORT of the parameter servers, or `["@FILE"]` of a file that
            names them; None keeps the tables in this process.
        staleness: How many of the latest pushes a pull may miss. 0 is the
            serial loop, bit for bit; with 1 or more, pull and push overlap with
            the dense work.
        connect_timeout: Seconds to wait for servers that are not there yet.
        retry_seconds: To wait for a durable server that goes away and may come back.
        fresh: Drop this model's tables on the servers first, if they are there.
            Otherwise training goes on with their rows.
        plan: What runs where; by default `default_plan(model, ...)`. A plan
            brings its own servers and staleness. A `Planning`, as `hp.auto_plan`
            returns, chooses it for the model, which is traced for that, and is told
            after each `fit` of enough steps what it took.
        worker: Which of the plan's workers this process is; None is the one of
            a plan of one. Each worker runs the same calls, and they act as one:
            a reader's batches are shared out, what is returned is of all of
            them, and the first writes a checkpoint, which all can read.

    Raises:
        ConfigError: An argument is wrong, or the model has no Embedding.
        PlanError: The plan is of another model, or has no such worker; or none fits.
        TraceError: A plan was to be chosen, and the model cannot be traced.
        ServerUnavailable: A server did not answer in time.
        SpecMismatch: A server has a table of that name with another spec.
        RouteMismatch: The servers serve as part of another set.
        WorkerLost: Other workers did not come in time.
    """

    def __init__(
        self,
        model: Any,  # a paddle.nn.Layer; paddle has no types
        *,
        optimizer: Any = None,  # a paddle.optimizer.Optimizer
        loss: Loss | None = None,
        servers: Sequence[str] | None = None,
        staleness: int = 0,
        connect_timeout: float = 40.0,
        retry_seconds: float = RETRY_SECONDS,
        fresh: bool = False,
        plan: Plan | Planning | None = None,
        worker: Worker | None = None,
    ) -> None:
        self._embeddings = find_embeddings(model)
        if not self._embeddings:
            raise ConfigError(
                f"a model needs an hp.Embedding, got none in {type(model).__name__}; "
                "a model without tables is trained by Paddle alone"
            )
        self._planning = None if plan is None or isinstance(plan, Plan) else plan
        if self._planning is not None:
            plan = choose_plan(model, self._planning, loss=loss)
        assert plan is None or isinstance(plan, Plan), "a planning has chosen"
        self.plan = plan or default_plan(model, servers=servers, staleness=staleness)
        check_plan(self.plan, self._embeddings)
        me = worker or Worker()
        me.check(self.plan.workers)
        self._model = model
        device = Device(self.plan.stage("dense").device)
        rows = None
        if self.plan.workers.is_elastic:
            _check_elastic(fresh=fresh)
            rows = DenseRows(model, optimizer)
            optimizer = None  # the servers'
        rank = 0 if rows else me.rank  # a checkpoint is of no worker then
        part = DensePart(model, optimizer, self._embeddings, rank=rank)
        dense = DenseStep(
            model,
            loss=loss,
            optimizer=optimizer,
            device=device,
            on_gradients=rows.take if rows else lambda: None,
        )
        say_settings()
        self._membership = Membership(
            self.plan,
            worker,
            dense=dense,
            part=part,
            embeddings=self._embeddings,
            dense_tables=rows.specs if rows else (),
            fresh=fresh,
            connect_timeout=connect_timeout,
            retry_seconds=retry_seconds,
        )
        self._client, self._team = self._membership.client, self._membership.team
        self._server = self._membership.server
        self._dense = self._membership.feeder or dense
        self._loop = TrainLoop(
            self.plan,
            client=self._client,
            dense=self._dense,
            step=self._membership.step,
            model=model,
            team=self._team,
        )
        self._elastic = None
        if rows is not None:
            self._elastic = Elastic(
                self.plan, client=self._client, dense=dense, rows=rows, loop=self._loop
            )
        self._part = None if self._membership.feeder else part
        self._keeper = Keeper(
            client=self._client,
            embeddings=self._embeddings,
            loop=self._loop,
            team=self._team,
            dense=self._part,
            feeder=self._membership.feeder,
            has_own_tables=self.plan.workers.has_own_tables,
        )

    @contextmanager
    def _calling(self, call: str) -> Iterator[dict[str, Any]]:
        """Tells the others that a call has ended, or why it failed.

        Yields:
            To be filled with what dense workers return of the call.
        """
        found: dict[str, Any] = {}
        try:
            with self._team.telling():
                yield found
                self._membership.end(call, found)
        except BaseException as error:
            self._membership.fail(error, step=self._loop.step)
            raise

    def fit(
        self,
        reader: Reader,
        *,
        epochs: int = 1,
        eval_reader: Reader | None = None,
        max_steps: int | None = None,
        save_to: str | Path | None = None,
        save_every: int | None = None,
        keep: int = 2,
        callbacks: Sequence[Callback] | None = None,
        trace: str | Path | None = None,
    ) -> FitResult:
        """Trains on every batch of a reader, `epochs` times.

        The first `fit` after a `load` goes on where the saved run was: `epochs`
        then counts the saved ones too, so that the same call resumes it, and at
        staleness 0 it ends as the undisturbed run does, bit for bit.

        Ctrl-C lets the steps under way end and then raises KeyboardInterrupt:
        the trainer can be saved. So does what a callback raises. A second
        Ctrl-C gives those steps up and closes the trainer.

        With staleness 1 and more, what a pull misses is a matter of timing, so
        two runs differ a little.

        Several workers share the batches and end together; Ctrl-C of one is one
        of all. What is returned is of all their samples, but for `timeline` and
        `mean_staleness`, which are this worker's.

        Args:
            reader: Has the slots of every Embedding, and labels.
            epochs: At least 0.
            eval_reader: Evaluated after each epoch.
            max_steps: Stop after so many steps of this call; None is no limit.
            save_to: A path that `save` is given after each epoch and at the end,
                also when Ctrl-C ends it early, or wrong data do without dense workers,
                if all workers stand between the same two steps.
            save_every: Steps between two checkpoints during training, which goes on
                meanwhile; `save_to` is then a folder of checkpoints, one for each
                multiple of it and for the end of each epoch, and `load` takes the
                newest whole one. One that cannot be written is told by a warning;
                if it is that of the end, `fit` raises it. Several workers in
                `bounded` or `async`, and dense workers, pause while it is written.
                None saves after epochs alone.
            keep: How many checkpoints stay in that folder, the last ones.
            callbacks: Told how it goes; by default a line of progress on a
                terminal.
            trace: A file for when each stage and each server did what, the latest
                18,000 steps or so, as https://ui.perfetto.dev shows it; packed by gzip
                if its name ends in `.gz`. Written also when `fit` fails.

        Raises:
            CheckpointError: A run was loaded that stands within an epoch of
                another reader's batches; or `save_to` cannot be saved to.
            ConfigError: The reader lacks a slot, the model misbehaves, `trace`
                cannot be written, or there is `save_every` without `save_to`.
            DataError: The reader's files are wrong.
            NonFiniteError: A gradient is NaN or infinite; the steps before it
                are applied, it is not.
            ServerError: A server failed.
            StageError: A stage failed otherwise.
            WorkerLost: Another worker is gone.
        """
        if self._server is not None:
            return self._server.fit(self._membership.tracing(trace))
        self._check_idle("fit")
        _check_counts(epochs, max_steps)
        _check_saving(save_to, save_every, keep)
        if self._elastic is not None and save_every is not None:
            raise ConfigError(
                f"in mode elastic a checkpoint is of an epoch's end, got {save_every=}; leave it "
                "out: durable servers lose nothing between two (--durability process)"
            )
        self._check_reader(reader)
        if eval_reader is not None:
            self._check_reader(eval_reader)
        with self._calling("fit") as found:
            saver = None
            if save_to is not None and save_every is not None:
                saver = self._saver(Series(Path(save_to), keep=keep), every=save_every)
                saver.begin()
            elif save_to is not None:
                self.check_save(save_to)  # before hours of training, not after
            if callbacks is None:
                callbacks = [Progress()] if self._team.rank == 0 else []
            self._loop.begin_run(reader)
            if self._elastic is not None:
                return self._elastic.fit(
                    reader,
                    epochs=epochs,
                    max_steps=max_steps,
                    beside=Beside(
                        callbacks,
                        self._membership.tracing(trace),
                        None if save_to is None else partial(self.save, save_to),
                        None if eval_reader is None else partial(self.evaluate, eval_reader),
                    ),
                )
            fit = Fit(
                self.plan,
                loop=self._loop,
                team=self._team,
                tracing=self._membership.tracing(trace),
                callbacks=callbacks,
                save=None if save_to is None else partial(self.save, save_to),
                saver=saver,
                evaluate=None if eval_reader is None else partial(self.evaluate, eval_reader),
            )
            result = fit.run(reader, epochs=epochs, max_steps=max_steps)
            found.update(result.to_dict())
        if self._planning is not None and result.summary.comparison is not None:
            self._planning.learn(self.plan, result.summary.comparison.measured)
        return result

    def _saver(self, series: Series, *, every: int) -> Saver:
        is_together = self._team.size == 1 or self.plan.workers.is_sync
        return Saver(
            series,
            every=every,
            keeper=self._keeper,
            client=self._client,
            loop=self._loop,
            team=self._team,
            dense=self._part if is_together else None,
        )

    def evaluate(self, reader: Reader) -> Evaluation:
        """Returns AUC and log loss over a reader's samples. Creates no row and changes nothing.

        Raises:
            ConfigError: The reader lacks a slot or labels, or has labels other
                than 0 and 1.
            DataError: The reader's files are wrong.
            ServerError: A server failed.
        """
        if self._server is not None:
            return self._server.evaluate()
        self._check_idle("evaluate")
        with self._calling("evaluate") as found:
            evaluation = evaluate(self._predictions(reader))
            found.update(asdict(evaluation))
        return evaluation

    def predict(self, reader: Reader) -> NDArray[np.float32]:
        """Returns the probability of each sample, `[n]`, in the order of the files.

        Raises:
            ConfigError: The reader lacks a slot.
            DataError: The reader's files are wrong.
            ServerError: A server failed.
        """
        if self._server is not None:
            return self._server.predict()
        self._check_idle("predict")
        with self._calling("predict"):
            predictions = self._predictions(reader)
        parts = [p.probabilities for p in predictions]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def _predictions(self, reader: Reader) -> list[Prediction]:
        self._check_reader(reader)
        if self._elastic is not None:
            self._elastic.refresh()
        return predict(self.plan, reader, client=self._client, dense=self._dense, team=self._team)

    def num_rows(self) -> dict[str, int]:
        """Returns the rows of each table, over all servers."""
        found = self._client.num_rows()
        return {name: found[name] for name in self._embeddings}

    def check_save(self, path: str | Path) -> None:
        """Refuses a path that `save` would refuse: before hours of training, not after.

        Raises:
            CheckpointError: Something that is no checkpoint is at the path, or
                it cannot be written to.
        """
        if self._server is None:  # the first sparse worker writes
            self._keeper.check_save(Path(path))

    def save(self, path: str | Path) -> None:
        """Writes all that a resumed run needs to go on bit for bit into a folder.

        That is the tables, the dense state, the reader's position and settings,
        the metrics of the epoch in progress and Paddle's random generators.

        It is whole or not there: an error leaves the checkpoint that was at
        `path` as it was. It loads on any number of servers, or none.

        Raises:
            CheckpointError: Something else is at the path, it cannot be written
                to, or the last step was applied in part.
            ServerError: A server failed.
        """
        self._check_idle("save")
        if self._server is not None:
            return self._server.save()
        if self._elastic is not None:
            self._elastic.refresh()
        self._keeper.save(Path(path))

    def load(self, path: str | Path, *, resume: bool = True) -> None:
        """Sets all that `save` wrote into a folder, Paddle's random generators too.

        Every file is checked before anything changes.

        Args:
            path: Of the folder; or one of a `fit` with `save_every`, of whose
                checkpoints the newest whole one is taken. A warning names those
                that are broken.
            resume: Whether the next `fit` goes on where the saved one stood.
                Without it, it begins its first epoch, with what the saved one
                learned, and the random generators stay as they are.

        Raises:
            CheckpointError: There is no checkpoint, a file is damaged, or it is
                of another model.
            ServerError: A server failed.
        """
        self._check_idle("load")
        if self._elastic is not None:
            raise ConfigError(
                f"a run of mode elastic goes on with what its servers hold, got {path} to load; "
                "keep it by durable servers (--durability process), or load in another mode"
            )
        if self._server is not None:
            return self._server.load(Path(path), resume=resume)
        self._keeper.load(Path(path), resume=resume)

    def close(self) -> None:
        """Gives up the connections, or the tables of this process.

        A worker says goodbye, unless it failed: then the others are told that it is lost.
        """
        self._membership.close()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._membership.fail(error, step=self._loop.step)
        self.close()

    def _check_idle(self, method: str) -> None:
        if self._loop.is_running:
            raise ConfigError(
                f"{method} is called when no step is under way, got it from on_step; call it from "
                "on_epoch or after fit, which takes max_steps= and save_to="
            )

    def _check_reader(self, reader: Reader) -> None:
        for name, layer in self._embeddings.items():
            missing = [slot for slot in layer.slots if slot not in reader.slots]
            if missing:
                raise ConfigError(
                    f"a reader has the slots of every Embedding, got none of "
                    f"{', '.join(missing)} for {name!r}; it has {', '.join(reader.slots)}"
                )


def _check_elastic(*, fresh: bool) -> None:
    if fresh:
        raise ConfigError(
            "in mode elastic a worker joins what others train, got fresh=True (--fresh, --resume), "
            "which would drop it; begin anew with servers that hold nothing"
        )


def _check_counts(epochs: int, max_steps: int | None) -> None:
    if epochs < 0:
        raise ConfigError(f"epochs must be at least 0, got epochs={epochs}")
    if max_steps is not None and max_steps < 0:
        raise ConfigError(f"max_steps must be at least 0, got max_steps={max_steps}")


def _check_saving(save_to: str | Path | None, save_every: int | None, keep: int) -> None:
    if save_every is None:
        return
    if save_to is None:
        raise ConfigError(f"save_every needs save_to, a folder, got {save_every=} alone")
    if save_every < 1 or keep < 1:
        raise ConfigError(f"save_every and keep are at least 1, got {save_every=} and {keep=}")
