"""What does a model compute? Ops, tensors, tables and layers, and what each op costs.

A `Graph` tells FLOPs, bytes and shapes on a batch of any size. It knows no
device and no second, runs nothing, and never sees Paddle: `nn.trace` makes one
of a model, `build_graph` one of a list of calls.
"""

from hetero_pipe.graph.build import build_graph
from hetero_pipe.graph.fit import fit_size, points_of
from hetero_pipe.graph.graph import Graph
from hetero_pipe.graph.layer import Layer
from hetero_pipe.graph.op import Attribute, Cost, Op
from hetero_pipe.graph.rule import RULES, Call, Rule
from hetero_pipe.graph.sharding import Partial, Placement, Replicate, Shard, Sharding
from hetero_pipe.graph.size import BATCH, ONE, ZERO, Shape, Size, product, total
from hetero_pipe.graph.table import Table, keys_symbol, rows_symbol
from hetero_pipe.graph.tensor import DTYPES, Tensor

__all__ = [
    "BATCH",
    "DTYPES",
    "ONE",
    "RULES",
    "ZERO",
    "Attribute",
    "Call",
    "Cost",
    "Graph",
    "Layer",
    "Op",
    "Partial",
    "Placement",
    "Replicate",
    "Rule",
    "Shape",
    "Shard",
    "Sharding",
    "Size",
    "Table",
    "Tensor",
    "build_graph",
    "fit_size",
    "keys_symbol",
    "points_of",
    "product",
    "rows_symbol",
    "total",
]
