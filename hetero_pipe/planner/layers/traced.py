"""The stack of a traced model on a cluster: its layers, and the devices that may run them."""

from hetero_pipe.cost import CostModel, cut_bytes
from hetero_pipe.errors import PlanError
from hetero_pipe.graph import Graph, Layer
from hetero_pipe.planner.layers.place import WIDTHS, Place, tables_of
from hetero_pipe.planner.layers.stack import LayerStack, StackLayer

__all__ = ["assumed_of", "stack_of"]


def stack_of(
    model: CostModel, *, batch: int, mode: str = "bounded", wire: str = "float32"
) -> LayerStack:
    """Returns the layers of a model's graph, and the devices of its cluster that may run them.

    A type is `HOST/cpu`, of which a unit is a core, or `HOST/gpu`, of which it is a GPU; a worker
    has one unit. Each works on batches of its own, so units share all that a step takes: k
    of them take a sample 1 / k of the time. What depends on how many there are is as of all
    that there are: replicas of the dense part that are averaged, machines that have rows
    of one another.

    What is predicted of a plan with all layers on a type is divided among them:

    - A dense layer takes its ops, forward and backward, and the optimizer of its parameters,
      all by one factor, with which the layers together take what the dense stage does: 1, unless
      that was measured beside others, corrected, or stated. Of an average of gradients
      it has its share of their bytes.
    - A sparse layer on cores is pulled and pushed as by workers there, in requests of its own,
      from a server on each machine there: cores do the work of both ends, and rows cross to
      workers on other machines. On accelerators, its rows are shared out over them. Of the routing
      of a batch it has its share of the keys.
    - The first layer also reads the batch.
    - What cores of an accelerator's host do beside it counts as communication, for they do it
      meanwhile; the one that feeds it is not taken from those that there are.
    - What crosses behind a layer counts twice the larger way, by what a link carries both ways,
      as they are at once. A unit has its share of what can leave its machine.
    - Rows need what they do in a table, and each unit holds the parameters, gradients, optimizer
      state and activations of its layers.

    The price of a host is shared evenly by its devices, its CPU being one, and there by its
    cores; 0 stands for one that is not known.

    Args:
        model: Has the cluster, and the workload with its graph.
        batch: Samples of a worker's step.
        mode: One of `hetero_pipe.plan.MODES`: it says how often replicas are averaged.
        wire: One of `hetero_pipe.plan.WIRES`, as which floats cross between stages.

    Raises:
        PlanError: No device has memory for a worker's process.
    """
    graph = model.workload.at(batch)
    places = _places(model, graph, batch=batch, mode=mode)
    costs = [place.costs() for place in places]
    layers = tuple(
        StackLayer(
            layer.name,
            "sparse" if tables_of(graph, layer) else "dense",
            compute=tuple(cost[i].compute / batch for cost in costs),
            comm=tuple(cost[i].comm / batch for cost in costs),
            cut_bytes=_crossing(graph, batch, layer, width=WIDTHS[wire]) / batch,
            shared_bytes=tuple(cost[i].rows_bytes for cost in costs),
            own_bytes=_own_bytes(graph, batch, layer, state=model.workload.dense_state),
        )
        for i, layer in enumerate(graph.layers)
    )
    name = f"{graph.name}, batches of {batch}"
    return LayerStack(name, layers, tuple(place.type_of(wire) for place in places))


def assumed_of(model: CostModel, *, batch: int) -> tuple[str, ...]:
    """Returns what of a stack's costs was not measured, for people.

    Raises:
        PlanError: As `stack_of`.
    """
    places = _places(model, model.workload.at(batch), batch=batch, mode="bounded")
    return tuple(dict.fromkeys(each for place in places for each in place.assumed))


def _places(model: CostModel, graph: Graph, *, batch: int, mode: str) -> list[Place]:
    places = [
        Place(model, graph, host, device, batch=batch, mode=mode)
        for host in model.cluster.hosts
        for device in host.devices
    ]
    if found := [place for place in places if place.memory > 0]:
        return found
    raise PlanError(
        "a worker's process needs memory, got too little of each device of the cluster; add "
        "memory, or hosts with fewer cores"
    )


def _crossing(graph: Graph, batch: int, layer: Layer, *, width: int) -> float:
    """Returns the bytes that cross behind a layer, both ways as the larger one."""
    if layer is graph.layers[-1]:
        return 0.0
    # What needs no gradient does not come back, so there is never less on the way there.
    return 2 * cut_bytes(graph, batch, layer.name, width=width)


def _own_bytes(graph: Graph, batch: int, layer: Layer, *, state: int) -> float:
    """Returns the bytes of what a unit holds for a layer, rows of tables aside."""
    read = {name for op in graph.ops_of(layer.name) for name in op.inputs}
    parameters = sum(
        float(each.bytes.at({})) * (2 + state if each.needs_gradient else 1)
        for each in graph.parameters
        if each.name in read
    )
    values = graph.values(batch)
    # Those of a batch, and their gradients.
    rows = sum(2 * 4 * table.dim * table.rows.at(values) for table in tables_of(graph, layer))
    return parameters + graph.activation_bytes(batch, layer.name) + rows
