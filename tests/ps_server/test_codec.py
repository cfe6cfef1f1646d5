"""Arrays and descriptions through messages and bytes."""

import numpy as np
import pytest

from ps_server.route import Route, ServerRef
from ps_server.spec import SGD, Adagrad, Adam, Constant, Normal, TableSpec, Uniform
from ps_server.wire import (
    array_from_bytes,
    bytes_from_array,
    ps_pb2,
    route_from_message,
    route_to_message,
    spec_from_message,
    spec_to_message,
)


@pytest.mark.parametrize("dtype", [np.uint64, np.float32])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_array_comes_back_without_a_copy(dtype, size):
    array = np.arange(size).astype(dtype)
    data = bytes_from_array(array)
    back = array_from_bytes(data, dtype)
    assert back.dtype == dtype
    assert np.array_equal(back, array)
    assert not back.flags.owndata
    assert not back.flags.writeable


def test_rows_of_a_width_come_back_as_rows():
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert np.array_equal(array_from_bytes(bytes_from_array(rows), np.float32, width=3), rows)
    with pytest.raises(ValueError, match="whole rows of 20 bytes, got 48 bytes"):
        array_from_bytes(bytes_from_array(rows), np.float32, width=5)


def test_elements_travel_in_c_order():
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert bytes_from_array(rows.T) == np.ascontiguousarray(rows.T).tobytes()
    assert bytes_from_array(rows[::2]) == rows[::2].copy().tobytes()


def test_numbers_are_little_endian():
    assert bytes_from_array(np.array([1], np.uint64)) == b"\1" + b"\0" * 7


def test_every_bit_of_a_float_travels():
    odd = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], np.uint32).view(np.float32)
    back = array_from_bytes(bytes_from_array(odd), np.float32)
    assert np.array_equal(back.view(np.uint32), odd.view(np.uint32))


OPTIMIZERS = [SGD(0.1), Adagrad(0.1), Adagrad(0.3, 1e-3, 0.1), Adam(), Adam(0.1, 0.0, 0.5, 1e-5)]
INITIALIZERS = [Constant(), Constant(0.25), Uniform(), Uniform(-3.0, 0.0), Normal(), Normal(0.0, 2)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("initializer", INITIALIZERS, ids=str)
def test_spec_comes_back_equal(optimizer, initializer):
    """Also where a setting is zero, which proto3 does not send."""
    spec = TableSpec("user", 7, optimizer, initializer, seed=2**64 - 1)
    message = ps_pb2.TableSpec.FromString(spec_to_message(spec).SerializeToString())
    assert spec_from_message(message) == spec


def test_numbers_of_numpy_and_integers_travel():
    spec = TableSpec("user", 7, SGD(np.float32(0.1)), Uniform(-1, 1))
    assert spec_from_message(spec_to_message(spec)) == spec


@pytest.mark.parametrize("group", ["optimizer", "initializer"])
def test_spec_without_a_part_is_refused(group):
    message = spec_to_message(TableSpec("user", 7))
    message.ClearField(message.WhichOneof(group))
    with pytest.raises(ValueError, match=f"must name its {group}, got none for 'user'"):
        spec_from_message(message)


EVEN = Route((ServerRef("b", "x:1"), ServerRef("a", "y:2")))


MOVED = EVEN.moved([7], to=EVEN.servers[1])


@pytest.mark.parametrize("route", [EVEN, MOVED, MOVED.moved([7], to=EVEN.servers[0])])
def test_route_comes_back_equal(route):
    message = ps_pb2.Route.FromString(route_to_message(route).SerializeToString())
    assert route_from_message(message) == route
    assert route_from_message(message).fingerprints == route.fingerprints


def test_what_never_moved_does_not_travel():
    """It is 6 bytes a bucket in Stats; a route from before buckets moved is even."""
    assert route_to_message(EVEN).ByteSize() < 40
    assert len(route_to_message(MOVED).owners) == 2 * 4096
    assert len(route_to_message(MOVED).versions) == 4 * 4096


def test_message_of_no_route_is_refused():
    with pytest.raises(ValueError, match="at least one server"):
        route_from_message(ps_pb2.Route())


def test_message_of_broken_owners_is_refused():
    message = route_to_message(MOVED)
    message.owners = message.owners[:-1]
    with pytest.raises(ValueError, match="whole rows of 2 bytes, got 8191 bytes"):
        route_from_message(message)
