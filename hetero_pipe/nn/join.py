"""What a model does at any batch, from what it did at some."""

from collections.abc import Mapping, Sequence
from typing import Any

import paddle

from hetero_pipe.errors import TraceError
from hetero_pipe.graph import (
    BATCH,
    Call,
    Graph,
    Shape,
    Size,
    Table,
    Tensor,
    build_graph,
    fit_size,
)
from hetero_pipe.nn.batch import cut_name
from hetero_pipe.nn.embedding import Embedding, find_embeddings
from hetero_pipe.nn.part import Parts
from hetero_pipe.nn.program import Program, ProgramOp

__all__ = ["join_programs"]


def join_programs(
    model: paddle.nn.Layer,
    points: Sequence[Mapping[str, int]],
    programs: Sequence[Program],
    tables: Sequence[Table],
) -> Graph:
    """Returns the graph of a model.

    Args:
        model: Whose.
        points: Of `graph.points_of`.
        programs: What it did at these.
        tables: Of its Embeddings, whose cuts are inputs of the programs.

    Raises:
        TraceError: It did not do the same at each, or a size is of no form that is
            known.
    """
    _check_alike(points, programs)
    program, parts = programs[0], Parts(model)
    warnings: list[str] = []
    shapes = _Shapes(points, programs, warnings)
    tensors = [
        Tensor(name, shapes.of(number), each.dtype, each.is_parameter, each.needs_gradient)
        for number, (name, each) in enumerate(zip(_names(program), program.tensors, strict=True))
    ]
    inputs = {tensors[number].name: tensors[number] for number in program.inputs}
    calls = _sparse_calls(model, parts, tables, inputs)
    part = parts.root
    for op in program.ops:
        part = parts.of(op.path, part)
        calls.append(
            Call(
                kind=op.kind,
                inputs=tuple(tensors[number] for number in op.inputs),
                outputs=tuple(tensors[number] for number in op.outputs),
                attributes=op.attributes,
                layer=part,
                path=op.path,
                source=op.source,
            )
        )
    return build_graph(
        parts.root,
        calls,
        inputs=list(inputs.values()),
        outputs=[tensors[number] for number in program.outputs],
        tables=tables,
        parameters=[tensor for tensor in tensors if tensor.is_parameter],
        warnings=warnings,
    )


def _check_alike(points: Sequence[Mapping[str, int]], programs: Sequence[Program]) -> None:
    first = programs[0]
    for point, program in zip(points, programs, strict=True):
        op = _first_difference(first.ops, program.ops)
        if op is not None:
            raise TraceError(
                f"a model does the same at each batch, got {op.kind} at {op.source} with "
                f"{dict(point)} but not with {dict(points[0])}, or the other way round; loop over "
                "what does not depend on the batch",
                source=op.source,
            )


def _first_difference(
    ops: tuple[ProgramOp, ...], others: tuple[ProgramOp, ...]
) -> ProgramOp | None:
    for op, other in zip(ops, others, strict=False):
        if (op.kind, op.inputs, op.outputs) != (other.kind, other.inputs, other.outputs):
            return other
    shorter, longer = sorted((ops, others), key=len)
    return longer[len(shorter)] if len(longer) > len(shorter) else None


class _Shapes:
    """Finds how shapes depend on the batch."""

    def __init__(
        self,
        points: Sequence[Mapping[str, int]],
        programs: Sequence[Program],
        warnings: list[str],
    ) -> None:
        self._points, self._programs, self._warnings = points, programs, warnings
        ops = programs[0].ops
        self._maker = {number: op for op in ops for number in op.outputs}
        self._known: dict[int, Shape] = {}
        self._sizes: dict[tuple[int, ...], Size | None] = {}  # few differ

    def of(self, number: int) -> Shape:
        """Returns the shape of a tensor."""
        if number not in self._known:
            shapes = (program.tensors[number].shape for program in self._programs)
            dims = enumerate(zip(*shapes, strict=True))
            self._known[number] = tuple(self._size(number, dim, values) for dim, values in dims)
        return self._known[number]

    def _size(self, number: int, dim: int, values: tuple[int, ...]) -> Size:
        op = self._maker.get(number)
        where = f"what {op.kind} at {op.source} makes" if op else f"tensor {number}"
        if -1 in values:
            # At most as many as its input has, in what Paddle has of such ops.
            shape = self.of(op.inputs[0]) if op and op.inputs else ()
            guess = shape[0] if shape else BATCH
            self._warnings.append(
                f"only a run tells the size of dim {dim} of {where}; counted as {guess}"
            )
            return guess
        if values not in self._sizes:
            self._sizes[values] = fit_size(self._points, values)
        size = self._sizes[values]
        if size is None:
            raise TraceError(
                f"a size is a polynomial of degree 2 in the batch, got {list(values)} in dim {dim} "
                f"of {where} at batches {[point['batch'] for point in self._points]}",
                source=op.source if op else "",
            )
        return size


def _names(program: Program) -> list[str]:
    """Returns a unique name of each tensor: for what an op makes, its path and kind."""
    names = [tensor.name for tensor in program.tensors]
    for op in program.ops:
        for number in op.outputs:
            names[number] = f"{op.path}.{op.kind}" if op.path else op.kind
    taken: dict[str, int] = {}
    for number, name in enumerate(names):
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            names[number] = f"{name}:{taken[name]}"
    return names


def _sparse_calls(
    model: paddle.nn.Layer,
    parts: Parts,
    tables: Sequence[Table],
    inputs: dict[str, Tensor],
) -> list[Call]:
    """Returns the pulls, and the pools that make the cuts; keys take these's place in `inputs`."""
    paths = {id(layer): path for path, layer in model.named_sublayers(include_self=True)}
    embeddings = find_embeddings(model)
    calls: list[Call] = []
    for table in tables:
        layer = embeddings[table.name]
        cuts = {name: slots for name, slots in _cuts(table, layer).items() if name in inputs}
        if not cuts:
            continue  # nothing reads it
        path = paths[id(layer)]
        keys = {slot: Tensor(f"keys.{slot}", (table.keys(slot),), "uint64") for slot in table.slots}
        shape = (table.rows, Size.of(table.dim))
        rows = Tensor(f"{table.name}.rows", shape, needs_gradient=True)
        at: Any = {"layer": parts.of(path), "path": path, "table": table.name}
        calls.append(Call("pull", tuple(keys.values()), (rows,), {}, **at))
        for name, slots in cuts.items():
            read = (rows, *(keys[slot] for slot in slots))
            calls.append(Call("pool", read, (inputs.pop(name),), {"slots": ",".join(slots)}, **at))
        inputs |= {tensor.name: tensor for tensor in keys.values()}
    return calls


def _cuts(table: Table, layer: Embedding) -> dict[str, tuple[str, ...]]:
    """Returns what can be read of an Embedding, and the slots that are in it."""
    pooled = tuple(slot for slot in layer.slots if slot not in layer.unpooled_slots)
    single = {cut_name(table.name, slot): (slot,) for slot in layer.slots}
    return {cut_name(table.name): pooled, **single}
