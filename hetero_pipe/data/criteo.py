"""Criteo's click logs: the names of their columns, and published figures about them."""

import math
from dataclasses import dataclass

__all__ = [
    "CARDINALITIES",
    "CRITEO_DENSE",
    "CRITEO_SLOTS",
    "LABEL_RATE",
    "Category",
    "Count",
    "categories",
    "counts",
]

CRITEO_DENSE = tuple(f"I{i}" for i in range(1, 14))
"""The integer columns."""

CRITEO_SLOTS = tuple(f"C{i}" for i in range(1, 27))
"""The categorical columns: hashes of 32 bits, written as 8 hexadecimal digits."""

LABEL_RATE = 0.256
"""The share of clicks in the Kaggle set, whose negatives are subsampled."""

# fmt: off
_KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
_TERABYTE = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10,
    2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)
# Of the Kaggle set, fitted so that 4,096 rows hold as many distinct values as its rows do.
_EXPONENTS = (
    1.88, 1.34, 1.03, 1.08, 2.39, 4.0, 0.92, 2.2, 0.0, 1.09, 0.99, 1.03, 0.98,
    2.82, 1.08, 1.06, 3.67, 1.2, 1.47, 0.0, 1.04, 4.0, 3.38, 1.16, 2.47, 1.22,
)

# Of the Kaggle set: the share of empty fields, and mean and deviation of the others.
_MISSING = (
    0.454, 0.0, 0.215, 0.217, 0.026, 0.224, 0.043, 0.0005, 0.043, 0.454, 0.043, 0.765, 0.217,
)
_MEANS = (3.5, 105.8, 26.9, 7.3, 18539.0, 116.1, 16.3, 12.5, 106.1, 0.62, 2.7, 0.99, 8.2)
_DEVIATIONS = (9.4, 391.5, 397.9, 8.8, 69395.0, 382.6, 66.0, 16.7, 220.3, 0.68, 5.2, 5.6, 16.2)
# fmt: on


CARDINALITIES = {"kaggle": _KAGGLE, "terabyte": _TERABYTE}
"""Distinct values of C1..C26: of the 45.8 M rows of the Kaggle set, 33.76 M in all; and of the
1 TB set, its values modulo 40 M, 187.77 M in all."""

_OFTEN_EMPTY = ("C19", "C20", "C22", "C25", "C26")
"""Columns of the Kaggle set whose most frequent value is the empty field."""


@dataclass(frozen=True)
class Category:
    """How the values of one categorical column are distributed.

    Attributes:
        name: Of the column.
        cardinality: Its distinct values.
        exponent: Of their bounded Zipf law.
        is_often_empty: Whether the most frequent value is the empty field.
    """

    name: str
    cardinality: int
    exponent: float
    is_often_empty: bool


@dataclass(frozen=True)
class Count:
    """How the values of one integer column are distributed.

    Attributes:
        name: Of the column.
        missing: The share of empty fields.
        mean: Of the other fields.
        deviation: The standard deviation of the other fields.
    """

    name: str
    missing: float
    mean: float
    deviation: float


def categories(dataset: str, scale: float) -> tuple[Category, ...]:
    """Returns C1..C26, their cardinalities times `scale` but 3 at least, if it was 3 at all.

    The exponents were fitted to the Kaggle set. A column of the 1 TB set has that
    of the Kaggle column whose cardinality is nearest by ratio, which is a guess.

    Args:
        dataset: A key of `CARDINALITIES`.
        scale: Above 0.
    """
    return tuple(
        Category(
            name,
            max(round(cardinality * scale), min(cardinality, 3)),
            _exponent(cardinality),
            is_often_empty=dataset == "kaggle" and name in _OFTEN_EMPTY,
        )
        for name, cardinality in zip(CRITEO_SLOTS, CARDINALITIES[dataset], strict=True)
    )


def counts() -> tuple[Count, ...]:
    """Returns I1..I13 as they are in the Kaggle set."""
    return tuple(map(Count, CRITEO_DENSE, _MISSING, _MEANS, _DEVIATIONS))


def _exponent(cardinality: int) -> float:
    def distance(i: int) -> float:
        return abs(math.log(cardinality / _KAGGLE[i]))

    return _EXPONENTS[min(range(len(_KAGGLE)), key=distance)]
