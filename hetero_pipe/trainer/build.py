"""From a Plan to an Executor, and the plan that is taken when none is given."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hetero_pipe.client import Client
from hetero_pipe.data import Batch
from hetero_pipe.errors import ConfigError, PlanError
from hetero_pipe.nn import (
    Averager,
    DenseRows,
    DenseStep,
    Device,
    Embedding,
    Group,
    Loss,
    available_devices,
    current_device,
    find_embeddings,
    trace,
)
from hetero_pipe.pipeline import Executor, Stage, StalenessGate
from hetero_pipe.plan import Plan, Planning, StagePlan, TablePlan, WorkersPlan
from hetero_pipe.trainer.device_tables import DeviceTables
from hetero_pipe.trainer.elastic_stages import PushRangesStage, RouteWithDenseStage, TrainRowsStage
from hetero_pipe.trainer.leased import LeasedBatches, Place
from hetero_pipe.trainer.sparse import SparseWorker
from hetero_pipe.trainer.stages import (
    PredictStage,
    PullStage,
    PushStage,
    RouteStage,
    StepSaver,
    Trained,
    TrainStage,
    UploadBatch,
)
from ps_server.spans import SpanRing

__all__ = [
    "Teamwork",
    "build_client",
    "build_elastic",
    "build_prediction",
    "build_training",
    "check_plan",
    "choose_plan",
    "default_plan",
]

logger = logging.getLogger(__name__)


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
        servers: HOST:PORT of the parameter servers, or `["@FILE"]` of a file that
            names them; None keeps the tables in this process. Left alone in
            `cpu_only` and `gpu_only`.
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
    workers = workers or WorkersPlan()
    if servers and workers.has_own_tables:  # a launcher starts some for any mode
        logger.info(
            "mode %s keeps the tables on the worker's device; servers %s are left alone",
            workers.mode,
            ", ".join(servers),
        )
        servers = None
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
            TablePlan(
                name,
                layer.dim,
                layer.slots,
                tuple(servers or ()),
                home="device" if workers.has_own_tables else "host",
            )
            for name, layer in find_embeddings(model).items()
        ),
        staleness=staleness,
        workers=workers,
    )


def choose_plan(
    model: Any,  # a paddle.nn.Layer
    planning: Planning,
    *,
    loss: Loss | None,
) -> Plan:
    """Returns the plan that a planning chooses for a model.

    Raises:
        TraceError: The model cannot be traced.
        PlanError: No plan fits.
    """
    return planning.choose(trace(model, planning.sample, loss=loss))


@dataclass(frozen=True)
class Teamwork:
    """What ties the steps of one worker to those of the others.

    Attributes:
        group: Of the replicas that take each step together, if they do.
        averager: Of replicas that step by themselves, in other modes.
        is_stopping: Whether this worker takes no step more.
    """

    group: Group | None
    averager: Averager | None
    is_stopping: Callable[[], bool]


def build_client(
    plan: Plan, *, device: Device, connect_timeout: float, retry_seconds: float
) -> Client:
    """Returns what holds the tables: a client, or in `cpu_only` and `gpu_only` the device.

    Args:
        plan: Its mode and its servers.
        device: Of the dense stage.
        connect_timeout: Seconds to wait for servers that are not there yet.
        retry_seconds: To wait for a durable server that is away.

    Raises:
        ConfigError: The mode is another device's, or needs no servers and got some.
        ServerUnavailable: A server did not answer in time.
    """
    mode = plan.workers.mode
    if not plan.workers.has_own_tables:
        return Client(plan.servers, connect_timeout=connect_timeout, retry_seconds=retry_seconds)
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
    batches: Iterator[Batch | None],
    *,
    client: Client,
    dense: DenseStep | SparseWorker,
    first_step: int,
    count: Callable[[int, Trained], Any],
    team: Teamwork | None = None,
    saver: StepSaver | None = None,
    ring: SpanRing | None = None,
) -> tuple[Executor, StalenessGate]:
    """Returns the executor of training steps and the gate that bounds its staleness.

    `count` is told each step that is applied, in step order; its results come out.
    `team` is None for a worker alone. `saver` saves after some steps, of a whole worker
    alone or in step with all others. `ring` records what each stage does when.
    """
    mode = plan.workers.mode
    # In `async`, the hand-offs alone hold a pull back.
    staleness = sys.maxsize if mode == "async" else plan.staleness
    gate = StalenessGate(staleness, first_step=first_step, ring=ring)
    waits = team is not None and mode == "bounded"
    stages: list[Stage] = [
        RouteStage(client, _slots(plan)),
        PullStage(
            client,
            insert=True,
            gate=gate,
            staleness=plan.staleness if waits else None,
            upload=_upload_of(dense),
        ),
        *_training_stages(dense, team, saver, ring),
        PushStage(
            client,
            gate,
            count,
            is_part=team is not None and plan.workers.is_sync,
            saver=saver,
        ),
    ]
    capacities = _capacities(plan, stages)
    executor = Executor(batches, stages, capacities=capacities, first_step=first_step, ring=ring)
    return executor, gate


def build_elastic(
    plan: Plan,
    batches: LeasedBatches,
    *,
    client: Client,
    dense: DenseStep,
    rows: DenseRows,
    first_step: int,
    count: Callable[[int, Place, Trained], Any],
    ring: SpanRing | None = None,
) -> tuple[Executor, StalenessGate]:
    """Returns the executor of leased batches and the gate that bounds its staleness.

    A pull misses at most `plan.staleness` pushes of this worker, and any number of
    others'. `count` is told each batch that is applied; its results come out.
    """
    gate = StalenessGate(plan.staleness, first_step=first_step, ring=ring)
    stages: list[Stage] = [
        RouteWithDenseStage(
            RouteStage(client, _slots(plan)), client=client, keys=rows.keys, batches=batches
        ),
        PullStage(client, insert=True, gate=gate, upload=dense.upload),
        TrainRowsStage(dense, rows),
        PushRangesStage(client, gate, batches=batches, count=count),
    ]
    capacities = _capacities(plan, stages)
    executor = Executor(batches, stages, capacities=capacities, first_step=first_step, ring=ring)
    return executor, gate


def build_prediction(
    plan: Plan, batches: Iterator[Batch], *, client: Client, dense: DenseStep | SparseWorker
) -> Executor:
    """Returns the executor of steps that predict: no row is created, nothing is pushed."""
    stages: list[Stage] = [
        RouteStage(client, _slots(plan)),
        PullStage(client, insert=False, gate=None, upload=_upload_of(dense)),
        *([PredictStage(dense)] if isinstance(dense, DenseStep) else dense.predicting_stages()),
    ]
    return Executor(batches, stages, capacities=_capacities(plan, stages))


def _training_stages(
    dense: DenseStep | SparseWorker,
    team: Teamwork | None,
    saver: StepSaver | None,
    ring: SpanRing | None,
) -> Sequence[Stage]:
    is_stopping = _never if team is None else team.is_stopping
    if isinstance(dense, SparseWorker):
        return dense.training_stages(is_stopping=is_stopping, ring=ring)
    if team is None:
        return [TrainStage(dense, saver=saver)]
    return [
        TrainStage(
            dense,
            group=team.group,
            averager=team.averager,
            is_stopping=is_stopping,
            saver=saver,
        )
    ]


def _upload_of(dense: DenseStep | SparseWorker) -> UploadBatch | None:
    """Returns what copies a batch to the device ahead; a sparse worker has none."""
    return dense.upload if isinstance(dense, DenseStep) else None


def _never() -> bool:
    return False


def _capacities(plan: Plan, stages: Sequence[Stage]) -> list[int]:
    """Returns how many steps may wait behind the reader and behind each stage."""
    capacities = {stage.name: stage.capacity for stage in plan.stages}
    # A sparse worker sends and receives where a whole one has its dense stage.
    capacities |= {"send": capacities["pull"], "recv": capacities["dense"]}
    return [capacities["read"], *(capacities[stage.name] for stage in stages)]


def _slots(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    return {table.name: table.slots for table in plan.tables}


def check_plan(plan: Plan, embeddings: Mapping[str, Embedding]) -> None:
    """Refuses a plan of other tables than the model's, and what a Trainer does not run.

    Raises:
        PlanError: The names, dims or slots differ, or rows live where no Trainer has them.
    """
    planned = {table.name: (table.dim, table.slots) for table in plan.tables}
    built = {name: (layer.dim, layer.slots) for name, layer in embeddings.items()}
    if planned != built:
        raise PlanError(f"a plan is of the model's tables, got {planned} planned and {built} built")
    home = "device" if plan.workers.has_own_tables else "host"
    for table in plan.tables:
        if table.home not in (home, "host") or table.cached_rows:
            raise PlanError(
                f"in mode {plan.workers.mode} a Trainer has each table whole, with home={home!r}, "
                f"got home={table.home!r} and cached_rows={table.cached_rows} of table "
                f"{table.name!r}; plan without --wide"
            )
