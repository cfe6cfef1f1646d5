"""Roles: which of a plan's processes do what, and on which machines."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from hetero_pipe.cluster import Cluster
from hetero_pipe.errors import PlanError
from hetero_pipe.plan import Plan, ProcessPlan

__all__ = ["Roles"]


@dataclass(frozen=True)
class Roles:
    """The processes of a plan by what they do.

    Attributes:
        processes: Each role once.

    Raises:
        PlanError: They do not make up a job.
    """

    processes: tuple[ProcessPlan, ...]

    def __post_init__(self) -> None:
        roles = sorted(each.role for each in self.processes)
        workers = [role for role in roles if role != "server"]
        if len(set(roles)) < len(roles) or workers not in (["whole"], ["dense", "sparse"]):
            raise PlanError(
                "processes are whole workers, or sparse and dense ones, and servers, all of a "
                f"role on one kind of host, got {', '.join(roles) or 'none'}"
            )
        for processes in self.processes:
            if processes.role in ("server", "sparse") and processes.device != "cpu":
                raise PlanError(f"servers and sparse workers compute on the cpu, got {processes}")

    @staticmethod
    def of(plan: Plan, cluster: Cluster) -> "Roles":
        """Returns those of a plan; all are on the first host if it does not say where.

        Raises:
            ConfigError: The cluster has no such host.
            PlanError: A host has too few machines or devices for them, or they do not
                make up a job.
        """
        roles = Roles(plan.processes or _on_one_machine(plan, cluster))
        _check_room(roles.processes, cluster)
        on_devices = [table.name for table in plan.tables if table.home != "host"]
        if roles.reader.role == "sparse" and on_devices:
            raise PlanError(
                "sparse workers pull from hosts and send to dense ones, got the tables "
                f"{', '.join(on_devices)} on devices; use whole workers"
            )
        on_hosts = [table.name for table in plan.tables if table.home == "host"]
        if roles.num_readers > 1 and on_hosts and roles.servers is None:
            raise PlanError(
                f"{roles.num_readers} workers share the tables {', '.join(on_hosts)} on servers, "
                "got no process of role server; add one, or give the tables another home"
            )
        return roles

    def between(self, fewest: "Roles", most: "Roles") -> Iterator["Roles"]:
        """Yields these with each number of replicas of the dense part between two others'.

        On a machine, these are doubled from the least, and the most.
        """
        few, many = fewest.dense, most.dense
        per = {few.per_machine << i for i in range(many.per_machine.bit_length())}
        per = {each for each in per if each < many.per_machine} | {many.per_machine}
        for machines, per_machine in product(range(few.machines, many.machines + 1), sorted(per)):
            dense = replace(self.dense, machines=machines, per_machine=per_machine)
            yield Roles(tuple(dense if p is self.dense else p for p in self.processes))

    def _of(self, *roles: str) -> ProcessPlan | None:
        return next((each for each in self.processes if each.role in roles), None)

    def _count(self, *roles: str) -> int:
        return sum(each.count for each in self.processes if each.role in roles)

    @cached_property
    def reader(self) -> ProcessPlan:
        """Those that read: whole or sparse workers."""
        found = self._of("whole", "sparse")
        assert found is not None, "checked when they were made"
        return found

    @cached_property
    def dense(self) -> ProcessPlan:
        """Those that have the dense part: dense or whole workers."""
        return self._of("dense") or self.reader

    @cached_property
    def servers(self) -> ProcessPlan | None:
        """None if the tables are in the workers' processes."""
        return self._of("server")

    @cached_property
    def num_readers(self) -> int:
        """Whole or sparse workers."""
        return self._count("whole", "sparse")

    @cached_property
    def num_dense(self) -> int:
        """Replicas of the dense part."""
        return self._count(self.dense.role)

    @cached_property
    def num_servers(self) -> int:
        """Of all machines; 0 if the tables are in the workers' processes."""
        return self._count("server")

    @property
    def readers_per_dense(self) -> float:
        """Batches that a replica of the dense part trains in one step of the readers."""
        return self.num_readers / self.num_dense


def _on_one_machine(plan: Plan, cluster: Cluster) -> tuple[ProcessPlan, ...]:
    host, device = cluster.hosts[0].name, plan.stage("dense").device
    group, workers = device.partition(":")[0], plan.workers
    found = []
    if plan.servers:
        found.append(ProcessPlan("server", host, "cpu", 1, len(plan.servers)))
    if workers.dense:
        found.append(ProcessPlan("sparse", host, "cpu", 1, workers.num_readers))
        found.append(ProcessPlan("dense", host, group, 1, len(workers.dense)))
    else:
        found.append(ProcessPlan("whole", host, group, 1, workers.num_readers))
    return tuple(found)


def _check_room(processes: tuple[ProcessPlan, ...], cluster: Cluster) -> None:
    taken: Counter[tuple[str, str]] = Counter()
    for each in processes:
        host = cluster.host(each.host)
        if host.name != each.host:
            raise PlanError(
                f"processes are on a host of the cluster, got the machine {each.host!r} of host "
                f"{host.name!r} for role {each.role}; name the host"
            )
        if each.machines > host.count:
            raise PlanError(
                f"host {host.name!r} has {host.count} machines, got a plan with role {each.role} "
                f"on {each.machines}; put more processes on each, or use another host"
            )
        devices = {device.name: device for device in host.devices}
        if each.device not in devices:
            raise PlanError(
                f"host {host.name!r} has the devices {', '.join(devices)}, got role {each.role} "
                f"on {each.device!r}"
            )
        taken[host.name, each.device] += each.per_machine
        count = devices[each.device].count
        if each.device != "cpu" and taken[host.name, each.device] > count:
            raise PlanError(
                f"a machine of host {host.name!r} has {count} of {each.device!r}, one for each "
                f"process, got a plan with {taken[host.name, each.device]} processes on each; use "
                "more machines"
            )
