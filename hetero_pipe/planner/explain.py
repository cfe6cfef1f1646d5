"""Explain: a proposal as text, for people."""

from collections.abc import Iterator

from hetero_pipe.plan import Breakdown, Plan, Prediction
from hetero_pipe.planner.aim import AIMS
from hetero_pipe.planner.columns import columns, percent
from hetero_pipe.planner.propose import Proposal
from hetero_pipe.units import format_bytes, format_seconds

__all__ = ["explain"]

RESOURCES = {
    "worker": "a core",
    "server": "a server's core",
    "device": "the device",
    "network": "the network",
    "wait": "nothing",
}
SHOWN = 3  # parts of a stage or of a memory


def explain(proposal: Proposal, *, samples: int | None = None) -> str:
    """Returns the plan as tables, what bounds it, its money, and why others lost.

    Args:
        proposal: What was found.
        samples: Of an epoch, whose money is told; None is not known.
    """
    plan = proposal.plan
    assert plan.predicted is not None, "a proposal is predicted"
    lines = [
        f"plan for {AIMS[proposal.aim.what]}: {proposal.kind}",
        f"  mode {plan.workers.mode}, staleness {plan.staleness}, batches of {plan.batch_size}"
        + (f", wire {plan.workers.wire}" if plan.processes_of("dense") else ""),
        "",
        *_processes(plan),
        "",
        *_tables(plan),
        "",
        *_stages(plan.predicted),
        "",
        *_memory(plan.predicted),
        "",
        *_bounds(plan.predicted),
        *_money(plan.predicted, samples),
        _proof(proposal),
        *(f"assumed, not measured: {each}" for each in plan.predicted.assumed),
        *(f"corrected: {each}" for each in plan.predicted.corrected),
    ]
    if proposal.runners_up:
        lines += ["", "runners-up, and why they lost"]
    for runner in proposal.runners_up:
        lines += [f"  {runner.kind}", f"    {runner.reason}"]
    return "\n".join(line.rstrip() for line in lines)


def _processes(plan: Plan) -> Iterator[str]:
    yield from columns(
        ("processes", "host", "device", "machines", "on each", "in all"),
        [
            (
                each.role,
                each.host,
                each.device,
                f"{each.machines}",
                f"{each.per_machine}",
                f"{each.count}",
            )
            for each in plan.processes
        ],
    )


def _tables(plan: Plan) -> Iterator[str]:
    homes = {"host": "servers", "device": "each device", "sharded": "shared out over devices"}
    rows = []
    for table in plan.tables:
        home = homes[table.home]
        if table.home == "host" and not plan.processes_of("server"):
            home = "the worker's process"
        cached = f", {table.cached_rows:,} hot rows on devices" if table.cached_rows else ""
        rows.append((table.name, f"{table.dim}", home + cached))
    yield from columns(("tables", "dim", "home"), rows)


def _stages(prediction: Prediction) -> Iterator[str]:
    rows = []
    for stage in prediction.stages:
        rows.append((stage.name, stage.role, format_seconds(stage.busy), _parts(stage.cost)))
    yield from columns(("stages of a step", "of", "busy", "alone, that is"), rows)


def _parts(cost: Breakdown) -> str:
    """Returns the largest parts of a time: `table 2 ms on a server's core`."""
    ordered = sorted(cost.parts, key=lambda part: -part.amount)
    told = [
        f"{part.label} {format_seconds(part.amount)}"
        + (f" on {RESOURCES[part.resource]}" if part.resource else "")
        for part in ordered[:SHOWN]
    ]
    rest = sum(part.amount for part in ordered[SHOWN:])
    return ", ".join([*told, *([f"others {format_seconds(rest)}"] if rest else [])])


def _memory(prediction: Prediction) -> Iterator[str]:
    rows = []
    for each in prediction.memory:
        ordered = sorted(each.peak.parts, key=lambda part: -part.amount)
        told = [f"{part.label} {format_bytes(part.amount)}" for part in ordered[:SHOWN]]
        rest = sum(part.amount for part in ordered[SHOWN:])
        told += [f"others {format_bytes(rest)}"] if rest else []
        used = each.peak.total
        rows.append(
            (
                f"{each.host}/{each.device}",
                format_bytes(used),
                format_bytes(each.capacity),
                percent(used / each.capacity),
                ", ".join(told),
            )
        )
    yield from columns(("memory of one", "peak", "of", "full", "that is"), rows)


def _bounds(prediction: Prediction) -> Iterator[str]:
    first, *rest = prediction.bounds
    yield (
        f"throughput: {prediction.samples_per_second:,.0f} samples/s, "
        f"{prediction.samples:,.0f} in a step of {format_seconds(prediction.step_seconds)}"
    )
    following = ", ".join(f"{each.label} {format_seconds(each.amount)}" for each in rest[:SHOWN])
    yield f"bottleneck: {first.label} {format_seconds(first.amount)}; then {following or 'nothing'}"


def _money(prediction: Prediction, samples: int | None) -> Iterator[str]:
    if prediction.price_per_hour is None:
        yield "money: not known, as a host has no price_per_hour"
        return
    epoch = ""
    if samples is not None:
        money = prediction.money(samples)
        assert money is not None
        epoch = f", {money:,.4g} an epoch of {samples:,} samples"
    yield f"money: {prediction.price_per_hour:,.2f} an hour{epoch}"


def _proof(proposal: Proposal) -> str:
    better = f"over {percent(proposal.gap)} better" if proposal.gap else "better"
    return (
        f"proof: no plan of those to choose from is {better}, by {proposal.num_predicted:,} "
        "predictions of plans and of bounds"
    )
