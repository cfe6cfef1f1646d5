"""What does a choice cost? Seconds, bytes and money of a plan, before anything runs.

Everything here is a pure function of a cluster, a graph and a plan: what was
measured comes with the cluster, what was not is assumed by `Constants` and named.
What runs have shown against it are `Corrections`, which it keeps in a file.
It never searches for a plan and never runs one.
"""

from hetero_pipe.cost.beside import OnCores, beside_factors
from hetero_pipe.cost.comm import (
    Members,
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    broadcast_time,
)
from hetero_pipe.cost.compute import op_cost, optimizer_cost
from hetero_pipe.cost.constants import Constants
from hetero_pipe.cost.correction import Correction, Corrections, StagePlace
from hetero_pipe.cost.correction_file import load_corrections, save_corrections
from hetero_pipe.cost.curve import Curve
from hetero_pipe.cost.data import workload_of
from hetero_pipe.cost.learn import learn
from hetero_pipe.cost.memory import cut_bytes, dense_memory, table_bytes
from hetero_pipe.cost.model import CostModel
from hetero_pipe.cost.rates import ComputeRates, compute_rates
from hetero_pipe.cost.roles import Roles
from hetero_pipe.cost.step import cores_time, gate_time, pipelined_step_time, step_bounds
from hetero_pipe.cost.table import Link, TableRates, pull_cost, push_cost, route_cost, table_rates
from hetero_pipe.cost.workload import Workload

__all__ = [
    "ComputeRates",
    "Constants",
    "Correction",
    "Corrections",
    "CostModel",
    "Curve",
    "Link",
    "Members",
    "OnCores",
    "Roles",
    "StagePlace",
    "TableRates",
    "Workload",
    "all_gather_time",
    "all_reduce_time",
    "all_to_all_time",
    "beside_factors",
    "broadcast_time",
    "compute_rates",
    "cores_time",
    "cut_bytes",
    "dense_memory",
    "gate_time",
    "learn",
    "load_corrections",
    "op_cost",
    "optimizer_cost",
    "pipelined_step_time",
    "pull_cost",
    "push_cost",
    "route_cost",
    "save_corrections",
    "step_bounds",
    "table_bytes",
    "table_rates",
    "workload_of",
]
