"""Arrays and descriptions to messages and back."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ps_server.route import Route, ServerRef
from ps_server.spec import (
    SGD,
    Adagrad,
    Adam,
    Constant,
    Initializer,
    Normal,
    Optimizer,
    TableSpec,
    Uniform,
)
from ps_server.wire import ps_pb2

assert sys.byteorder == "little", (
    "the wire is little-endian and arrays travel as they lie in memory"
)

Part = TypeVar("Part")
Scalar = TypeVar("Scalar", bound=np.generic)

_OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adagrad": Adagrad, "adam": Adam}
_INITIALIZERS: dict[str, type[Initializer]] = {
    "constant": Constant,
    "uniform": Uniform,
    "normal": Normal,
}


def bytes_from_array(array: NDArray[np.generic]) -> bytes:
    """Returns the elements of an array in C order."""
    return array.tobytes()


def array_from_bytes(data: bytes, dtype: type[Scalar], *, width: int = 1) -> NDArray[Scalar]:
    """Returns `data` as an array that shares its memory and cannot be written.

    Args:
        data: Elements in C order, little-endian.
        dtype: Type of an element.
        width: Elements in a row.

    Returns:
        `[n]`, or `[n, width]` if `width` is above 1.

    Raises:
        ValueError: `data` is not a whole number of rows.
    """
    row_bytes = np.dtype(dtype).itemsize * width
    if len(data) % row_bytes:
        raise ValueError(f"the data must be whole rows of {row_bytes} bytes, got {len(data)} bytes")
    flat = np.frombuffer(data, dtype)
    return flat.reshape(-1, width) if width > 1 else flat


def spec_to_message(spec: TableSpec) -> ps_pb2.TableSpec:
    """Returns the message of a spec."""
    message = ps_pb2.TableSpec(name=spec.name, dim=spec.dim, seed=spec.seed)
    for kinds, part in ((_OPTIMIZERS, spec.optimizer), (_INITIALIZERS, spec.initializer)):
        kind = next(kind for kind, cls in kinds.items() if type(part) is cls)
        field = getattr(message, kind)
        field.SetInParent()
        for name, value in asdict(part).items():
            setattr(field, name, value)
    return message


def spec_from_message(message: ps_pb2.TableSpec) -> TableSpec:
    """Returns the spec of a message.

    Raises:
        ValueError: A field is missing or out of range.
    """
    return TableSpec(
        name=message.name,
        dim=message.dim,
        optimizer=_part(message, "optimizer", _OPTIMIZERS),
        initializer=_part(message, "initializer", _INITIALIZERS),
        seed=message.seed,
    )


def _part(
    message: ps_pb2.TableSpec,
    group: Literal["optimizer", "initializer"],
    kinds: Mapping[str, type[Part]],
) -> Part:
    kind = message.WhichOneof(group)
    if kind is None:
        raise ValueError(f"a table spec must name its {group}, got none for {message.name!r}")
    settings = getattr(message, kind)
    return kinds[kind](**{f.name: getattr(settings, f.name) for f in settings.DESCRIPTOR.fields})


def route_to_message(route: Route) -> ps_pb2.Route:
    """Returns the message of a route."""
    servers = [ps_pb2.ServerRef(id=s.id, address=s.address) for s in route.servers]
    return ps_pb2.Route(
        servers=servers,
        owners=b"" if route.is_even else bytes_from_array(route.owners),
        versions=bytes_from_array(route.versions) if route.versions.any() else b"",
    )


def route_from_message(message: ps_pb2.Route) -> Route:
    """Returns the route of a message.

    Raises:
        ValueError: It names no server, one twice, or a bucket of none of them.
    """
    return Route(
        tuple(ServerRef(s.id, s.address) for s in message.servers),
        array_from_bytes(message.owners, np.uint16),
        array_from_bytes(message.versions, np.uint32),
    )
