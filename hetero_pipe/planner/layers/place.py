"""Place: what the layers of a model cost on the devices of a host."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hetero_pipe.cluster import Device, Host
from hetero_pipe.cost import CostModel, compute_rates, op_cost, optimizer_cost
from hetero_pipe.graph import Graph, Layer, Table, Tensor
from hetero_pipe.plan import Breakdown, Prediction
from hetero_pipe.planner.layers.stack import DeviceType
from hetero_pipe.planner.strategy import Strategy, Where

__all__ = ["WIDTHS", "LayerCost", "Place", "tables_of"]

TABLE_OPS = ("pull", "push")

WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a float as it is sent."""


@dataclass(frozen=True)
class LayerCost:
    """What a step of a layer costs a unit. Costs add.

    Attributes:
        compute: Seconds of the core, or of the accelerator and the thread that feeds it.
        comm: Seconds of links meanwhile, and of cores beside an accelerator.
        rows_bytes: Of rows, on all units together.
    """

    compute: float = 0.0
    comm: float = 0.0
    rows_bytes: float = 0.0

    def __add__(self, other: "LayerCost") -> "LayerCost":
        return LayerCost(
            self.compute + other.compute,
            self.comm + other.comm,
            self.rows_bytes + other.rows_bytes,
        )


@dataclass(frozen=True)
class Place:
    """The CPU of each machine of a host, or its accelerators, as if they ran all layers.

    There is a worker on each unit: a core, or an accelerator. Where they are cores, there is a
    server on each machine; else rows are shared out over the accelerators.

    Attributes:
        model: Predicts it.
        graph: As a batch of its workload has it.
        host: One machine, or several.
        device: One of its devices.
        batch: Samples of a worker's step.
        mode: How workers keep step.
    """

    model: CostModel
    graph: Graph
    host: Host
    device: Device
    batch: int
    mode: str

    @property
    def is_cpu(self) -> bool:
        """Whether units are cores."""
        return self.device.kind == "cpu"

    @property
    def per_machine(self) -> int:
        """Units of a machine."""
        return self.host.cores if self.is_cpu else self.device.count

    @property
    def memory(self) -> float:
        """Bytes of a unit; of a core, what the process of its worker leaves."""
        constants = self.model.constants
        usable = self.device.memory * constants.usable_memory
        return usable / self.host.cores - constants.process if self.is_cpu else usable

    def type_of(self, wire: str) -> DeviceType:
        """Returns the type of its units, and what a stage takes one beside its layers."""
        cluster, machine = self.model.cluster, self.host.names[0]
        packed = self._packed(wire)
        nic = min((b.bandwidth for b in cluster.borders if b.machines == (machine,)), default=0.0)
        # Of a byte that crosses there or back: a link carries as much both ways at once.
        byte = self.per_machine / nic / 2 if nic else 0.0
        if not self.is_cpu:
            upload = cluster.path(machine, f"{machine}/{self.device.names[0]}").bandwidth
            # Cores of its host receive and send for it, each a message of its own.
            byte = max(byte, 1 / upload / 2) + packed * self.device.count / self.host.cores
        price = (self.host.price_per_hour or 0.0) / sum(each.count for each in self.host.devices)
        return DeviceType(
            f"{self.host.name}/{self.device.name}",
            self.device.kind,
            price / self.host.cores if self.is_cpu else price,
            count=self.host.count * self.per_machine,
            bandwidth=1 / byte if byte else float("inf"),
            memory=self.memory,
            step=self._dense_stage.labelled("step").on("worker", "device") / self.batch,
            call=self.model.constants.call_cpu / self.batch if self.is_cpu else 0.0,
            message_byte=packed if self.is_cpu else 0.0,
        )

    def _packed(self, wire: str) -> float:
        """Returns the seconds of a core for a byte of a cut as it is sent, at one of its ends."""
        rates = self.model.cluster.rates_of("cut_byte", host=self.host.name, dtype=wire)
        if not rates:
            return self.model.constants.message_byte
        # Measured is a byte as float32, at both ends.
        return rates[-1].value.median / 2 * WIDTHS["float32"] / WIDTHS[wire]

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was not measured, for people."""
        return self._whole.assumed

    def costs(self) -> list[LayerCost]:
        """Returns what each layer of the graph costs."""
        found = list(self._dense_costs())
        whole = self._whole
        found[0] += self._split(whole.stage("read").cost)
        found[0] += self._split(whole.stage("pull").whole_cost.labelled("upload"))
        all_keys = sum(map(self._num_keys, self.graph.tables)) or 1.0
        for i, layer in enumerate(self.graph.layers):
            if tables := tables_of(self.graph, layer):
                share = sum(map(self._num_keys, tables)) / all_keys
                found[i] += self._split(whole.stage("route").cost.times(share))
                found[i] += self._rows_cost(tables)
        return found

    def _num_keys(self, table: Table) -> float:
        return float(table.all_keys.at(self.graph.values(self.batch)))

    def _dense_costs(self) -> Iterator[LayerCost]:
        """Yields what each layer costs without tables."""
        own = _own_parameters(self.graph)
        ops = [self._ops_cost(layer, own[layer.name]) for layer in self.graph.layers]
        stage = self._dense_stage
        of_ops = stage.without("step")
        factor = of_ops.on("worker", "device") / (sum(cost.total for cost in ops) or 1.0)
        all_bytes = sum(_num_bytes(tensors) for tensors in own.values()) or 1.0
        for layer, cost in zip(self.graph.layers, ops, strict=True):
            averaged = stage.on("network") * _num_bytes(own[layer.name]) / all_bytes
            yield self._split(cost.times(factor)) + LayerCost(comm=averaged)

    def _ops_cost(self, layer: Layer, parameters: list[Tensor]) -> Breakdown:
        cluster, constants = self.model.cluster, self.model.constants
        rates = compute_rates(cluster, self.host.name, self.device.name, constants=constants)
        ops = [op for op in self.graph.ops_of(layer.name) if op.kind not in TABLE_OPS]
        values, state = self.graph.values(self.batch), self.model.workload.dense_state
        return Breakdown.sum(
            (
                *(op_cost(op, rates, values) for op in ops),
                optimizer_cost(parameters, rates, state=state),
            )
        )

    def _rows_cost(self, tables: tuple[Table, ...]) -> LayerCost:
        """Returns what it costs to have the rows of one layer's tables, and to pull and push them.

        Of what all workers send, links between machines take longest where it is narrowest.
        """
        found = self._predict(tables)
        pull, push = found.stage("pull").whole_cost, found.stage("push").whole_cost
        moved = max((p.amount for p in found.bounds if p.label.startswith("network")), default=0.0)
        names = {f"table {table.name}" for table in tables}
        memory = next(each for each in found.memory if each.device == self.device.name)
        held = sum(part.amount for part in memory.peak.parts if part.label in names)
        count = self.host.count if self.is_cpu else self.host.count * self.device.count
        cost = self._split(pull + push)
        upload = self._split(pull.labelled("upload"))  # of a batch, which the first layer has
        return LayerCost(cost.compute, cost.comm - upload.comm + moved, held * count)

    def _split(self, cost: Breakdown) -> LayerCost:
        """Returns what of a cost a unit computes, and what is done meanwhile.

        Rows cross the links of all cores of a machine at once, which are looked at apart.
        """
        if self.is_cpu:
            return LayerCost(cost.on("worker") + self.host.count * cost.on("server"))
        launches = cost.labelled("launch").on("worker")
        return LayerCost(
            cost.on("device") + launches, cost.on("worker") - launches + cost.on("network")
        )

    @cached_property
    def _whole(self) -> Prediction:
        return self._predict(self.graph.tables)

    @cached_property
    def _dense_stage(self) -> Breakdown:
        """What a step of the dense stage costs if there are no tables."""
        return self._predict(()).stage("dense").cost

    def _predict(self, tables: tuple[Table, ...]) -> Prediction:
        """Returns what is predicted of all workers there, if there are but these tables."""
        name = self.host.name
        where = [Where("whole", name, self.device.name)]
        counts = {"whole": (self.host.count, self.per_machine), "server": (self.host.count, 1)}
        if self.is_cpu and tables:
            where.append(Where("server", name, "cpu"))
        home = "host" if self.is_cpu else "sharded"
        homes = tuple((table.name, home) for table in tables)
        strategy = Strategy(tuple(where), self.mode, self.batch, homes=homes)
        plan = strategy.plan(self.graph, counts, staleness=0)
        return self.model.floor(plan, plan)


def tables_of(graph: Graph, layer: Layer) -> tuple[Table, ...]:
    """Returns the tables that a layer pulls from."""
    names = dict.fromkeys(op.table for op in graph.ops_of(layer.name) if op.kind in TABLE_OPS)
    return tuple(graph.table(name) for name in names)


def _own_parameters(graph: Graph) -> dict[str, list[Tensor]]:
    """Returns by layer the parameters that it is the first to read, of those with gradients."""
    readers = {name: op.layer for op in reversed(graph.ops) for name in op.inputs}
    own: dict[str, list[Tensor]] = {layer.name: [] for layer in graph.layers}
    for tensor in graph.parameters:
        if tensor.needs_gradient and tensor.name in readers:
            own[readers[tensor.name]].append(tensor)
    return own


def _num_bytes(tensors: list[Tensor]) -> float:
    return sum(float(tensor.bytes.at({})) for tensor in tensors)
