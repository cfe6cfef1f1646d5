"""A step that workers push in parts: what one of them pushes, and the mean of all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Gradients", "Part", "mean_of_parts"]

Gradients = Mapping[str, tuple[NDArray[np.uint64], NDArray[np.float32]]]
"""Keys `[n]` and gradients, `[n, dim]` or flat, by table."""


@dataclass(frozen=True, eq=False)
class Part:
    """What one worker pushes of a step, and the tables that it means."""

    gradients: Gradients
    ids: Mapping[str, int]


def mean_of_parts(parts: Sequence[tuple[float, Part]]) -> Gradients:
    """Returns the mean of the parts of a step, by weight, as one push.

    A table sums the gradients of equal keys in their order, which is that of the
    parts. So if that is the same in every run, the result is too.

    Args:
        parts: Weight and part of each worker; those of weight 0 do not count.

    Returns:
        All keys and gradients, flat, of each table, part after part.
    """
    total = sum(weight for weight, _ in parts)
    return _joined(
        [_scaled(part.gradients, weight / total) for weight, part in parts if weight > 0]
    )


def _scaled(gradients: Gradients, share: float) -> Gradients:
    if share == 1:  # of the only worker that still has data: nothing to copy
        return gradients
    return {
        name: (keys, gradient.reshape(-1) * np.float32(share))
        for name, (keys, gradient) in gradients.items()
    }


def _joined(parts: Sequence[Gradients]) -> Gradients:
    """Returns all keys and gradients, flat, of each table, part after part."""
    names = dict.fromkeys(name for part in parts for name in part)
    joined = {}
    for name in names:
        keys, gradients = zip(*(part[name] for part in parts if name in part), strict=True)
        joined[name] = np.concatenate(keys), np.concatenate([g.reshape(-1) for g in gradients])
    return joined
