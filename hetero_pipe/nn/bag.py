"""BagRows: the rows of a slot one by one, and what is computed over the bags they stand in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812  # as everybody writes it
from numpy.typing import NDArray

from hetero_pipe.nn.device import Device, Upload

__all__ = ["BagRows"]

_Pool: TypeAlias = Callable[[paddle.Tensor, paddle.Tensor], paddle.Tensor]


@dataclass(frozen=True, eq=False)
class BagRows:
    """The rows of one slot, a row a key, bag after bag.

    Bag i, that of sample i, is `rows[offsets[i]:offsets[i + 1]]`. It may be
    empty, and all may be: then n, `len` of this, is 0. The methods take that,
    but not all of Paddle does: a model for Paddle 2.6 asks before it goes on.

    Attributes:
        rows: float32 `[n, dim]`. A key that occurs twice is there twice.
        samples: int64 `[n]`, the sample of each row; never falling.
        offsets: int64 `[batch + 1]`, from 0 to n.
        size: Samples of the batch.
        end: The sample after the last one that has a row; 0 if none has.
    """

    rows: paddle.Tensor
    samples: paddle.Tensor
    offsets: paddle.Tensor
    size: int
    end: int

    @staticmethod
    def of(rows: paddle.Tensor, offsets: NDArray[np.int64], device: Device | Upload) -> "BagRows":
        """Returns rows `[n, dim]` in the bags of offsets `[batch + 1]`."""
        size = len(offsets) - 1
        samples = np.repeat(np.arange(size), np.diff(offsets))
        return BagRows(
            rows,
            samples=device.to_tensor(samples),
            offsets=device.to_tensor(offsets),
            size=size,
            end=int(samples[-1]) + 1 if len(samples) else 0,
        )

    def __len__(self) -> int:
        """Returns n."""
        return int(self.rows.shape[0])

    def spread(self, values: paddle.Tensor) -> paddle.Tensor:
        """Returns for each row what its sample has: `[batch, k]` to `[n, k]`."""
        if self.end == 0:
            return paddle.zeros([0, values.shape[1]], values.dtype)
        return F.embedding(self.samples, values)  # of gathers, the fastest backward

    def sum(self, values: paddle.Tensor) -> paddle.Tensor:
        """Returns the sum over each bag, `[n, k]` to `[batch, k]`; zeros for an empty bag."""
        num_empty = self.size - self.end
        zeros = paddle.zeros([num_empty, values.shape[1]], values.dtype)
        if self.end == 0:
            return zeros
        sums = self._pool(paddle.geometric.segment_sum, values)
        return paddle.concat([sums, zeros]) if num_empty else sums

    def softmax(self, scores: paddle.Tensor) -> paddle.Tensor:
        """Returns `exp(score)` over its sum in the bag, `[n, k]`, each column by itself."""
        if self.end == 0:
            return scores
        # Less the bag's largest score, which changes no quotient, lest exp overflow.
        largest = self._pool(paddle.geometric.segment_max, scores.detach())
        powers = (scores - F.embedding(self.samples, largest)).exp()
        sums = self._pool(paddle.geometric.segment_sum, powers)
        return powers / F.embedding(self.samples, sums)

    def _pool(self, over_segments: _Pool, values: paddle.Tensor) -> paddle.Tensor:
        """Returns `[end, k]` of values `[n, k]`; where a model is traced, another does."""
        return over_segments(values, self.samples)
