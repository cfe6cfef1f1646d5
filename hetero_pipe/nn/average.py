"""Averager: keeps the replicas of a dense part together while each trains by itself.

A thread averages a snapshot; meanwhile its worker trains on. What it has learned since
the snapshot is kept, for the average is added as a change::

    train   step step step step step step step step
            │ snapshot                 ▲ p += average - snapshot
            ▼                          │
    thread  meet the others ── sum ── average
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.nn.group import Group
from hetero_pipe.nn.state import statistics_of
from hetero_pipe.pipeline import Closed

__all__ = ["Averager", "average_statistics", "broadcast_model"]

Values = list[NDArray[np.float32]]


def _floats(tensors: Sequence[paddle.Tensor]) -> list[paddle.Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _values(tensors: Sequence[paddle.Tensor]) -> Values:
    return [np.array(t.detach().astype("float32").numpy()) for t in tensors]


def _set(tensor: paddle.Tensor, value: NDArray[np.float32]) -> None:
    tensor.set_value(paddle.to_tensor(value).astype(tensor.dtype))


def broadcast_model(group: Group, model: paddle.nn.Layer) -> None:
    """Sets parameters and buffers of a model to those of the group's first worker.

    Raises:
        WorkerLost: One is gone.
    """
    if group.size == 1:
        return
    tensors = model.state_dict()
    held = group.broadcast({path: np.array(t.numpy()) for path, t in tensors.items()})
    for path, array in held.items():
        tensors[path].set_value(array)


def average_statistics(group: Group, model: paddle.nn.Layer) -> None:
    """Averages what forwards have changed, so that replicas are equal that were but for it.

    In `sync`, replicas take one step together; the running statistics of a BatchNorm
    are each one's own.

    Raises:
        WorkerLost: One is gone.
    """
    tensors = _floats(statistics_of(model))
    if group.size == 1 or not tensors:
        return
    group.barrier()
    for tensor, total in zip(tensors, group.sum(_values(tensors)), strict=True):
        _set(tensor, total / np.float32(group.size))


class Averager:
    """Averages parameters and buffers over replicas, every so many steps of the slowest.

    A context manager: leaving it ends its thread. `after_step` is called between two
    steps, `finish` once they have ended.

    Args:
        group: Of the replicas; its own, which is closed in the end.
        model: Here.
        every: Steps between two snapshots, at least 1.
    """

    def __init__(self, group: Group, model: paddle.nn.Layer, *, every: int) -> None:
        self._group = group
        self._tensors = _floats([*model.parameters(), *model.buffers()])
        self._every = every
        self._num_steps = 0  # since the last snapshot
        self._changed = threading.Condition()
        self._snapshot: Values | None = None  # until its average is applied
        self._average: Values | None = None  # of that snapshot
        self._failure: BaseException | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="average")
        self.num_rounds = 0

    def after_step(self) -> None:
        """Applies an average that is there, and takes the next snapshot if it is time.

        Never waits for another worker.

        Raises:
            WorkerLost: One is gone.
        """
        if self._group.size == 1:
            return
        self._num_steps += 1
        with self._changed, self._group.launching():
            self._raise_failure()
            self._apply()
            if self._snapshot is None and self._num_steps >= self._every:
                self._num_steps = 0
                self._snapshot = _values(self._tensors)
                self._changed.notify_all()

    def finish(self) -> None:
        """Takes part until all replicas have ended; they are then equal, bit for bit.

        Raises:
            Closed: `close` was called.
            WorkerLost: One is gone.
        """
        if self._group.size == 1:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot is None or self._has_answer())
            self._raise_failure()
            with self._group.launching():
                self._apply()
        while True:
            with self._group.launching():
                values = _values(self._tensors)
            average, have_all_ended = self._round(values, has_ended=True)
            # Nobody trains here now: what this worker has learned is in the average.
            with self._group.launching():
                for tensor, value in zip(self._tensors, average, strict=True):
                    _set(tensor, value)
            if have_all_ended:
                return

    def close(self) -> None:
        """Ends the thread and every wait."""
        self._group.close()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def __enter__(self) -> "Averager":
        if self._group.size > 1:
            self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:  # as the protocol has it
        self.close()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        with suppress(Closed):
            try:
                while True:
                    with self._changed:
                        self._changed.wait_for(lambda: self._is_closed or self._is_due())
                        if self._is_closed:
                            return
                        snapshot = self._snapshot
                    assert snapshot is not None
                    average, _ = self._round(snapshot, has_ended=False)
                    with self._changed:
                        self._average = average
                        self._changed.notify_all()
            except Closed:
                raise
            except BaseException as error:  # a thread's failure is the trainer's to handle
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()

    def _round(self, values: Values, *, has_ended: bool) -> tuple[Values, bool]:
        """Returns the average of all replicas and whether all have ended."""
        reports = self._group.gather(has_ended)
        size = np.float32(self._group.size)
        average = [total / size for total in self._group.sum(values)]
        self.num_rounds += 1
        return average, all(reports)

    def _apply(self) -> None:
        if self._average is None:
            return
        assert self._snapshot is not None
        triples = zip(self._tensors, self._average, self._snapshot, strict=True)
        for tensor, average, snapshot in triples:
            _set(tensor, _values([tensor])[0] + (average - snapshot))
        self._average = self._snapshot = None

    def _is_due(self) -> bool:
        return self._snapshot is not None and self._average is None

    def _has_answer(self) -> bool:
        return self._average is not None or self._failure is not None or self._is_closed

    def _raise_failure(self) -> None:
        if self._is_closed:
            raise Closed
        if self._failure is not None:
            raise self._failure
