"""From a Plan to an Executor, and the plan that is taken when none is given."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from hetero_pipe.client import Client
from hetero_pipe.data import Batch
from hetero_pipe.errors import ConfigError, PlanError
from hetero_pipe.nn import (
    DenseStep,
    Device,
    Embedding,
    available_devices,
    current_device,
    find_embeddings,
)
from hetero_pipe.pipeline import Executor, Stage, StalenessGate
from hetero_pipe.plan import Plan, StagePlan, TablePlan, WorkersPlan
from hetero_pipe.trainer.device_tables import DeviceTables
from hetero_pipe.trainer.stages import (
    PredictStage,
    PullStage,
    PushStage,
    RouteStage,
    Trained,
    TrainStage,
)

__all__ = ["build_client", "build_prediction", "build_training", "check_plan", "default_plan"]


def default_plan(
    model: Any,  # a paddle.nn.Layer
    *,
    servers: Sequence[str] | None = None,
    staleness: int = 0,
    workers: WorkersPlan | None = None,
) -> Plan:
    """Returns the plan that a Trainer takes by itself: each stage once, on this host.

    Args:
        model: Its Embeddings are the tables.
        servers: HOST:PORT of the parameter servers; None keeps the tables in
            this process.
        staleness: How many of the latest pushes a pull may miss.
        workers: The training processes; by default, this one.

    Raises:
        ConfigError: Two Embeddings have one name, or `servers` is no list of them.
        PlanError: `staleness` is negative.
    """
    if isinstance(servers, str):
        raise ConfigError(f"servers is a list of HOST:PORT, got {servers!r}; write [{servers!r}]")
    if servers is not None and not servers:
        raise ConfigError("servers names at least one HOST:PORT, got none; None is embedded")
    # Reading is the stage whose time varies most, so it may run furthest ahead. Pulled rows are
    # what grows large; the gate, not the hand-off, is what holds pulls back.
    capacities = {"read": 4, "route": 2, "pull": 1 + max(staleness, 0), "dense": 1, "push": 16}
    device = current_device()
    return Plan(
        stages=tuple(
            StagePlan(name, device if name == "dense" else "cpu", capacity)
            for name, capacity in capacities.items()
        ),
        tables=tuple(
            TablePlan(name, layer.dim, layer.slots, tuple(servers or ()))
            for name, layer in find_embeddings(model).items()
        ),
        staleness=staleness,
        workers=workers or WorkersPlan(),
    )


def build_client(plan: Plan, *, device: Device, connect_timeout: float) -> Client:
    """Returns what holds the tables: a client, or in `cpu_only` and `gpu_only` the device.

    Args:
        plan: Its mode and its servers.
        device: Of the dense stage.
        connect_timeout: Seconds to wait for servers that are not there yet.

    Raises:
        ConfigError: The mode is another device's, or needs no servers and got some.
        ServerUnavailable: A server did not answer in time.
    """
    mode = plan.workers.mode
    if mode not in ("cpu_only", "gpu_only"):
        return Client(plan.servers, connect_timeout=connect_timeout)
    if plan.servers is not None:
        raise ConfigError(
            f"mode {mode} keeps the tables on the worker's device, got servers "
            f"{', '.join(plan.servers)}; name none, or take another mode"
        )
    if (device.name == "cpu") != (mode == "cpu_only"):
        raise ConfigError(
            f"mode {mode} trains on {'the CPU' if mode == 'cpu_only' else 'a GPU'}, got device "
            f"{device.name}; this machine has {', '.join(available_devices())}: name one by "
            "paddle.set_device before the model is made, or take another mode"
        )
    # It has all the methods that a trainer calls.
    return cast(Client, DeviceTables(device))


def build_training(
    plan: Plan,
    batches: Iterator[Batch],
    *,
    client: Client,
    dense: DenseStep,
    first_step: int,
    count: Callable[[int, Trained], Any],
) -> tuple[Executor, StalenessGate]:
    """Returns the executor of training steps and the gate that bounds its staleness.

    `count` is told each step that is applied, in step order; its results come out.
    """
    gate = StalenessGate(plan.staleness, first_step=first_step)
    stages: list[Stage] = [
        RouteStage(client, _slots(plan)),
        PullStage(client, insert=True, gate=gate, upload=dense.upload),
        TrainStage(dense),
        PushStage(client, gate, count),
    ]
    capacities = [stage.capacity for stage in plan.stages]
    return Executor(batches, stages, capacities=capacities, first_step=first_step), gate


def build_prediction(
    plan: Plan, batches: Iterator[Batch], *, client: Client, dense: DenseStep
) -> Executor:
    """Returns the executor of steps that predict: no row is created, nothing is pushed."""
    stages: list[Stage] = [
        RouteStage(client, _slots(plan)),
        PullStage(client, insert=False, gate=None, upload=dense.upload),
        PredictStage(dense),
    ]
    capacities = [stage.capacity for stage in plan.stages if stage.name != "push"]
    return Executor(batches, stages, capacities=capacities)


def _slots(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    return {table.name: table.slots for table in plan.tables}


def check_plan(plan: Plan, embeddings: Mapping[str, Embedding]) -> None:
    """Refuses a plan of other tables than the model's.

    Raises:
        PlanError: The names, dims or slots differ.
    """
    planned = {table.name: (table.dim, table.slots) for table in plan.tables}
    built = {name: (layer.dim, layer.slots) for name, layer in embeddings.items()}
    if planned != built:
        raise PlanError(f"a plan is of the model's tables, got {planned} planned and {built} built")
