"""Stacks of the models of examples/ctr on clusters of presets, as the cost model predicts them."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from hetero_pipe.cluster import load_cluster
from hetero_pipe.cost import CostModel, Workload
from hetero_pipe.graph import Graph
from hetero_pipe.nn import BatchSpec, trace
from hetero_pipe.planner.layers import LayerStack, stack_of

sys.path.append(str(Path(__file__).parents[2] / "examples" / "ctr"))

from models import MODELS

HERE = Path(__file__).parent
CLUSTERS = ("one_a100", "a100", "h100_h200", "mixed")
BATCHES = (512, 4096)

# As Criteo's click logs: 26 slots with a key each, 13 dense columns. DIN also has a history.
SLOTS = ["movie", *(f"slot{i}" for i in range(25))]
NUM_DENSE = 13
HISTORY = 20.0  # keys of a sample
ROWS = 1e8  # of each table
DISTINCT = 0.3  # rows by keys of a batch


def load_traced(*, quick: bool) -> Iterator[tuple[str, LayerStack]]:
    """Yields clusters by name, and the stack of a model on each."""
    for name in CLUSTERS:
        cluster = load_cluster(HERE / "clusters" / f"{name}.toml")
        for model in list(MODELS)[::4] if quick else MODELS:
            cost = CostModel(cluster, _workload(model))
            for batch in BATCHES[1:] if quick else BATCHES:
                yield name, replace(stack_of(cost, batch=batch), name=f"{model}, {batch}")


@cache
def _workload(model: str) -> Workload:
    graph = _graph(model)
    shares = {table.name: DISTINCT for table in graph.tables}
    rows = {table.name: ROWS for table in graph.tables}
    return Workload(graph.with_data(distinct=shares), rows, num_dense=NUM_DENSE)


def _graph(model: str) -> Graph:
    keys = dict.fromkeys(SLOTS, 1.0) | ({"history": HISTORY} if model == "din" else {})
    return trace(MODELS[model](SLOTS, NUM_DENSE), BatchSpec(keys=keys, dense=NUM_DENSE))
