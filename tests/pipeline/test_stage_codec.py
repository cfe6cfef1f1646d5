"""Tensors between workers: aligned, exact in float32, and rounded half to even in fewer bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hetero_pipe.data import Cut
from hetero_pipe.pipeline.wire import (
    read_cut,
    read_tensor,
    stage_pb2,
    write_cut,
    write_tensor,
)
from hetero_pipe.plan import WIRES

any_bits = arrays(np.uint32, st.tuples(st.integers(0, 5), st.integers(0, 7)))


def cross(array, wire):
    """Sends an array over a wire, as bytes."""
    message = stage_pb2.Tensor()
    write_tensor(message, array, wire)
    return read_tensor(stage_pb2.Tensor.FromString(message.SerializeToString()))


def nearest_bfloat16(value):
    """The oracle: of the two bfloat16 around a finite float32, the nearer or else the even one."""
    bits = int(np.float32(value).view(np.uint32))
    below, above = bits >> 16, (bits >> 16) + 1

    def real(half):  # exact in float64; what lies after the largest float is 2^128
        exponent, digits = half >> 7 & 0xFF, half & 0x7F
        size = digits * 2.0**-133 if exponent == 0 else (128 + digits) * 2.0 ** (exponent - 134)
        return -size if half >> 15 else size

    exact = float(np.float32(value))
    distances = abs(exact - real(below)), abs(exact - real(above))
    if distances[0] == distances[1]:
        return below if below % 2 == 0 else above
    return below if distances[0] < distances[1] else above


@given(any_bits)
def test_bfloat16_is_the_nearest_one(bits):
    array = bits.view(np.float32)
    found = cross(array, "bfloat16")
    assert found.shape == array.shape
    for value, got in zip(array.ravel(), found.ravel(), strict=True):
        if np.isfinite(value):
            assert int(got.view(np.uint32)) == nearest_bfloat16(value) << 16
        else:
            np.testing.assert_equal(got, value)


@pytest.mark.parametrize(
    ("bits", "wanted"),
    [
        (0x3F808000, 0x3F80),  # a tie, to the even one below
        (0x3F818000, 0x3F82),  # a tie, to the even one above
        (0x3F808001, 0x3F81),
        (0x7F7FFFFF, 0x7F80),  # the largest float32 is nearest to infinity
        (0xFF7FFFFF, 0xFF80),
        (0x00008000, 0x0000),  # subnormal, a tie
        (0x80000000, 0x8000),
    ],
)
def test_bfloat16_at_the_edges(bits, wanted):
    value = np.array([bits], np.uint32).view(np.float32)
    assert int(cross(value, "bfloat16").view(np.uint32)[0]) >> 16 == wanted
    if np.isfinite(value[0]):
        assert nearest_bfloat16(value[0]) == wanted


@given(any_bits)
def test_float32_crosses_bit_for_bit(bits):
    found = cross(bits.view(np.float32), "float32")
    np.testing.assert_array_equal(found.view(np.uint32), bits)


@given(
    arrays(np.float32, 9, elements=st.floats(-1, 1, width=32)),
    st.integers(-100, 100),
)
def test_float16_has_its_eleven_digits_at_any_size(array, exponent):
    """Gradients of 1e-9 would be zero in float16 as they are."""
    scaled = np.ldexp(array, exponent)
    error = np.abs(cross(scaled, "float16") - scaled)
    largest = np.max(np.abs(scaled))
    # Relative to itself, or to the smallest step below the largest value of the tensor.
    assert np.all(error <= np.maximum(np.abs(scaled) * 2.0**-11, largest * 2.0**-38))


@pytest.mark.parametrize("wire", WIRES)
def test_what_is_not_finite_stays_so(wire):
    array = np.array([np.nan, np.inf, -np.inf, 1.0, 0.0], np.float32)
    np.testing.assert_array_equal(cross(array, wire), array)
    np.testing.assert_array_equal(cross(array[:3], wire), array[:3])


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("shape", [(3, 2, 5), (0, 4), (7,)])
def test_a_received_tensor_is_aligned(shape, wire):
    for _ in range(8):
        found = cross(np.ones(shape, np.float32), wire)
        assert found.shape == shape
        assert found.size == 0 or found.ctypes.data % 64 == 0
        assert np.all(found == 1)


def test_a_cut_keeps_its_offsets():
    rows = Cut(np.ones((3, 2), np.float32), np.array([0, 1, 1, 3]))
    pooled = Cut(np.ones((3, 1, 2), np.float32))
    messages = stage_pb2.Cut(name="history"), stage_pb2.Cut(name="item")
    for message, cut in zip(messages, (rows, pooled), strict=True):
        write_cut(message, cut, "float32")
    np.testing.assert_array_equal(read_cut(messages[0]).offsets, rows.offsets)
    assert read_cut(messages[1]).offsets is None


def test_data_that_do_not_fill_the_shape_are_refused():
    message = stage_pb2.Tensor()
    write_tensor(message, np.ones((2, 3), np.float32), "float32")
    message.data = message.data[:-4]
    with pytest.raises(ValueError, match="reshape"):
        read_tensor(message)
