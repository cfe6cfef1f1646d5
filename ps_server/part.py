"""A step that workers push in parts: what one of them pushes, and the mean of all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ps_server.change import Gradients, Origin

__all__ = ["Part", "mean_of_parts"]


@dataclass(frozen=True, eq=False)
class Part:
    """What one worker pushes of a step, or all of it.

    Attributes:
        share: Fingerprint of what its worker takes this server to own.
        gradients: By table.
        ids: Of the tables that are meant; one that is not named may be any.
        rank: Of the worker, if it has joined: its clock moves.
        origin: Which push it is, if the worker says so.
    """

    share: int
    gradients: Gradients
    ids: Mapping[str, int]
    rank: int | None = None
    origin: Origin | None = None


def mean_of_parts(parts: Sequence[tuple[float, Part]]) -> Gradients:
    """Returns the mean of the parts of a step, by weight, as one push.

    A table sums the gradients of equal keys in their order, which is that of the
    parts. So if that is the same in every run, the result is too.

    Args:
        parts: Weight and part of each worker; those of weight 0 do not count.

    Returns:
        All keys and gradients of each table, part after part.
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
    if len(parts) == 1:  # nothing to copy
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part)
    joined = {}
    for name in names:
        keys, gradients = zip(*(part[name] for part in parts if name in part), strict=True)
        joined[name] = np.concatenate(keys), np.concatenate([g.reshape(-1) for g in gradients])
    return joined
