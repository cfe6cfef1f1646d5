"""CostModel: what a plan costs on a cluster: time, memory and money."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hetero_pipe.cluster import Cluster, Host
from hetero_pipe.cost.comm import Members, all_reduce_time
from hetero_pipe.cost.compute import TABLE_OPS, op_cost, optimizer_cost
from hetero_pipe.cost.constants import Constants
from hetero_pipe.cost.memory import (
    batch_bytes,
    dense_memory,
    device_rows_memory,
    rows_memory,
    rows_of_batch_bytes,
)
from hetero_pipe.cost.rates import ComputeRates, compute_rates
from hetero_pipe.cost.step import cores_time, gate_time, step_bounds
from hetero_pipe.cost.table import (
    Link,
    call_cost,
    pull_cost,
    push_cost,
    route_cost,
    table_rates,
)
from hetero_pipe.cost.workload import Workload
from hetero_pipe.errors import PlanError
from hetero_pipe.graph import Graph, Table
from hetero_pipe.plan import (
    Breakdown,
    MemoryPrediction,
    Plan,
    Prediction,
    ProcessPlan,
    StagePrediction,
)

__all__ = ["CostModel"]


@dataclass(frozen=True)
class CostModel:
    """Predicts plans for one workload on one cluster. Pure: a plan in, a prediction out.

    Attributes:
        cluster: With what was measured of it.
        workload: What is trained.
        constants: Stand in for what was not measured.
    """

    cluster: Cluster
    workload: Workload
    constants: Constants = field(default_factory=Constants)

    def predict(self, plan: Plan) -> Prediction:
        """Returns what a plan is expected to do.

        Raises:
            ConfigError: The cluster has no such host or device.
            PlanError: The plan has no batch size, or no workers.
        """
        if plan.batch_size is None:
            raise PlanError("a prediction is of a batch size, got batch_size=None")
        job = _Job(self, plan, self.workload.at(plan.batch_size), plan.batch_size)
        return job.predict()


@dataclass(frozen=True)
class _Job:
    """One plan, being predicted."""

    model: CostModel
    plan: Plan
    graph: Graph
    batch: int

    def predict(self) -> Prediction:
        stages = tuple(self._stages())
        bounds = step_bounds(dict(self._bounds(stages)))
        seconds = bounds[0].amount
        loads = dict(self._loads(stages))
        return Prediction(
            step_seconds=seconds,
            samples=float(self.batch * self._num_readers),
            stages=tuple(self._stretched(stage, loads, seconds) for stage in stages),
            memory=tuple(self._memory()),
            bounds=bounds,
            price_per_hour=self._price(),
            assumed=self._dense_rates.assumed,
        )

    # ------------------------------------------------------------ who is where

    @property
    def _processes(self) -> tuple[ProcessPlan, ...]:
        """The plan's, or all on the first host if it has none."""
        if self.plan.processes:
            return self.plan.processes
        host, device = self.model.cluster.hosts[0].name, self.plan.stage("dense").device
        group = device.partition(":")[0]
        workers = self.plan.workers
        found = []
        if self.plan.servers:
            found.append(ProcessPlan("server", host, "cpu", 1, len(self.plan.servers)))
        if workers.dense:
            found.append(ProcessPlan("sparse", host, "cpu", 1, workers.num_readers))
            found.append(ProcessPlan("dense", host, group, 1, len(workers.dense)))
        else:
            found.append(ProcessPlan("whole", host, group, 1, workers.num_readers))
        return tuple(found)

    def _of(self, *roles: str) -> ProcessPlan | None:
        return next((each for each in self._processes if each.role in roles), None)

    @property
    def _reader(self) -> ProcessPlan:
        found = self._of("whole", "sparse")
        if found is None:
            raise PlanError(f"a plan has workers that read, got {self._processes}")
        return found

    @property
    def _dense(self) -> ProcessPlan:
        return self._of("dense") or self._reader

    @property
    def _num_readers(self) -> int:
        return sum(each.count for each in self._processes if each.role in ("whole", "sparse"))

    @property
    def _num_dense(self) -> int:
        return sum(each.count for each in self._processes if each.role == self._dense.role)

    @property
    def _servers(self) -> ProcessPlan | None:
        return self._of("server")

    @property
    def _dense_rates(self) -> ComputeRates:
        return compute_rates(
            self.model.cluster,
            self._dense.host,
            self._dense.device,
            constants=self.model.constants,
        )

    def _link(self) -> Link:
        """Returns the way between a worker that reads and the servers."""
        servers, cluster, constants = self._servers, self.model.cluster, self.model.constants
        if servers is None:
            return Link()
        reader, host = cluster.host(self._reader.host), cluster.host(servers.host)
        is_near = reader.name == host.name
        path = None if is_near else cluster.path(reader.names[0], host.names[-1])
        calls = cluster.rates_of("grpc_call", host=reader.name)
        message_bytes = cluster.rates_of("grpc_byte", host=reader.name)
        return Link(
            num_servers=sum(each.count for each in self._processes if each.role == "server"),
            path=path,
            call=calls[0].value.median if calls else constants.call,
            message_byte=(
                message_bytes[-1].value.median if message_bytes else constants.message_byte
            ),
            skew=self.model.workload.skew,
        )

    # ------------------------------------------------------------ stages

    def _stages(self) -> Iterator[StagePrediction]:
        role = self._reader.role
        yield from (
            StagePrediction(name, role, cost, cost.total)
            for name, cost in (("read", self._read()), ("route", self._route()))
        )
        pull, push = self._exchange("pull"), self._exchange("push")
        yield StagePrediction("pull", role, pull, pull.total)
        dense = self._dense_cost()
        if role == "sparse":
            send = self._send()
            yield StagePrediction("send", role, send, send.total)
            yield StagePrediction("dense", "dense", dense, dense.total)
            yield StagePrediction("recv", role, send, send.total)
        else:
            yield StagePrediction("dense", role, dense, dense.total)
        yield StagePrediction("push", role, push, push.total)

    def _read(self) -> Breakdown:
        size = batch_bytes(self.graph, self.batch, num_dense=self.model.workload.num_dense)
        return Breakdown.of("read", size / 8 * self.model.constants.read_value, "worker")

    def _route(self) -> Breakdown:
        values = self.graph.values(self.batch)
        by_slots = {tuple(table.slots): table for table in self.graph.tables}
        keys = sum(float(table.all_keys.at(values)) for table in by_slots.values())
        return route_cost(keys, constants=self.model.constants)

    def _exchange(self, what: str) -> Breakdown:
        """Returns the cost of pulling or pushing all tables of a batch."""
        link, values, constants = self._link(), self.graph.values(self.batch), self.model.constants
        host = self._servers.host if self._servers else self._reader.host
        cost_of = pull_cost if what == "pull" else push_cost
        found = []
        for table in self._host_tables():
            rates = table_rates(self.model.cluster, host, table, constants=constants)
            found.append(cost_of(table, float(table.rows.at(values)), rates, link))
        if found:
            calls = call_cost(link.num_servers, call=link.call, call_cpu=constants.call_cpu)
            found.append(calls)
        if what == "pull" and not self._dense_rates.is_cpu and self._reader.role == "whole":
            found.append(self._copy("upload"))
        return Breakdown.sum(found)

    def _host_tables(self) -> Iterator[Table]:
        homes = {table.name: table.home for table in self.plan.tables}
        return (table for table in self.graph.tables if homes[table.name] == "host")

    def _copy(self, label: str) -> Breakdown:
        """Returns the cost of the batch's rows to the device, or of their gradients back."""
        cluster, dense = self.model.cluster, self._dense
        host = cluster.host(dense.host)
        size = rows_of_batch_bytes(self.graph, self.batch)
        if label == "upload":
            size += batch_bytes(self.graph, self.batch, num_dense=self.model.workload.num_dense)
        rates = cluster.rates_of(label, host=host.name, device=dense.device)
        if rates:
            return Breakdown.of(label, size / rates[-1].value.median, "network")
        path = cluster.path(host.names[0], f"{host.names[0]}/{dense.device}:0")
        return Breakdown.of(label, path.time(size), "network")

    def _dense_cost(self) -> Breakdown:
        rates, constants = self._dense_rates, self.model.constants
        values = self.graph.values(self.batch)
        on_device = {table.name for table in self.plan.tables if table.home != "host"}
        ops = [
            op
            for op in self.graph.ops
            if op.kind not in TABLE_OPS
            and not (self._reader.role == "sparse" and op.kind == "pool")
        ]
        found = [op_cost(op, rates, values, constants=constants) for op in ops]
        found.append(
            optimizer_cost(
                (t for t in self.graph.parameters if t.needs_gradient),
                rates,
                state=self.model.workload.dense_state,
                constants=constants,
            )
        )
        for op in self.graph.ops:  # a table on the device is an op there
            if op.kind in TABLE_OPS and op.table in on_device:
                found.append(op_cost(op, rates, values, constants=constants))
        if not rates.is_cpu and self._reader.role == "whole":
            found.append(self._copy("download"))
        if self.plan.workers.is_sync and self._num_dense > 1:
            found.append(Breakdown.of("all-reduce", self._all_reduce(), "network"))
        found.append(Breakdown.of("step", constants.step, "worker"))
        return Breakdown.sum(found)

    def _all_reduce(self) -> float:
        members = Members.of(self.model.cluster, self._dense)
        trained = sum(float(t.bytes.at({})) for t in self.graph.parameters if t.needs_gradient)
        return all_reduce_time(trained, members)

    def _send(self) -> Breakdown:
        """Returns the cost of what is pooled, to a dense worker, or of its gradients back."""
        values, constants = self.graph.values(self.batch), self.model.constants
        width = 1.0 if self.plan.workers.wire == "float32" else 0.5
        cut = {name for op in self.graph.ops if op.kind == "pool" for name in op.outputs}
        size = sum(float(self.graph.tensor(name).bytes.at(values)) for name in cut) * width
        size += self.batch * 4 * (self.model.workload.num_dense + 1)
        cluster = self.model.cluster
        reader, dense = cluster.host(self._reader.host), cluster.host(self._dense.host)
        rates = compute_rates(cluster, reader.name, "cpu", constants=constants)
        pools = [op for op in self.graph.ops if op.kind == "pool"]
        pooled = Breakdown.sum(op_cost(op, rates, values, constants=constants) for op in pools)
        found = [
            pooled.times(0.5),  # forward here, backward there
            Breakdown.of("message", size * constants.message_byte, "worker"),
            Breakdown.of("call", constants.call_cpu, "worker"),
        ]
        if reader.name != dense.name:
            path = cluster.path(reader.names[0], dense.names[-1])
            found.append(Breakdown.of("network", path.time(size), "network"))
        return Breakdown.sum(found)

    # ------------------------------------------------------------ bounds

    def _bounds(self, stages: tuple[StagePrediction, ...]) -> Iterator[tuple[str, float]]:
        per_dense = self._num_readers / self._num_dense
        for stage in stages:
            times = per_dense if stage.role == "dense" else 1.0
            yield stage.name, stage.cost.total * times
        if self.plan.workers.mode != "async":
            cycle = [s.cost.total for s in stages if s.name not in ("read", "route")]
            yield "gate", gate_time(cycle, self.plan.staleness)
        yield from ((f"cores of {host}", load) for host, load in self._loads(stages))
        yield from self._links(stages)

    def _loads(self, stages: tuple[StagePrediction, ...]) -> Iterator[tuple[str, float]]:
        """Yields the least time of a step by the cores of each host."""
        for host in self.model.cluster.hosts:
            costs = []
            for processes in self._processes:
                if processes.host != host.name:
                    continue
                for stage in stages:
                    if processes.role == "server":
                        times = self._num_readers / processes.machines
                        # Each server of a machine has its share of the same step.
                        total = stage.cost.on("server") * processes.per_machine
                        costs.append((Breakdown.of("server", total, "server"), times, ("server",)))
                    elif stage.role == processes.role:
                        times = processes.per_machine * (
                            self._num_readers / self._num_dense if stage.role == "dense" else 1.0
                        )
                        costs.append((stage.cost, times, ("worker",)))
            if costs:
                yield host.name, cores_time(costs, host.cores)

    def _links(self, stages: tuple[StagePrediction, ...]) -> Iterator[tuple[str, float]]:
        """Yields the least time of a step by the links that several processes share."""
        servers, reader = self._servers, self._reader
        # A link takes as much each way: rows come in while gradients go out.
        busy = max(
            sum(part.amount for part in stage.cost.parts if part.label == "network")
            for stage in stages
            if stage.role == reader.role
        )
        yield f"network of {reader.host}", busy * reader.per_machine
        if servers is not None and servers.host != reader.host:
            cluster = self.model.cluster
            path = cluster.path(
                cluster.host(servers.host).names[0], cluster.host(reader.host).names[-1]
            )
            size = rows_of_batch_bytes(self.graph, self.batch) * self._num_readers
            yield f"network of {servers.host}", size / servers.machines / path.bandwidth

    def _stretched(
        self, stage: StagePrediction, loads: dict[str, float], seconds: float
    ) -> StagePrediction:
        """Returns a stage as its clock will show it: longer where cores are short."""
        hosts = [each.host for each in self._processes if each.role == stage.role]
        load = max((loads[host] for host in hosts), default=0.0) / seconds
        # At a full load each stage waits for a core as long as it is on one, in the mean of the
        # others' shares; none waits on an idle machine.
        others = max(load - stage.cpu / seconds, 0.0) if seconds else 0.0
        return replace(stage, busy=stage.cost.total + stage.cpu * others * load)

    # ------------------------------------------------------------ memory and money

    def _memory(self) -> Iterator[MemoryPrediction]:
        constants, workload = self.model.constants, self.model.workload
        read_ahead = sum(stage.capacity for stage in self.plan.stages if stage.name != "push")
        pulled = rows_of_batch_bytes(self.graph, self.batch)
        read = batch_bytes(self.graph, self.batch, num_dense=workload.num_dense)
        in_flight = Breakdown.of("batches under way", read * (read_ahead + 5)) + Breakdown.of(
            "rows under way", pulled * 2 * (2 + self.plan.staleness)
        )
        for processes in self._processes:
            host = self.model.cluster.host(processes.host)
            if processes.role == "server":
                share = workload.skew / sum(
                    each.count for each in self._processes if each.role == "server"
                )
                peak = rows_memory(self.plan, workload, share=share, constants=constants)
                peak += Breakdown.of("process", constants.server_process)
                yield self._fits(processes, host, "cpu", peak.times(processes.per_machine))
                continue
            dense = dense_memory(self.graph, self.batch, state=workload.dense_state)
            dense += device_rows_memory(self.plan, workload)
            peak = Breakdown.of("process", constants.process)
            if processes.role != "dense":
                peak += in_flight
                if self._servers is None:
                    peak += rows_memory(self.plan, workload, share=1.0, constants=constants)
            if processes.role == "sparse":
                yield self._fits(processes, host, "cpu", peak.times(processes.per_machine))
                continue
            if processes.device == "cpu":
                peak += dense
            else:
                yield self._fits(processes, host, processes.device, dense)
            yield self._fits(processes, host, "cpu", peak.times(processes.per_machine))

    def _fits(
        self, processes: ProcessPlan, host: Host, device: str, peak: Breakdown
    ) -> MemoryPrediction:
        memory = host.memory
        if device != "cpu":
            memory = self.model.cluster.device(f"{host.names[0]}/{device}:0").memory
        capacity = memory * self.model.constants.usable_memory
        return MemoryPrediction(processes.role, host.name, device, peak, capacity)

    def _price(self) -> float | None:
        """Returns what the machines cost that are used, an hour; None if one has no price."""
        used: dict[str, int] = {}
        for processes in self._processes:
            used[processes.host] = max(used.get(processes.host, 0), processes.machines)
        total = 0.0
        for name, machines in used.items():
            price = self.model.cluster.host(name).price_per_hour
            if price is None:
                return None
            total += price * machines
        return total
