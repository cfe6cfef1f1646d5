"""build_graph: calls, as a tracer or a script lists them, become a Graph with costs."""

from collections import Counter
from collections.abc import Sequence

from hetero_pipe.errors import ConfigError
from hetero_pipe.graph.graph import Graph
from hetero_pipe.graph.layer import Layer
from hetero_pipe.graph.op import Cost, Op
from hetero_pipe.graph.rule import Call, Costs, cost_of
from hetero_pipe.graph.sparse import pool_costs, pull_costs, push_costs
from hetero_pipe.graph.table import Table
from hetero_pipe.graph.tensor import Tensor

__all__ = ["build_graph"]


def build_graph(
    name: str,
    calls: Sequence[Call],
    *,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    tables: Sequence[Table] = (),
    parameters: Sequence[Tensor] = (),
    warnings: Sequence[str] = (),
) -> Graph:
    """Returns the graph of a model's calls: named, costed by the rules, grouped into layers.

    A call to `pull` has no input but keys and makes the rows of its table; the
    push that applies their gradients is added here.

    Args:
        name: Of the model.
        calls: In the order in which they run.
        inputs: What comes from outside.
        outputs: What the model returns, or the loss.
        tables: Those that calls pull from.
        parameters: All of the model; calls may have more.
        warnings: What the tracer has to say.

    Raises:
        ConfigError: The calls make no graph.
    """
    by_table = {table.name: table for table in tables}
    names, layers = _Names(), _Layers()
    num_uses: Counter[str] = Counter()
    ops: list[Op] = []
    for call in calls:
        costs = _costs(call, by_table)
        ops.append(
            Op(
                name=names.of(f"{call.path}.{call.kind}" if call.path else call.kind),
                kind=call.kind,
                layer=layers.of(call.layer),
                inputs=tuple(t.name for t in call.inputs),
                outputs=tuple(t.name for t in call.outputs),
                attributes=dict(call.attributes),
                forward=costs.forward,
                backward=costs.backward + _sum_of_gradients(call, num_uses),
                saved=costs.saved,
                is_view=costs.is_view,
                is_known=costs.is_known,
                path=call.path,
                source=call.source,
                table=call.table,
            )
        )
    # By now each pull has a layer; its push goes there too.
    ops += [_push(op, by_table[op.table], names) for op in ops if op.kind == "pull"]
    tensors = dict.fromkeys([*inputs, *parameters])
    tensors |= dict.fromkeys(t for call in calls for t in (*call.inputs, *call.outputs))
    return Graph(
        name=name,
        tensors=tuple(tensors),
        ops=tuple(ops),
        inputs=tuple(t.name for t in inputs),
        outputs=tuple(t.name for t in outputs),
        layers=tuple(
            Layer(layer, tuple(op.name for op in ops if op.layer == layer))
            for layer in dict.fromkeys(op.layer for op in ops)
        ),
        tables=tuple(tables),
        warnings=(*warnings, *_unknown(ops)),
    )


class _Names:
    """Makes names unique: `relu`, `relu:2`."""

    def __init__(self) -> None:
        self._num: Counter[str] = Counter()

    def of(self, name: str) -> str:
        self._num[name] += 1
        return name if self._num[name] == 1 else f"{name}:{self._num[name]}"


class _Layers:
    """Names the runs of calls of one part."""

    def __init__(self) -> None:
        self._names = _Names()
        self._part: str | None = None
        self._name = ""

    def of(self, part: str) -> str:
        if part != self._part:
            self._part, self._name = part, self._names.of(part)
        return self._name


def _costs(call: Call, tables: dict[str, Table]) -> Costs:
    if not call.table:
        return cost_of(call)
    if call.table not in tables:
        raise ConfigError(
            f"calls pull from the tables {', '.join(tables)}, got {call.table!r} at {call.source}"
        )
    table = tables[call.table]
    if call.kind == "pull":
        return pull_costs(table)
    if call.kind == "pool":
        slots = str(call.attributes["slots"]).split(",")
        return pool_costs(call, table, tuple(slots))
    raise ConfigError(f"a call to a table is pull or pool, got {call.kind!r} of {call.table}")


def _push(pull: Op, table: Table, names: _Names) -> Op:
    return Op(
        name=names.of(f"{pull.path}.push" if pull.path else "push"),
        kind="push",
        layer=pull.layer,
        inputs=pull.outputs,
        outputs=(),
        backward=push_costs(table).backward,
        path=pull.path,
        source=pull.source,
        table=table.name,
    )


def _sum_of_gradients(call: Call, num_uses: Counter[str]) -> Cost:
    """Returns what each use of a tensor after its first adds: the sum of its gradients."""
    cost = Cost()
    if not any(t.needs_gradient for t in call.outputs):
        return cost
    for tensor in call.inputs:
        if tensor.needs_gradient:
            num_uses[tensor.name] += 1
            if num_uses[tensor.name] > 1:
                cost += Cost(tensor.numel, tensor.bytes * 2, tensor.bytes)
    return cost


def _unknown(ops: Sequence[Op]) -> list[str]:
    found: dict[str, list[Op]] = {}
    for op in ops:
        if not op.is_known:
            found.setdefault(op.kind, []).append(op)
    return [
        f"no rule tells the FLOPs of {kind}, so {len(those)} of them cost their bytes alone, the "
        f"first at {those[0].source or those[0].path or those[0].name}"
        for kind, those in found.items()
    ]
