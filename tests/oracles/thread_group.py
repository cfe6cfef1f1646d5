"""A group of threads of one process, by a dict: the slow and obvious `nn.Group`."""

import threading
from collections import defaultdict
from contextlib import nullcontext

import numpy as np

from hetero_pipe.pipeline import Closed

LATER = 30.0


class ThreadGroup:
    """A seat of a group; `members` makes all of them."""

    def __init__(self, rank, size, said, changed):
        self.rank, self.size = rank, size
        self._said, self._changed = said, changed  # by turn: by rank: what was said
        self._turn = 0
        self._is_closed = False

    @classmethod
    def members(cls, size):
        said, changed = defaultdict(dict), threading.Condition()
        return [cls(rank, size, said, changed) for rank in range(size)]

    def gather(self, value):
        with self._changed:
            said = self._said[self._turn]
            self._turn += 1
            said[self.rank] = value
            self._changed.notify_all()
            assert self._changed.wait_for(
                lambda: len(said) == self.size or self._is_closed, LATER
            ), "the others never came"
            if len(said) < self.size:
                raise Closed
            return [said[rank] for rank in range(self.size)]

    def barrier(self):
        self.gather(None)

    def sum(self, arrays):
        parts = self.gather([array.copy() for array in arrays])
        return [np.sum(each, axis=0, dtype=np.float32) for each in zip(*parts, strict=True)]

    def launching(self):
        return nullcontext()

    def close(self):
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
