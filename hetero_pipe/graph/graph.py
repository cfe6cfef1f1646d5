"""Graph: what a model computes, on a batch of any size."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from hetero_pipe.codec import decode, encode
from hetero_pipe.errors import ConfigError
from hetero_pipe.graph.layer import Layer
from hetero_pipe.graph.op import Cost, Op
from hetero_pipe.graph.size import Size, total
from hetero_pipe.graph.table import Table, keys_symbol
from hetero_pipe.graph.tensor import Tensor

__all__ = ["Graph"]


@dataclass(frozen=True, repr=False)
class Graph:
    """The ops of a model in an order in which they can run. Frozen; to and from JSON.

    Sizes are polynomials over `batch`, `keys.SLOT` (keys of a batch in a slot
    with any number a sample) and `rows.TABLE` (distinct rows of a batch); `at`
    puts in what they are.

    Attributes:
        name: Of the model.
        tensors: All that its ops read and make, and parameters that none reads.
        ops: What an op reads is made before it. The pushes come last: the input
            of one is the pulled rows, whose gradients it applies.
        inputs: Names of the tensors that come from outside.
        outputs: Names of those that the model returns, or of the loss.
        layers: In order; each op is in one.
        tables: From which it pulls.
        warnings: What a cost is not told well of, and where.

    Raises:
        ConfigError: The parts do not fit together.
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layers: tuple[Layer, ...]
    tables: tuple[Table, ...] = ()
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.ops)} ops in {len(self.layers)} layers)"

    def __post_init__(self) -> None:
        for what, names in (
            ("tensor", [t.name for t in self.tensors]),
            ("op", [op.name for op in self.ops]),
            ("layer", [layer.name for layer in self.layers]),
            ("table", [table.name for table in self.tables]),
        ):
            if len(set(names)) != len(names):
                twice = sorted({name for name in names if names.count(name) > 1})
                raise ConfigError(f"a graph names each {what} once, got {', '.join(twice)} twice")
        made = {t.name for t in self.tensors if t.is_parameter} | set(self.inputs)
        for op in self.ops:
            missing = [name for name in op.inputs if name not in made]
            if missing:
                raise ConfigError(
                    f"an op reads what was made before it, got {op.name} that reads "
                    f"{', '.join(missing)}"
                )
            made |= set(op.outputs)
        unknown = (made | set(self.outputs)) - self._by_name.keys()
        if unknown or not set(self.outputs) <= made:
            raise ConfigError(
                "inputs, outputs and what ops make are tensors of the graph, got "
                f"{', '.join(sorted(unknown or set(self.outputs) - made))}"
            )
        self._check_layers()

    def _check_layers(self) -> None:
        layer_of = {name: layer.name for layer in self.layers for name in layer.ops}
        if sum(len(layer.ops) for layer in self.layers) != len(self.ops) or any(
            layer_of.get(op.name) != op.layer for op in self.ops
        ):
            raise ConfigError(
                f"each op is in the one layer that it names, got {len(self.ops)} ops and layers of "
                f"{', '.join(f'{layer.name} ({len(layer.ops)})' for layer in self.layers)}"
            )
        tables = {table.name for table in self.tables}
        strays = {op.table for op in self.ops if op.table} - tables
        if strays:
            raise ConfigError(
                f"ops pull from the tables {', '.join(sorted(tables))}, got {', '.join(strays)}"
            )

    # -------------------------------------------------------------- parts

    @cached_property
    def _by_name(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def _kept(self) -> dict[str | None, Size]:
        """By layer, or None for all, what is kept for the backward, once it is found."""
        return {}

    @cached_property
    def _ops(self) -> dict[str, Op]:
        return {op.name: op for op in self.ops}

    def tensor(self, name: str) -> Tensor:
        """Returns the tensor of a name.

        Raises:
            ConfigError: There is none.
        """
        if name not in self._by_name:
            raise ConfigError(f"the graph of {self.name} has no tensor {name!r}")
        return self._by_name[name]

    @cached_property
    def kinds(self) -> dict[str, frozenset[str]]:
        """By layer, in order, of what kinds its ops are."""
        return {
            layer.name: frozenset(self._ops[name].kind for name in layer.ops)
            for layer in self.layers
        }

    def ops_of(self, layer: str) -> tuple[Op, ...]:
        """Returns the ops of a layer.

        Raises:
            ConfigError: There is none of that name.
        """
        return tuple(self._ops[name] for name in self.layers[self._index(layer)].ops)

    def table(self, name: str) -> Table:
        """Returns the table of a name.

        Raises:
            ConfigError: There is none.
        """
        for table in self.tables:
            if table.name == name:
                return table
        raise ConfigError(
            f"the graph of {self.name} has tables {', '.join(t.name for t in self.tables)}, "
            f"got {name!r}"
        )

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """What the model holds from step to step, buffers too; tables aside."""
        return tuple(tensor for tensor in self.tensors if tensor.is_parameter)

    @property
    def unknown_ops(self) -> tuple[Op, ...]:
        """The ops whose cost is that of their bytes."""
        return tuple(op for op in self.ops if not op.is_known)

    # -------------------------------------------------------------- costs

    def values(self, batch: int) -> dict[str, int | float]:
        """Returns what the symbols of its sizes are at a batch."""
        found: dict[str, int | float] = {"batch": batch}
        for table in self.tables:
            found |= table.values(batch)
        return found

    def forward(self, layer: str | None = None) -> Cost:
        """Returns the cost of the forward, of one layer or of all."""
        return _sum([op.forward for op in self._selected(layer)])

    def backward(self, layer: str | None = None) -> Cost:
        """Returns the cost of the backward and of the pushes, of one layer or of all."""
        return _sum([op.backward for op in self._selected(layer)])

    def flops(self, batch: int, layer: str | None = None) -> float:
        """Returns the FLOPs of a step, forward and backward, of one layer or of all."""
        size = self.forward(layer).flops + self.backward(layer).flops
        return size.at(self.values(batch))

    def parameter_bytes(self, layer: str | None = None) -> int:
        """Returns the bytes of parameters and buffers: those that a layer reads, or all."""
        if layer is None:
            return sum(int(tensor.bytes.at({})) for tensor in self.parameters)
        names = {name for op in self.ops_of(layer) for name in op.inputs}
        return sum(int(t.bytes.at({})) for t in self.parameters if t.name in names)

    def activation_bytes(self, batch: int, layer: str | None = None) -> float:
        """Returns the bytes that a forward leaves for the backward, of one layer or of all.

        Inputs and what ops made, each memory once, parameters aside. A layer's are
        those that its backward reads: two layers may keep one tensor.
        """
        if layer not in self._kept:
            kept = {self._memory_of(name) for op in self._selected(layer) for name in op.saved}
            tensors = (self._by_name[name] for name in kept)
            self._kept[layer] = total(t.bytes for t in tensors if not t.is_parameter)
        return self._kept[layer].at(self.values(batch))

    def varying_bytes(self, batch: int) -> float:
        """Returns the bytes of activations that are of another size in each batch.

        They go with the keys of slots that have several a sample.
        """
        values = self.values(batch)
        symbols = {keys_symbol(slot) for table in self.tables for slot in table.slots}
        fixed = values | dict.fromkeys(symbols & values.keys(), 0)
        whole = self.activation_bytes(batch)
        return whole - self._kept[None].at(fixed)

    def cut(self, layer: str) -> tuple[Tensor, ...]:
        """Returns the tensors that cross if the model is cut after a layer.

        They are there by then, and are read later or returned: inputs of the graph
        too, since the first layer is where the reader is. A view of a tensor is
        that tensor. Their gradients come back, where they need one.
        """
        last = self._index(layer)
        index_of = {name: i for i, each in enumerate(self.layers) for name in each.ops}
        before = set(self.inputs)
        for op in self.ops:
            if index_of[op.name] <= last:
                before |= set(op.outputs)
        later = [name for op in self.ops if index_of[op.name] > last for name in op.inputs]
        later += self.outputs if last + 1 < len(self.layers) else ()
        crossing = dict.fromkeys(self._memory_of(name) for name in later if name in before)
        return tuple(self._by_name[name] for name in crossing)

    def with_data(
        self,
        *,
        keys: Mapping[str, float] | None = None,
        distinct: Mapping[str, float] | None = None,
    ) -> "Graph":
        """Returns the graph on other data.

        Args:
            keys: By slot, the mean number of keys a sample. A slot that was traced
                with one in every sample keeps it.
            distinct: By table, distinct rows by keys of a batch.

        Raises:
            ConfigError: A slot or a table is not the graph's, or a value out of range.
        """
        keys, distinct = keys or {}, distinct or {}
        slots = {slot for table in self.tables for slot in table.slots}
        strays = (keys.keys() - slots) | (distinct.keys() - {table.name for table in self.tables})
        if strays:
            raise ConfigError(
                f"the graph of {self.name} has slots {', '.join(sorted(slots))} and tables "
                f"{', '.join(t.name for t in self.tables)}, got {', '.join(sorted(strays))}"
            )
        tables = tuple(
            replace(
                table,
                slots={slot: keys.get(slot, mean) for slot, mean in table.slots.items()},
                distinct=distinct.get(table.name, table.distinct),
            )
            for table in self.tables
        )
        return replace(self, tables=tables)

    # -------------------------------------------------------------- text

    def to_json(self) -> str:
        """Returns the graph as JSON, its sizes as text."""
        return json.dumps(encode(self))

    @staticmethod
    def from_json(text: str) -> "Graph":
        """Returns the graph that `to_json` wrote.

        Raises:
            ConfigError: The text is no graph.
        """
        try:
            return decode(Graph, json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"a graph is JSON as Graph.to_json writes it, got {error}") from error

    # -------------------------------------------------------------- within

    def _selected(self, layer: str | None) -> tuple[Op, ...]:
        return self.ops if layer is None else self.ops_of(layer)

    def _index(self, layer: str) -> int:
        names = [each.name for each in self.layers]
        if layer not in names:
            raise ConfigError(
                f"the graph of {self.name} has layers {', '.join(names)}, got {layer!r}"
            )
        return names.index(layer)

    @cached_property
    def _viewed(self) -> dict[str, str]:
        return {out: op.inputs[0] for op in self.ops if op.is_view for out in op.outputs}

    def _memory_of(self, name: str) -> str:
        """Returns the tensor whose memory a tensor is."""
        while name in self._viewed:
            name = self._viewed[name]
        return name


def _sum(costs: list[Cost]) -> Cost:
    return Cost(
        total(cost.flops for cost in costs),
        total(cost.bytes_read for cost in costs),
        total(cost.bytes_written for cost in costs),
    )
