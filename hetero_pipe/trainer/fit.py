"""Fit: the epochs of one `fit`, and what is done between two of them."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from hetero_pipe.data import Reader
from hetero_pipe.errors import DataError, NonFiniteError
from hetero_pipe.plan import Plan
from hetero_pipe.trainer.callbacks import Callback
from hetero_pipe.trainer.loop import TrainLoop
from hetero_pipe.trainer.record import Record
from hetero_pipe.trainer.result import Evaluation, FitResult, summarize
from hetero_pipe.trainer.saver import Saver
from hetero_pipe.trainer.team import Team
from hetero_pipe.trainer.tracing import FitTrace

__all__ = ["Fit"]


class Fit:
    """Trains epochs on a worker that reads; saves and evaluates after each, as it is told.

    Args:
        plan: What runs where.
        loop: What trains an epoch.
        team: This worker and the others that read.
        tracing: Of this `fit`.
        callbacks: Told how it goes.
        save: Writes a checkpoint; None is not to.
        saver: Saves while training goes on, and in place of `save`; None is not to.
        evaluate: Returns how good the model is now; None is not to.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        loop: TrainLoop,
        team: Team,
        tracing: FitTrace,
        callbacks: Sequence[Callback],
        save: Callable[[], None] | None,
        saver: Saver | None,
        evaluate: Callable[[], Evaluation] | None,
    ) -> None:
        self._plan = plan
        self._loop = loop
        self._team = team
        self._tracing = tracing
        self._callbacks = callbacks
        self._save = save if saver is None else saver.save
        self._saver = saver
        self._evaluate = evaluate
        self._is_saved = False  # all that was trained
        self._total = Record()
        self._evaluations: list[Evaluation] = []

    def run(self, reader: Reader, *, epochs: int, max_steps: int | None) -> FitResult:
        """Trains from where the loop stands. Called once. Raises as `Trainer.fit` does.

        Args:
            reader: Of all workers' batches.
            epochs: In all, with those before.
            max_steps: Stop after so many of this call; None is no limit.
        """
        with self._saver or nullcontext():
            return self._run(reader, epochs=epochs, max_steps=max_steps)

    def _run(self, reader: Reader, *, epochs: int, max_steps: int | None) -> FitResult:
        self._tracing.start()
        try:
            self._train(reader, epochs=epochs, max_steps=max_steps)
        except (KeyboardInterrupt, DataError, NonFiniteError) as error:  # what was trained is kept
            if self._save is not None and not self._is_saved and self._can_all_save(error):
                self._save()
            raise
        else:
            self._tracing.is_whole = True
        finally:
            self._tracing.stop()
        if self._saver is not None:
            self._saver.finish()
        return self._result()

    def _train(self, reader: Reader, *, epochs: int, max_steps: int | None) -> None:
        num_steps = 0
        while (epoch := self._loop.position.epoch) < epochs:
            steps_left = None if max_steps is None else max_steps - num_steps
            if steps_left == 0:
                break
            to_pause = None if self._saver is None else self._saver.steps_to_pause()
            limits = [limit for limit in (steps_left, to_pause) if limit is not None]
            record, self._is_saved = Record(), False
            is_whole = self._loop.run_epoch(
                self._team.share(reader),
                max_steps=min(limits, default=None),
                record=record,
                callbacks=self._callbacks,
                saver=None if self._saver is None else self._saver.beside_epoch(),
                ring=self._tracing.ring,
            )
            self._total.add(record)
            taken = max(self._team.gather(record.num_steps))
            num_steps += taken
            if self._save is not None:
                with self._tracing.during("save"):
                    self._save()
                self._is_saved = True
            if not is_whole and taken == to_pause:  # all have met to save
                continue
            if not is_whole:
                break
            evaluation = None
            if self._evaluate is not None:
                with self._tracing.during("evaluate"):
                    evaluation = self._evaluate()
                self._evaluations.append(evaluation)
            for callback in self._callbacks:
                callback.on_epoch(epoch, evaluation)

    def _can_all_save(self, error: BaseException) -> bool:
        """Returns whether every worker ends `fit` by this error, between two steps."""
        is_alone = self._team.groups.world.size == 1
        return (is_alone or error is self._team.agreed) and not self._loop.is_torn

    def _result(self) -> FitResult:
        metrics = self._team.metrics(self._loop.metrics)
        own, whole = self._total, self._team.record(self._total)
        return FitResult(
            num_steps=whole.num_steps,
            num_samples=whole.num_samples,
            seconds=whole.seconds,
            loss=metrics.loss(),
            auc=metrics.auc(),
            max_staleness=whole.max_staleness,
            mean_staleness=own.num_missed / max(own.num_steps, 1),
            timeline=own.timeline,
            summary=summarize(
                self._plan,
                own.timeline,
                num_samples=own.num_samples,
                seconds=own.seconds,
                servers=self._tracing.servers,
            ),
            evaluations=tuple(self._evaluations),
        )
