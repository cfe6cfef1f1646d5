"""Size: polynomials, against sums written out."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.errors import ConfigError
from hetero_pipe.graph import BATCH, ONE, ZERO, Size, fit_size, points_of, product, total

NAMES = ("batch", "keys.a", "rows.t")

coefficients = st.integers(-9, 9) | st.fractions(-3, 3, max_denominator=6)
monomials = st.lists(st.sampled_from(NAMES), max_size=3).map(tuple)
# A polynomial as a plain list of terms: the oracle evaluates it one by one.
polynomials = st.lists(st.tuples(monomials, coefficients), max_size=4)
values = st.fixed_dictionaries({name: st.integers(0, 50) for name in NAMES})


def size_of(terms):
    return total(
        product([Size.symbol(name) for name in names]) * Size.of(Fraction(factor))
        for names, factor in terms
    )


def value_of(terms, at):
    result = Fraction(0)
    for names, factor in terms:
        term = Fraction(factor)
        for name in names:
            term *= at[name]
        result += term
    return result


@given(polynomials, polynomials, values)
def test_a_size_is_what_its_terms_sum_to(a, b, at):
    assert Fraction(size_of(a).at(at)).limit_denominator(1000) == value_of(a, at)
    both = (size_of(a) + size_of(b)).at(at)
    assert Fraction(both).limit_denominator(1000) == value_of(a, at) + value_of(b, at)
    times = (size_of(a) * size_of(b)).at(at)
    assert times == pytest.approx(float(value_of(a, at) * value_of(b, at)))
    less = (size_of(a) - size_of(b)).at(at)
    assert less == pytest.approx(float(value_of(a, at) - value_of(b, at)))


@given(polynomials, polynomials, polynomials)
def test_equal_polynomials_are_equal_sizes(a, b, c):
    x, y, z = size_of(a), size_of(b), size_of(c)
    assert x * (y + z) == x * y + x * z
    assert x * y == y * x
    assert x + y == y + x
    assert x - x == ZERO
    assert x * ONE == x
    assert hash(x * y) == hash(y * x)


@given(polynomials)
def test_text_is_read_back(a):
    assert Size.parse(str(size_of(a))) == size_of(a)


def test_text_is_what_one_would_write():
    assert str(BATCH * 416 + 3) == "416*batch + 3"
    assert str(BATCH * BATCH * Fraction(1, 2)) == "1/2*batch*batch"
    assert str(ZERO) == "0"


@pytest.mark.parametrize("text", ["", "416 batch", "2**batch", "batch +3", "*", "-batch"])
def test_other_text_is_refused(text):
    with pytest.raises(ConfigError, match="a size is written like"):
        Size.parse(text)


def test_a_whole_value_is_an_int():
    assert type((BATCH * 3).at({"batch": 2})) is int
    assert type((BATCH * Fraction(1, 2)).at({"batch": 4})) is int
    assert (BATCH * Fraction(1, 2)).at({"batch": 5}) == 2.5
    assert (Size.symbol("keys.a") * 4).at({"keys.a": 8.5}) == 34.0


def test_a_symbol_without_a_value_is_named():
    with pytest.raises(ConfigError, match=r"a size of 2\*keys.a needs a value for keys.a"):
        (Size.symbol("keys.a") * 2).at({"batch": 3})


def test_parts_are_equal_where_a_number_divides():
    assert Size.of(12).may_divide(4)
    assert not Size.of(12).may_divide(5)
    assert BATCH.may_divide(5)
    assert (BATCH * 12).divided(4) == BATCH * 3


# ------------------------------------------------------------------ fit

small = st.integers(0, 20)


@given(small, small, small, st.lists(small, max_size=3))
def test_a_size_is_found_from_its_values(constant, slope, curve, factors):
    symbols = [f"keys.{i}" for i in range(len(factors))]
    size = BATCH * BATCH * curve + BATCH * slope + constant
    size += total(Size.symbol(n) * f for n, f in zip(symbols, factors, strict=True))
    points = points_of(symbols)
    assert fit_size(points, [int(size.at(point)) for point in points]) == size


def test_half_a_batch_is_found():
    points = points_of([])
    assert fit_size(points, [p["batch"] // 2 for p in points]) == BATCH * Fraction(1, 2)


def test_what_is_no_polynomial_is_not_fitted():
    points = points_of(["keys.a"])
    assert fit_size(points, [2 ** (p["batch"] // 12) for p in points]) is None
    assert fit_size(points, [p["batch"] * p["keys.a"] for p in points]) is None
