"""Addresses: where the servers and dense workers of a plan are reached."""

from collections.abc import Iterator
from dataclasses import replace

from hetero_pipe.cluster import Cluster
from hetero_pipe.plan import Plan

__all__ = ["addressed"]

SERVER_PORT, DENSE_PORT = 7000, 7500


def addressed(plan: Plan, cluster: Cluster) -> Plan:
    """Returns a plan with HOST:PORT of each of its servers and dense workers.

    A machine is reached at its address in the cluster, else by its name. Ports count
    up from 7000 for servers and from 7500 for dense workers.
    """
    servers = tuple(_addresses(plan, cluster, "server", SERVER_PORT))
    dense = tuple(_addresses(plan, cluster, "dense", DENSE_PORT))
    tables = tuple(
        replace(table, servers=servers) if table.home == "host" else table for table in plan.tables
    )
    return replace(plan, tables=tables, workers=replace(plan.workers, dense=dense))


def _addresses(plan: Plan, cluster: Cluster, role: str, port: int) -> Iterator[str]:
    for processes in plan.processes_of(role):
        host = cluster.host(processes.host)
        reached = host.addresses or host.names
        for machine in reached[: processes.machines]:
            yield from (f"{machine}:{port + i}" for i in range(processes.per_machine))
