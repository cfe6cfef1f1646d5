"""How a dimension depends on the batch, found from what it is at some batches."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from hetero_pipe.graph.size import BATCH, ONE, ZERO, Size

__all__ = ["fit_size", "points_of"]

_BATCHES = (12, 24, 36)
_CHECK = 60
"""Batches that many a number divides, since models split them."""


def points_of(symbols: Sequence[str]) -> list[dict[str, int]]:
    """Returns values of `batch` and of other symbols at which `fit_size` must know a size.

    Three batches, one more value of each other symbol, and one point at which all
    differ, to check what was found.
    """
    base = {"batch": _BATCHES[0]} | {name: 48 + 12 * i for i, name in enumerate(symbols)}
    points = [{**base, "batch": batch} for batch in _BATCHES]
    points += [{**base, name: base[name] * 2} for name in symbols]
    return [*points, {**{name: base[name] * 3 for name in symbols}, "batch": _CHECK}]


def fit_size(points: Sequence[Mapping[str, int]], values: Sequence[int]) -> Size | None:
    """Returns the size that has these values at the points of `points_of`.

    A polynomial of degree 2 in the batch, plus a multiple of each other symbol;
    None: there is none such.

    >>> points = points_of([])
    >>> str(fit_size(points, [3 * p["batch"] + 1 for p in points]))
    '3*batch + 1'
    """
    symbols = [name for name in points[0] if name != "batch"]
    x, y = [Fraction(batch) for batch in _BATCHES], [Fraction(value) for value in values]
    # Newton's divided differences.
    first, second = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    curve = (second - first) / (x[2] - x[0])
    size = (
        Size.of(y[0])
        + (BATCH + ONE * -_BATCHES[0]) * first
        + (BATCH + ONE * -_BATCHES[0]) * (BATCH + ONE * -_BATCHES[1]) * curve
    )
    for i, name in enumerate(symbols, start=len(_BATCHES)):
        slope = (y[i] - y[0]) / (points[i][name] - points[0][name])
        offset = Size.symbol(name) - points[0][name] if slope else ZERO
        size += offset * slope
    return size if size.at(points[-1]) == values[-1] else None
