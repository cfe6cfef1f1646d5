"""The stages of a dense worker: what to do next, the dense part, and the answers.

Each has a thread::

    sparse workers ─ ─▶ recv ──▶ dense: forward, backward, step ──▶ send ─ ─▶ sparse workers

What is received is copied to the device there, beside the kernels of the batch before.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_pipe.errors import HeteroPipeError, StageError
from hetero_pipe.nn import Averager, DenseStep, Group, Upload
from hetero_pipe.pipeline import BATCH_OF, CutBatch, CutResult, StageHost
from hetero_pipe.plan import WorkersPlan
from ps_server.spans import SpanRing

__all__ = ["AnswerStage", "DenseStage", "Done", "Work", "WorkSource"]


@dataclass(frozen=True, eq=False)
class Work:
    """Batches that the dense part handles at once.

    Attributes:
        step: Of the sparse workers that sent them.
        is_training: Whether they are trained, as one step; else predicted.
        parts: Each with the rank of its sparse worker, in the order of the ranks.
        uploaded: Of each part that has samples, the copies to the device.
    """

    step: int
    is_training: bool
    parts: Sequence[tuple[int, CutBatch]]
    uploaded: Sequence[Upload]


@dataclass(frozen=True, eq=False)
class Done:
    """What work gave: a result for each of its parts."""

    work: Work
    results: Sequence[CutResult]


class WorkSource:
    """What the dense part is to do next, from what sparse workers send.

    In `sync`, the batches of a training step at once; each other one by itself, as
    they come. Every sparse worker has a batch of every step, if an empty one; here
    are those of (rank + step) % num_dense == this one's rank. It sends the next one
    when it has the gradients of this one, so no more than one of each waits here.

    Args:
        host: Where they arrive.
        stage: Says when to give up.
        dense: Whose device they are copied to.
        workers: Of the plan.
        rank: Of this dense worker.

    Attributes:
        ended: The call that all have come to the end of.
    """

    def __init__(
        self,
        host: StageHost,
        stage: "DenseStage",
        *,
        dense: DenseStep,
        workers: WorkersPlan,
        rank: int,
    ) -> None:
        self._host = host
        self._stage = stage
        self._dense = dense
        self._workers = workers
        self._rank = rank
        self._waiting: dict[int, dict[int, CutBatch]] = defaultdict(dict)
        self.ended = ""

    def __iter__(self) -> Iterator[Work]:
        return self

    def __next__(self) -> Work:
        while not isinstance(
            taken := self._host.take(is_given_up=lambda: self._stage.is_given_up), str
        ):
            rank, batch = taken
            if not (batch.is_training and self._workers.mode == "sync"):
                return self._work(batch.is_training, [taken])
            parts = self._waiting[batch.step]
            parts[rank] = batch
            if len(parts) == self._num_parts(batch.step):
                return self._work(True, sorted(self._waiting.pop(batch.step).items()))
        self.ended = taken
        raise StopIteration

    def _work(self, is_training: bool, parts: Sequence[tuple[int, CutBatch]]) -> Work:
        batches = [batch for _, batch in parts if batch.samples.size]
        uploaded = [self._dense.upload(batch.samples, batch.cuts) for batch in batches]
        return Work(parts[0][1].step, is_training, parts, uploaded)

    def _num_parts(self, step: int) -> int:
        """Returns how many batches of a step come here."""
        workers = self._workers
        senders = range(workers.num_readers)
        return sum((rank + step) % len(workers.dense) == self._rank for rank in senders)


class DenseStage:
    """Runs the dense part.

    Args:
        dense: The dense part.
        host: Whose batches it has.
        group: Of the dense workers that take each step together.
        averager: Of dense workers that step by themselves.
        ring: Records whose batches are at work; None records nothing.

    Attributes:
        step: Under way, for messages.
        is_given_up: Whether to take no more.
    """

    name = "dense"

    def __init__(
        self,
        dense: DenseStep,
        host: StageHost,
        *,
        group: Group | None,
        averager: Averager | None,
        ring: SpanRing | None,
    ) -> None:
        self._dense = dense
        self._host = host
        self._group = group
        self._averager = averager
        self._ring = ring
        self.step = 0
        self.is_given_up = False

    def run(self, number: int, work: Work) -> Done:
        """Trains or predicts the batches of `work`."""
        self.step, start = work.step, time.perf_counter()
        try:
            results = self._train(work) if work.is_training else [self._predict(work)]
        except HeteroPipeError as error:
            error.place = error.place or f"stage dense at step {work.step}"
            raise
        except Exception as error:  # the executor would count batches, not a worker's steps
            raise StageError(f"stage dense failed at step {work.step}: {error!r}") from error
        self._record(work, start)
        return Done(work, results)

    def _record(self, work: Work, start: float) -> None:
        """Records whose batches they were, with the steps of those who sent them."""
        if self._ring is None:
            return
        end, step = time.perf_counter(), work.step if work.is_training else -1
        for rank, _ in work.parts:
            self._ring.record(self.name, f"{BATCH_OF}sparse worker {rank}", step, start, end)

    def _train(self, work: Work) -> list[CutResult]:
        batches = [batch for _, batch in work.parts if batch.samples.size]
        parts = [(batch.samples, batch.cuts) for batch in batches]
        outputs = self._dense.train_parts(
            work.step,
            parts,
            uploaded=work.uploaded,
            group=self._group,
            is_stopping=any(batch.is_stopping for _, batch in work.parts),
        )
        if self._averager is not None:
            self._averager.after_step()
        nothing = CutResult(work.step, 0.0, np.empty(0, np.float32), {}, is_over=outputs is None)
        left = iter(outputs or ())
        results = []
        for _, batch in work.parts:
            if outputs is None or not batch.samples.size:
                results.append(nothing)
                continue
            output = next(left)
            gradients = output.gradients
            results.append(CutResult(work.step, output.loss, output.probabilities, gradients))
        return results

    def _predict(self, work: Work) -> CutResult:
        ((_, batch),) = work.parts
        uploaded = work.uploaded[0] if work.uploaded else None
        probabilities = self._dense.predict(batch.samples, batch.cuts, uploaded=uploaded)
        return CutResult(batch.step, 0.0, probabilities, {})

    def close(self) -> None:
        """Gives up the wait for a batch, before this stage, and that for other dense workers."""
        self.is_given_up = True
        self._host.wake()
        if self._group is not None:
            self._group.close()


class AnswerStage:
    """Sends each sparse worker what its batch gave."""

    name = "send"

    def __init__(self, host: StageHost) -> None:
        self._host = host

    def run(self, number: int, done: Done) -> Done:
        """Sends the results of `done`."""
        for (rank, _), result in zip(done.work.parts, done.results, strict=True):
            self._host.answer(rank, result)
        return done

    def close(self) -> None:
        """Never waits."""
