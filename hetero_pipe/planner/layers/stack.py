"""LayerStack: layers in a row, and the types of devices that may run them."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hetero_pipe.errors import ConfigError

__all__ = ["LAYER_KINDS", "DeviceType", "LayerStack", "StackLayer"]

LAYER_KINDS = ("sparse", "dense")
"""What a layer does: read rows of tables, or compute on what it is given."""


@dataclass(frozen=True)
class DeviceType:
    """Devices that are all alike, rented by the unit: a core of a CPU, a GPU.

    Attributes:
        name: Unique in a stack.
        kind: As a `Device` has it: `cpu`, `gpu`, `custom`.
        price_per_hour: Of a unit, in any money that is one for all types.
        count: Units there are.
        bandwidth: Bytes/s of a unit to and from units of other types, both ways together.
        memory: Bytes of a unit that stages may use.
        step: Seconds a sample that a stage takes a unit whatever its layers.
        call: Seconds a sample that each end of a stage takes a unit where another stage begins.
        message_byte: Seconds that a byte which crosses there takes a unit, to be packed or read.

    Raises:
        ConfigError: A value is out of range.
    """

    name: str
    kind: str
    price_per_hour: float
    count: int
    bandwidth: float = math.inf
    memory: float = math.inf
    step: float = 0.0
    call: float = 0.0
    message_byte: float = 0.0

    def __post_init__(self) -> None:
        owner = f"device type {self.name!r}"
        _check(owner, "price_per_hour", self.price_per_hour, least=0, most=math.inf)
        if type(self.count) is not int or self.count < 1:
            raise ConfigError(f"{owner} needs count of at least 1, got count={self.count!r}")
        for name in ("bandwidth", "memory"):
            if not (value := getattr(self, name)) > 0:
                raise ConfigError(f"{owner} needs {name} above 0, got {name}={value!r}")
        for name in ("step", "call", "message_byte"):
            _check(owner, name, getattr(self, name), least=0, most=math.inf)


@dataclass(frozen=True)
class StackLayer:
    """One layer: what a sample costs on one unit of each type.

    Of a time `x` on one unit, k units take `x * (1 - a + a / k)` (Amdahl), where
    a is `compute_fraction` or `comm_fraction`.

    Attributes:
        name: Unique in a stack.
        kind: One of `LAYER_KINDS`.
        compute: Seconds of a sample on one unit, forward and backward, by type in
            the stack's order; infinite where the layer cannot run.
        comm: Seconds of a sample for what the layer itself communicates on one
            unit (pull and push, gradients to average), by type.
        compute_fraction: Of `compute`, what units share: HeterPS's alpha.
        comm_fraction: Of `comm`: HeterPS's beta.
        cut_bytes: Of a sample, what crosses to the next layer and comes back from it.
        shared_bytes: That the units of a stage hold together, by type: rows of tables. Empty
            is none.
        own_bytes: That each unit of a stage holds: parameters, and what belongs to them.

    Raises:
        ConfigError: A value is out of range.
    """

    name: str
    kind: str
    compute: tuple[float, ...]
    comm: tuple[float, ...]
    compute_fraction: float = 1.0
    comm_fraction: float = 1.0
    cut_bytes: float = 0.0
    shared_bytes: tuple[float, ...] = ()
    own_bytes: float = 0.0

    def __post_init__(self) -> None:
        owner = f"layer {self.name!r}"
        if self.kind not in LAYER_KINDS:
            known = ", ".join(LAYER_KINDS)
            raise ConfigError(f"{owner} needs kind of {known}, got kind={self.kind!r}")
        for seconds in self.compute:
            if not seconds >= 0:
                raise ConfigError(f"{owner} needs compute of at least 0, got {self.compute}")
        for seconds in self.comm:
            _check(owner, "comm", seconds, least=0, most=math.inf)
        _check(owner, "compute_fraction", self.compute_fraction, least=0, most=1)
        _check(owner, "comm_fraction", self.comm_fraction, least=0, most=1)
        _check(owner, "cut_bytes", self.cut_bytes, least=0, most=math.inf)
        for held in self.shared_bytes:
            _check(owner, "shared_bytes", held, least=0, most=math.inf)
        _check(owner, "own_bytes", self.own_bytes, least=0, most=math.inf)
        if math.isinf(min(self.compute, default=math.inf)):
            raise ConfigError(f"{owner} needs a type that it can run on, got {self.compute}")


@dataclass(frozen=True)
class LayerStack:
    """A model as layers in a row, and what may run them. Frozen; to and from JSON.

    Attributes:
        name: For people.
        layers: In the order in which a sample passes them.
        types: In the order of each layer's times.
        is_overlapped: Whether a stage computes while it communicates, so that it takes the
            longer of the two and not their sum.

    Raises:
        ConfigError: Names are not unique, or a layer has not one time for each type.
    """

    name: str
    layers: tuple[StackLayer, ...]
    types: tuple[DeviceType, ...]
    is_overlapped: bool = True

    def __post_init__(self) -> None:
        _check_unique(self.name, "layer", [layer.name for layer in self.layers])
        _check_unique(self.name, "device type", [each.name for each in self.types])
        for layer in self.layers:
            if not len(layer.compute) == len(layer.comm) == len(self.types):
                raise ConfigError(
                    f"stack {self.name!r} has {len(self.types)} device types, got layer "
                    f"{layer.name!r} with {len(layer.compute)} times of compute and "
                    f"{len(layer.comm)} of comm; give one of each a type"
                )
            if len(layer.shared_bytes) not in (0, len(self.types)):
                raise ConfigError(
                    f"stack {self.name!r} has {len(self.types)} device types, got layer "
                    f"{layer.name!r} with {len(layer.shared_bytes)} of shared_bytes; give one a "
                    "type, or none"
                )

    def to_json(self) -> str:
        """Returns the stack as indented JSON; null stands for infinite."""
        return json.dumps(_finite(asdict(self)), indent=2, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> "LayerStack":
        """Returns the stack that `to_json` wrote.

        Raises:
            ConfigError: The text is no stack.
        """
        try:
            fields = json.loads(text)
            layers = tuple(_layer(**layer) for layer in fields.pop("layers"))
            types = tuple(_type(**each) for each in fields.pop("types"))
            return LayerStack(layers=layers, types=types, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"a stack is JSON as LayerStack.to_json writes it, got {error!r}"
            ) from error


def _layer(
    compute: Sequence[float | None],
    comm: Sequence[float],
    shared_bytes: Sequence[float] = (),
    **fields: Any,  # JSON values
) -> StackLayer:
    times = tuple(math.inf if seconds is None else seconds for seconds in compute)
    return StackLayer(compute=times, comm=tuple(comm), shared_bytes=tuple(shared_bytes), **fields)


def _type(bandwidth: float | None = None, memory: float | None = None, **fields: Any) -> DeviceType:
    boundless = [math.inf if value is None else value for value in (bandwidth, memory)]
    return DeviceType(bandwidth=boundless[0], memory=boundless[1], **fields)


def _finite(value: Any) -> Any:  # a JSON value, whatever it is
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if value == math.inf else value


def _check(owner: str, name: str, value: float, *, least: float, most: float) -> None:
    if not (least <= value <= most and math.isfinite(value)):
        bounds = f"of at least {least}" if math.isinf(most) else f"from {least} to {most}"
        raise ConfigError(f"{owner} needs {name} {bounds}, got {name}={value!r}")


def _check_unique(owner: str, what: str, names: Sequence[str]) -> None:
    if not names:
        raise ConfigError(f"stack {owner!r} needs a {what}, got none")
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ConfigError(f"stack {owner!r} names each {what} once, got {twice[0]!r} twice")
