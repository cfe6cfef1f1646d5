"""Size: a number of elements, bytes or operations that depends on the batch. Exact."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from hetero_pipe.errors import ConfigError

__all__ = ["BATCH", "ONE", "ZERO", "Shape", "Size", "product", "total"]

Number: TypeAlias = int | float | Fraction
Monomial: TypeAlias = tuple[str, ...]

_SYMBOL = re.compile(r"[A-Za-z_][\w.\-]*")


@dataclass(frozen=True)
class Size:
    """A polynomial over named symbols, with whole or rational coefficients.

    Sizes add and multiply, also with whole numbers; equal polynomials are equal.

    >>> BATCH = Size.symbol("batch")
    >>> str((BATCH + 1) * 416), (BATCH * 26).at({"batch": 512})
    ('416*batch + 416', 13312)

    Attributes:
        terms: `(symbols, coefficient)`, sorted, each product of symbols once, no
            coefficient 0; `(("batch", "batch"), 2)` is `2*batch*batch`.
    """

    terms: tuple[tuple[Monomial, Fraction], ...] = ()

    @staticmethod
    def of(value: "int | Fraction | Size") -> "Size":
        """Returns a number as a Size, and a Size as it is."""
        return value if isinstance(value, Size) else _size({(): Fraction(value)})

    @staticmethod
    def symbol(name: str) -> "Size":
        """Returns what a name stands for: letters, digits, `_`, `-` and `.`.

        Raises:
            ConfigError: It is no such name.
        """
        if not _SYMBOL.fullmatch(name):
            raise ConfigError(
                f"a symbol begins with a letter and has letters, digits, '_', '-' and '.', "
                f"got {name!r}"
            )
        return Size((((name,), Fraction(1)),))

    @staticmethod
    def parse(text: str) -> "Size":
        """Returns the Size that `str` wrote.

        Raises:
            ConfigError: It wrote no such text.

        >>> str(Size.parse("1/2*batch*batch + 3"))
        '1/2*batch*batch + 3'
        """
        found: dict[Monomial, Fraction] = {}
        for term in text.split(" + "):
            names: list[str] = []
            coefficient = Fraction(1)
            for factor in term.split("*"):
                try:
                    coefficient *= Fraction(factor)
                except ValueError as error:
                    if not _SYMBOL.fullmatch(factor):
                        raise ConfigError(
                            f"a size is written like '416*batch + 3', got {text!r}"
                        ) from error
                    names.append(factor)
            key = tuple(sorted(names))
            found[key] = found.get(key, Fraction(0)) + coefficient
        return _size(found)

    def __str__(self) -> str:
        return " + ".join(_term(*term) for term in reversed(self.terms)) or "0"

    def __add__(self, other: "Size | int") -> "Size":
        found = dict(self.terms)
        for names, coefficient in Size.of(other).terms:
            found[names] = found.get(names, Fraction(0)) + coefficient
        return _size(found)

    def __mul__(self, other: "Size | int | Fraction") -> "Size":
        found: dict[Monomial, Fraction] = {}
        by = Size.of(other).terms
        for names, coefficient in self.terms:
            for others, factor in by:
                key = tuple(sorted(names + others)) if names and others else names + others
                found[key] = found.get(key, Fraction(0)) + coefficient * factor
        return _size(found)

    __radd__ = __add__
    __rmul__ = __mul__

    def __sub__(self, other: "Size | int") -> "Size":
        return self + Size.of(other) * -1

    @property
    def symbols(self) -> frozenset[str]:
        """The names that it depends on."""
        return frozenset(name for names, _ in self.terms for name in names)

    @property
    def is_constant(self) -> bool:
        """Whether it depends on no symbol."""
        return not self.symbols

    def at(self, values: Mapping[str, int | float]) -> int | float:
        """Returns its value where the symbols have these: an int if it is whole and they are.

        Raises:
            ConfigError: A symbol has no value.
        """
        missing = self.symbols - values.keys()
        if missing:
            raise ConfigError(f"a size of {self} needs a value for {', '.join(sorted(missing))}")
        value: Number = Fraction(0)
        for names, coefficient in self.terms:
            term: Number = coefficient
            for name in names:
                term *= values[name]
            value += term
        if isinstance(value, Fraction) and value.denominator == 1:
            return int(value)
        return float(value)

    def divided(self, by: int) -> "Size":
        """Returns the size of one of `by` equal parts."""
        return self * Fraction(1, by)

    def may_divide(self, by: int) -> bool:
        """Returns whether there can be `by` equal parts: a symbol's value may be any multiple."""
        return not self.is_constant or (self.at({}) % by) == 0


Shape: TypeAlias = tuple[Size, ...]


def product(sizes: Iterable[Size]) -> Size:
    """Returns the product of sizes, 1 of none."""
    result = ONE
    for size in sizes:
        result *= size
    return result


def total(sizes: Iterable[Size]) -> Size:
    """Returns the sum of sizes, 0 of none."""
    found: dict[Monomial, Fraction] = {}
    for size in sizes:
        for names, coefficient in size.terms:
            found[names] = found.get(names, Fraction(0)) + coefficient
    return _size(found)


def _size(terms: Mapping[Monomial, Fraction]) -> Size:
    kept = [(names, value) for names, value in terms.items() if value]
    kept.sort(key=lambda term: (len(term[0]), term[0]))
    return Size(tuple(kept))


def _term(names: Monomial, coefficient: Fraction) -> str:
    if not names:
        return str(coefficient)
    return "*".join(names if coefficient == 1 else (str(coefficient), *names))


ZERO = Size()
ONE = Size.of(1)

BATCH = Size.symbol("batch")
"""The samples of a batch."""
