"""A model's program as Paddle lists it, read into tensors and ops."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from hetero_pipe.errors import TraceError
from hetero_pipe.graph import Attribute
from hetero_pipe.nn.source import source_of

__all__ = ["Program", "ProgramOp", "ProgramTensor", "read_program"]

PathAfter: TypeAlias = Callable[[Any, str], str]

# Settings that a cost or a sharding depends on; others may hold sizes of this one batch.
_ATTRIBUTES = {
    "axis",
    "begin_norm_axis",
    "bias",
    "data_format",
    "equation",
    "groups",
    "keepdim",
    "padding_idx",
    "perm",
    "pooltype",
    "sparse",
    "transpose_x",
    "transpose_y",
}

# Paddle passes these as tensors: the constants that it made of an argument.
_AXIS_KINDS = {"argmax", "concat", "cumsum", "max", "mean", "min", "prod", "sum"}


@dataclass(frozen=True)
class ProgramTensor:
    """A tensor of a program.

    Attributes:
        name: Of an input or a parameter; else empty.
        shape: At this batch; -1 where only a run tells.
        dtype: As Paddle names it.
        is_parameter: Whether it is a parameter, a buffer or another tensor that the
            model holds.
        needs_gradient: Whether the backward goes through it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_parameter: bool
    needs_gradient: bool


@dataclass(frozen=True)
class ProgramOp:
    """An op of a program.

    Attributes:
        kind: As Paddle names it, without `pd_op.` and the `_` of in-place ones.
        inputs: Numbers of tensors.
        outputs: Numbers of tensors.
        attributes: Of its settings, some.
        path: Of the sub-layer that called it.
        source: FILE:LINE.
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, Attribute]
    path: str
    source: str


@dataclass(frozen=True)
class Program:
    """What a model did at one batch; tensors are numbered as they come up."""

    tensors: tuple[ProgramTensor, ...]
    ops: tuple[ProgramOp, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def read_program(
    program: Any, outputs: list[Any], names: Mapping[str, str], path_after: PathAfter
) -> Program:
    """Returns what is in a program of Paddle's.

    Args:
        program: A `paddle.static.Program` of PIR.
        outputs: Its Values that a model returned.
        names: Of parameters, by the names that Paddle has.
        path_after: Of an op, or None before the first, and the path of the
            sub-layer that called it: that of the one that called the next.

    Raises:
        TraceError: A tensor's value decides which of its ops run.
    """
    reading, inputs, ops = _Reading(), [], []
    returned = {value.id for value in outputs}
    path = path_after(None, "")
    for op in program.global_block().ops:
        name = op.name()
        if name == "builtin.parameter":
            parameter = op.attrs()["parameter_name"]
            reading.add(op.result(0), names.get(parameter, parameter), is_parameter=True)
        elif name == "pd_op.data":
            inputs.append(reading.add(op.result(0), op.attrs()["name"]))
        elif name == "builtin.combine":
            reading.of[op.result(0).id] = [
                number for value in _operands(op) for number in reading.of[value.id]
            ]
        elif name == "builtin.split":
            _split(op, reading, returned)
        elif _is_constant(op):
            reading.constants[op.result(0).id] = op.attrs()["value"]
        else:
            ops.append(_op(op, reading, path, returned))
        path = path_after(op, path)
    return Program(
        tensors=tuple(reading.tensors),
        ops=tuple(replace(op, outputs=tuple(made)) for op, made in ops),
        inputs=tuple(inputs),
        outputs=tuple(number for value in outputs for number in reading.of[value.id]),
    )


@dataclass
class _Reading:
    """A program as far as it was read: `of` has each Value as numbers of tensors."""

    tensors: list[ProgramTensor] = field(default_factory=list)
    of: dict[int, list[int]] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)
    # Of Values that are lists of tensors: the outputs of the op that made them.
    lists: dict[int, list[int]] = field(default_factory=dict)

    def add(self, value: Any, name: str = "", *, is_parameter: bool = False) -> int:
        dtype = str(value.dtype).rpartition(".")[2]
        is_float = dtype.startswith(("float", "bfloat", "complex"))
        self.tensors.append(
            ProgramTensor(
                name,
                tuple(int(size) for size in value.shape),
                dtype,
                is_parameter=is_parameter,
                needs_gradient=is_float and not value.stop_gradient,
            )
        )
        number = len(self.tensors) - 1
        self.of[value.id] = [number]
        return number


def _operands(op: Any) -> list[Any]:
    found = (operand.source() for operand in op.operands())
    return [value for value in found if value.initialized()]


def _is_constant(op: Any) -> bool:
    """Returns whether Paddle made a tensor of an argument: no line of a model did."""
    kind = op.name().removeprefix("pd_op.")
    return kind == "full_int_array" or (kind == "full" and not op.callstack)


def _op(op: Any, reading: _Reading, path: str, returned: set[int]) -> tuple[ProgramOp, list[int]]:
    source = source_of(op.callstack)
    kind = op.name().removeprefix("pd_op.").removesuffix("_")
    if op.num_regions():
        inner = next((s for b in op.blocks() for o in b.ops if (s := source_of(o.callstack))), "")
        raise TraceError(
            f"which ops a model runs is the same for each batch, got {kind!r} on a tensor's value "
            f"at {source or inner}; compute both and choose with paddle.where",
            source=source or inner,
        )
    operands = _operands(op)
    attributes = _attributes(op)
    constants = [reading.constants[v.id] for v in operands if v.id in reading.constants]
    if constants and kind in _AXIS_KINDS:
        attributes["axis"] = _axis(constants[0])
    made: list[int] = []
    for value in op.results():
        if not value.initialized():
            continue
        if value.is_dense_tensor_type():
            is_used = not value.use_empty() or value.id in returned
            if not is_used and -1 in value.shape:
                continue  # what a kernel works in
            number = reading.add(value)
            if not is_used:
                reading.tensors[number] = replace(reading.tensors[number], needs_gradient=False)
            made.append(number)
        else:
            reading.lists[value.id] = made
    inputs = [number for value in operands for number in reading.of.get(value.id, [])]
    return ProgramOp(kind, tuple(inputs), (), attributes, path, source), made


def _split(op: Any, reading: _Reading, returned: set[int]) -> None:
    """Names the tensors of a list: those that were combined, or that an op has made."""
    (source,) = _operands(op)
    known = reading.of.get(source.id)
    for i, value in enumerate(op.results()):
        if known is not None:
            reading.of[value.id] = [known[i]]
        elif not value.use_empty() or value.id in returned:
            reading.lists[source.id].append(reading.add(value))


def _attributes(op: Any) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    for name, value in op.attrs().items():
        if name in _ATTRIBUTES and isinstance(value, (bool, int, float, str)):
            found[name] = value
        elif name in _ATTRIBUTES and isinstance(value, (list, tuple)):
            found[name] = tuple(int(item) for item in value)
    return found


def _axis(value: Any) -> Attribute:
    return tuple(int(item) for item in value) if isinstance(value, list) else int(value)
