"""Cut: what crosses from a sparse to a dense worker of one batch, and the gradients that return."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cut"]


@dataclass(frozen=True, eq=False)
class Cut:
    """What an Embedding gave for one batch: a tensor at which the model is cut in two.

    Attributes:
        values: float32; pooled rows `[batch, slots, dim]`, or rows one by one
            `[n, dim]`. Starts at a multiple of 64 bytes. Of a gradient, the
            loss by these.
        offsets: int64 `[batch + 1]` of rows one by one: bag i is
            `values[offsets[i]:offsets[i + 1]]`. None of pooled ones, and of
            gradients.
    """

    values: NDArray[np.float32]
    offsets: NDArray[np.int64] | None = None
