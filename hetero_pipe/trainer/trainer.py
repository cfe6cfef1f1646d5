"""Trainer: fit, evaluate, predict, save and load."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.data import Reader
from hetero_pipe.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from hetero_pipe.metrics import auc, log_loss
from hetero_pipe.nn import (
    DenseStep,
    Device,
    Groups,
    Loss,
    broadcast_model,
    find_embeddings,
    join_groups,
    say_settings,
)
from hetero_pipe.plan import Plan, Worker
from hetero_pipe.trainer.build import build_client, build_prediction, check_plan, default_plan
from hetero_pipe.trainer.callbacks import Callback, Progress
from hetero_pipe.trainer.checkpoint import Position
from hetero_pipe.trainer.dense_worker import DenseWorker
from hetero_pipe.trainer.device_tables import DeviceTables
from hetero_pipe.trainer.epoch import EpochMetrics
from hetero_pipe.trainer.job import describe_job
from hetero_pipe.trainer.keeper import DensePart, Keeper
from hetero_pipe.trainer.loop import TrainLoop
from hetero_pipe.trainer.record import Record
from hetero_pipe.trainer.result import Evaluation, FitResult, summarize
from hetero_pipe.trainer.run import RunSettings, check_resume, settings_of
from hetero_pipe.trainer.sparse import SparseWorker
from hetero_pipe.trainer.stages import Prediction
from hetero_pipe.trainer.team import Team
from hetero_pipe.trainer.tracing import FitTrace
from ps_server.spec import TableSpec

__all__ = ["Trainer"]

logger = logging.getLogger(__name__)


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
        servers: HOST:PORT of the parameter servers; None keeps the tables in
            this process.
        staleness: How many of the latest pushes a pull may miss. 0 is the
            serial loop, bit for bit; with 1 or more, pull and push overlap with
            the dense work.
        connect_timeout: Seconds to wait for servers that are not there yet.
        fresh: Drop this model's tables on the servers first, if they are there.
            Otherwise training goes on with their rows.
        plan: What runs where; by default `default_plan(model, ...)`. A plan
            brings its own servers and staleness.
        worker: Which of the plan's workers this process is; None is the one of
            a plan of one. Each worker runs the same calls, and they act as one:
            a reader's batches are shared out, what is returned is of all of
            them, and the first writes a checkpoint, which all can read.

    Raises:
        ConfigError: An argument is wrong, or the model has no Embedding.
        PlanError: The plan is of another model, or has no such worker.
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
        fresh: bool = False,
        plan: Plan | None = None,
        worker: Worker | None = None,
    ) -> None:
        self._embeddings = find_embeddings(model)
        if not self._embeddings:
            raise ConfigError(
                f"a model needs an hp.Embedding, got none in {type(model).__name__}; "
                "a model without tables is trained by Paddle alone"
            )
        self.plan = plan or default_plan(model, servers=servers, staleness=staleness)
        check_plan(self.plan, self._embeddings)
        self._worker = worker or Worker()
        self._worker.check(self.plan.workers)
        self._model = model
        self._optimizer = optimizer
        device = Device(self.plan.stage("dense").device)
        self._part = DensePart(model, optimizer, self._embeddings, rank=self._worker.rank)
        self._dense = DenseStep(model, loss=loss, optimizer=optimizer, device=device)
        say_settings()
        has_joined = worker is not None and self.plan.servers is not None
        self._server: DenseWorker | None = None
        self._feeder: SparseWorker | None = None
        with ExitStack() as undo:
            self._client = build_client(self.plan, device=device, connect_timeout=connect_timeout)
            undo.callback(self._client.close)
            groups = join_groups(
                self.plan.workers, self._worker, device=device, seconds=connect_timeout
            )
            undo.callback(groups.close)
            if self.plan.workers.has_own_tables:
                cast(DeviceTables, self._client).replicate(groups.readers.branch("rows"))
            # A dense worker serves the readers, whose team it is not in.
            self._team = (
                Team(Groups.solo())
                if self._worker.stage == "dense"
                else Team(groups, has_joined=has_joined)
            )
            with Team(groups).telling():
                step = self._meet(groups, fresh=fresh, connect_timeout=connect_timeout)
            undo.pop_all()
        self._loop = TrainLoop(
            self.plan,
            client=self._client,
            dense=self._feeder or self._dense,
            step=step,
            model=model,
            team=self._team,
        )
        self._keeper = Keeper(
            client=self._client,
            embeddings=self._embeddings,
            loop=self._loop,
            team=self._team,
            dense=None if self._feeder else self._part,
            feeder=self._feeder,
            has_own_tables=self.plan.workers.has_own_tables,
        )
        self._is_resuming = False
        self._run: RunSettings | None = None  # of the last `fit`, or as loaded

    def _meet(self, groups: Groups, *, fresh: bool, connect_timeout: float) -> int:
        """Meets the other workers and returns the steps that the tables have seen."""
        stage = self._worker.stage
        is_dense = stage == "dense"
        step = 0 if is_dense else self._attach(fresh=fresh)
        if self.plan.workers.dense:
            groups.world.barrier()  # the tables are there
        if is_dense:
            step = self._client.attach(self._specs())
        if stage != "sparse":
            broadcast_model(groups.dense, self._model)
        if stage == "whole":
            return step
        job = describe_job(self.plan, self._model, self._embeddings)
        if is_dense:
            server = DenseWorker(
                self.plan,
                self._worker,
                dense=self._dense,
                part=self._part,
                model=self._model,
                groups=groups,
                job=job,
                connect_timeout=connect_timeout,
            )
            self._server = server.__enter__()
        else:
            # Dense workers listen, or one has said why it cannot.
            groups.world.barrier()
            feeder = SparseWorker(
                self.plan.workers,
                self._worker,
                embeddings=self._embeddings,
                job=job,
                connect_timeout=connect_timeout,
            )
            self._feeder = feeder.__enter__()
        return step

    def _attach(self, *, fresh: bool) -> int:
        """Meets the others on the servers and returns the steps that the tables have seen."""
        if self._team.has_joined:
            self._client.join(rank=self._team.rank, num_workers=self._team.size)
        is_first = self._team.rank == 0
        if is_first:  # or another one's new tables would be dropped
            step = self._client.attach(self._specs(), fresh=fresh)
        self._team.gather(None)
        if not is_first:
            step = self._client.attach(self._specs())
        return int(max(self._team.gather(step)))

    @contextmanager
    def _calling(self, call: str) -> Iterator[dict[str, Any]]:
        """Tells the others that a call has ended, or why it failed.

        Yields:
            To be filled with what dense workers return of the call.
        """
        told: dict[str, Any] = {}
        try:
            with self._team.telling():
                yield told
                if self._feeder is not None:
                    self._feeder.end(call)
                    self._team.groups.world.gather(told)
        except BaseException as error:
            if self._feeder is not None:
                self._feeder.fail(error, step=self._loop.step)
            raise

    def fit(
        self,
        reader: Reader,
        *,
        epochs: int = 1,
        eval_reader: Reader | None = None,
        max_steps: int | None = None,
        save_to: str | Path | None = None,
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
            callbacks: Told how it goes; by default a line of progress on a
                terminal.
            trace: A file for when each stage and each server did what, the latest
                18,000 steps or so, as https://ui.perfetto.dev shows it; packed by gzip
                if its name ends in `.gz`. Written also when `fit` fails.

        Raises:
            CheckpointError: A run was loaded that stands within an epoch of
                another reader's batches; or `save_to` cannot be saved to.
            ConfigError: The reader lacks a slot, the model misbehaves, or `trace`
                cannot be written.
            DataError: The reader's files are wrong.
            NonFiniteError: A gradient is NaN or infinite; the steps before it
                are applied, it is not.
            ServerError: A server failed.
            StageError: A stage failed otherwise.
            WorkerLost: Another worker is gone.
        """
        if self._server is not None:
            return self._server.fit(self._tracing(trace))
        self._check_idle("fit")
        _check_counts(epochs, max_steps)
        self._check_reader(reader)
        if eval_reader is not None:
            self._check_reader(eval_reader)
        with self._calling("fit") as told:
            result = self._fit(
                reader,
                epochs=epochs,
                eval_reader=eval_reader,
                max_steps=max_steps,
                save_to=save_to,
                callbacks=callbacks,
                trace=trace,
            )
            told.update(result.to_dict())
        return result

    def _fit(
        self,
        reader: Reader,
        *,
        epochs: int,
        eval_reader: Reader | None,
        max_steps: int | None,
        save_to: str | Path | None,
        callbacks: Sequence[Callback] | None,
        trace: str | Path | None,
    ) -> FitResult:
        if save_to is not None:
            self.check_save(save_to)  # before hours of training, not after
        told = ([Progress()] if self._team.rank == 0 else []) if callbacks is None else callbacks
        self._begin_run(reader)
        total, num_steps = Record(), 0
        evaluations: list[Evaluation] = []
        is_saved = False
        tracing = self._tracing(trace)
        tracing.start()
        try:
            for epoch in range(self._loop.position.epoch, epochs):
                steps_left = None if max_steps is None else max_steps - num_steps
                if steps_left == 0:
                    break
                epoch_record, is_saved = Record(), False
                is_whole = self._loop.run_epoch(
                    self._team.share(reader),
                    max_steps=steps_left,
                    record=epoch_record,
                    callbacks=told,
                    ring=tracing.ring,
                )
                total.add(epoch_record)
                num_steps += max(self._team.gather(epoch_record.num_steps))
                if save_to is not None:
                    with tracing.during("save"):
                        self.save(save_to)
                    is_saved = True
                if not is_whole:
                    break
                evaluation = None
                if eval_reader is not None:
                    with tracing.during("evaluate"):
                        evaluation = self.evaluate(eval_reader)
                    evaluations.append(evaluation)
                for callback in told:
                    callback.on_epoch(epoch, evaluation)
        except (KeyboardInterrupt, DataError, NonFiniteError) as error:  # what was trained is kept
            if save_to is not None and not is_saved and self._can_all_save(error):
                self.save(save_to)
            raise
        else:
            tracing.is_whole = True
        finally:
            tracing.stop()
        metrics = self._team.metrics(self._loop.metrics)
        whole = self._team.record(total)
        return FitResult(
            num_steps=whole.num_steps,
            num_samples=whole.num_samples,
            seconds=whole.seconds,
            loss=metrics.loss(),
            auc=metrics.auc(),
            max_staleness=whole.max_staleness,
            mean_staleness=total.num_missed / max(total.num_steps, 1),
            timeline=total.timeline,
            summary=summarize(
                self.plan,
                total.timeline,
                num_samples=total.num_samples,
                seconds=total.seconds,
                servers=tracing.servers,
            ),
            evaluations=tuple(evaluations),
        )

    def _tracing(self, path: str | Path | None) -> FitTrace:
        """Returns what records a `fit`; the first worker that reads writes the file."""
        stage, rank = self._worker.stage, self._worker.rank
        if stage != "whole":
            role = f"{stage} worker {rank}"
        else:
            role = "trainer" if self._team.size == 1 else f"worker {rank}"
        return FitTrace(
            path,
            client=self._client,
            role=role,
            gather=self._server.gather if self._server else self._gather_spans,
            is_first=stage != "dense" and rank == 0,
        )

    def _gather_spans(self, mine: Any) -> list[Any]:
        if self._feeder is not None:
            self._feeder.end("trace")  # dense workers give theirs then
        return self._team.groups.world.gather(mine)

    def _can_all_save(self, error: BaseException) -> bool:
        """Returns whether every worker ends `fit` by this error, between two steps."""
        is_alone = self._team.groups.world.size == 1
        return (is_alone or error is self._team.agreed) and not self._loop.is_torn

    def _begin_run(self, reader: Reader) -> None:
        """Stands where a loaded run does, if `reader` has its batches, or else at the start."""
        num_readers = self.plan.workers.num_readers
        run = settings_of(reader, staleness=self.plan.staleness, num_readers=num_readers)
        if self._is_resuming:
            check_resume(self._run, run, batch=self._loop.position.batch)
        else:
            self._loop.position = Position()
            self._loop.metrics = EpochMetrics()
        self._is_resuming = False
        self._run = run

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
        with self._calling("evaluate") as told:
            evaluation = self._evaluate(reader)
            told.update(asdict(evaluation))
        return evaluation

    def _evaluate(self, reader: Reader) -> Evaluation:
        predictions = self._team.predictions(self._predictions(reader))
        all_labels = [p.labels for p in predictions if p.labels is not None]
        if not all_labels:
            raise ConfigError("evaluation needs samples with labels, got none from the reader")
        labels = np.concatenate(all_labels)
        probabilities = np.concatenate([p.probabilities for p in predictions])
        area = auc(labels, probabilities)
        if area is None:
            logger.warning(
                "the AUC is undefined: all %d labels are %g", len(labels), float(labels[0])
            )
        return Evaluation(area, log_loss(labels, probabilities), len(labels))

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
            predictions = self._team.predictions(self._predictions(reader))
        parts = [p.probabilities for p in predictions]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def _predictions(self, reader: Reader) -> Iterator[Prediction]:
        self._check_reader(reader)
        batches = self._team.share(reader.in_order()).batches(0)
        dense = self._feeder or self._dense
        with build_prediction(self.plan, batches, client=self._client, dense=dense) as executor:
            for _, prediction in executor.results():
                yield prediction

    def num_rows(self) -> dict[str, int]:
        """Returns the rows of each table, over all servers."""
        return self._client.num_rows()

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
        if self._loop.is_torn:
            raise CheckpointError(
                f"a checkpoint is of whole steps, got step {self._loop.step} applied in part when "
                "training failed; load an earlier checkpoint"
            )
        self._keeper.save(Path(path), self._run)

    def load(self, path: str | Path, *, resume: bool = True) -> None:
        """Sets all that `save` wrote into a folder, Paddle's random generators too.

        Every file is checked before anything changes.

        Args:
            path: Of the folder.
            resume: Whether the next `fit` goes on where the saved one stood.
                Without it, it begins its first epoch, with what the saved one
                learned, and the random generators stay as they are.

        Raises:
            CheckpointError: There is no checkpoint, a file is damaged, or it is
                of another model.
            ServerError: A server failed.
        """
        self._check_idle("load")
        if self._server is not None:
            return self._server.load(Path(path), resume=resume)
        checkpoint = self._keeper.load(Path(path), resume=resume)
        self._is_resuming = resume
        self._run = checkpoint.run if resume else None

    def close(self) -> None:
        """Gives up the connections, or the tables of this process.

        A worker says goodbye, unless it failed: then the others are told that it is lost.
        """
        try:
            if self._team.has_joined and not self._team.has_failed:
                self._team.has_joined = False
                self._client.goodbye()
        finally:
            for peers in (self._feeder, self._server):
                if peers is not None:
                    peers.__exit__(None, None, None)
            self._client.close()
            self._team.close()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            peers = self._feeder or self._server
            if peers is not None:
                peers.fail(error, step=self._loop.step)
            self._team.fail(error)
        self.close()

    def _check_idle(self, method: str) -> None:
        if self._loop.is_running:
            raise ConfigError(
                f"{method} is called when no step is under way, got it from on_step; call it from "
                "on_epoch or after fit, which takes max_steps= and save_to="
            )

    def _specs(self) -> list[TableSpec]:
        return [layer.spec(name) for name, layer in self._embeddings.items()]

    def _check_reader(self, reader: Reader) -> None:
        for name, layer in self._embeddings.items():
            missing = [slot for slot in layer.slots if slot not in reader.slots]
            if missing:
                raise ConfigError(
                    f"a reader has the slots of every Embedding, got none of "
                    f"{', '.join(missing)} for {name!r}; it has {', '.join(reader.slots)}"
                )


def _check_counts(epochs: int, max_steps: int | None) -> None:
    if epochs < 0:
        raise ConfigError(f"epochs must be at least 0, got epochs={epochs}")
    if max_steps is not None and max_steps < 0:
        raise ConfigError(f"max_steps must be at least 0, got max_steps={max_steps}")
