"""Explain: which layers run where, as text for people and as what JSON has."""

import json
from collections.abc import Iterator
from typing import Any

from hetero_pipe.planner.aim import AIMS
from hetero_pipe.planner.columns import columns, percent
from hetero_pipe.planner.layers.assignment import AssignedStage, Assignment
from hetero_pipe.planner.layers.propose import LayersProposal
from hetero_pipe.planner.layers.stack import LayerStack
from hetero_pipe.planner.layers.trainable import is_trainable

__all__ = ["explain_layers", "layers_told"]

NOT_YET = "no Trainer runs this cut yet"


def explain_layers(
    proposal: LayersProposal,
    *,
    samples: int | None = None,
    has_prices: bool = True,
    assumed: tuple[str, ...] = (),
) -> str:
    """Returns the stages as a table, their throughput and money, the proof, and the rivals.

    Args:
        proposal: What was found.
        samples: Of an epoch, whose money is told; None is not known.
        has_prices: Whether each host has a price.
        assumed: What was not measured.
    """
    stack, best = proposal.stack, proposal.solution.assignment
    bottleneck = best.bottleneck
    lines = [
        f"layers for {AIMS[proposal.aim.what]}: {stack.name}",
        "",
        *_stages(stack, best, has_prices=has_prices),
        "",
        f"throughput: {best.throughput:,.0f} samples/s",
        f"bottleneck: {', '.join(bottleneck.layers)} on {bottleneck.type}",
        _money(best, samples)
        if has_prices
        else "money: not known, as a host has no price_per_hour",
        _proof(proposal),
        f"cut: {_cut(stack, best)}",
        *([f"assumed, not measured: {'; '.join(assumed)}"] if assumed else []),
        "",
        *_rivals(proposal, has_prices=has_prices),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _stages(stack: LayerStack, assignment: Assignment, *, has_prices: bool) -> Iterator[str]:
    types = {each.name: each for each in stack.types}
    rows = []
    for stage in assignment.stages:
        type_ = types[stage.type]
        price = f"{type_.price_per_hour * stage.num_units:,.2f}" if has_prices else "?"
        rows.append(
            (
                _role(stack, stage),
                stage.type,
                f"{stage.num_units:,} of {type_.count:,} {_unit(type_.kind)}",
                percent(stage.time / (assignment.bottleneck.time or 1.0)),
                price,
                ", ".join(stage.layers),
            )
        )
    yield from columns(("stages", "on", "units", "busy", "an hour", "layers"), rows)


def _role(stack: LayerStack, stage: AssignedStage) -> str:
    """Returns who runs a stage."""
    kind = next(each.kind for each in stack.types if each.name == stage.type)
    if kind != "cpu":
        return f"{'GPU' if kind == 'gpu' else stage.type.rpartition('/')[2]} workers"
    kinds = {layer.kind for layer in stack.layers if layer.name in stage.layers}
    return {
        ("dense",): "CPU workers",
        ("sparse",): "servers, sparse workers",
        ("dense", "sparse"): "servers, CPU workers",
    }[tuple(sorted(kinds))]


def _unit(kind: str) -> str:
    return {"cpu": "cores", "gpu": "GPUs"}.get(kind, "devices")


def _money(assignment: Assignment, samples: int | None) -> str:
    epoch = ""
    if samples is not None:
        money = assignment.price_per_sample * samples
        epoch = f", {money:,.4g} an epoch of {samples:,} samples"
    return f"money: {assignment.price_per_hour:,.2f} an hour{epoch}"


def _proof(proposal: LayersProposal) -> str:
    stack, solution = proposal.stack, proposal.solution
    number = len(stack.types) ** len(stack.layers)
    better = "better" if solution.is_optimal else f"over {percent(solution.gap or 0.0)} better"
    return (
        f"proof: none of the {number:,} assignments of {len(stack.layers)} layers to "
        f"{len(stack.types)} types is {better}, with any numbers of units"
    )


def _cut(stack: LayerStack, assignment: Assignment) -> str:
    """Returns whether a Trainer runs it, and if not, what of it none does."""
    has_servers = any("servers" in _role(stack, stage) for stage in assignment.stages)
    if is_trainable(stack, assignment):
        where = "tables on servers, the dense part whole" if has_servers else "all on one device"
        return f"a Trainer runs it: {where}"
    if len(assignment.stages) == 1:
        return f"{NOT_YET}: rows are shared out over devices, and in mode gpu_only each has all"
    return f"{NOT_YET}: one runs tables on servers of one host, and the dense part whole"


def _rivals(proposal: LayersProposal, *, has_prices: bool) -> Iterator[str]:
    rows = []
    for rival in proposal.rivals:
        if rival.solution is None:
            rows.append((rival.name, "-", "-", "-", rival.reason))
            continue
        found = rival.solution.assignment
        rows.append(
            (
                rival.name,
                f"{found.throughput:,.0f}",
                f"{found.price_per_hour:,.2f}" if has_prices else "?",
                f"{_over(rival.solution.loss, proposal.solution.loss):.3f}",
                "; ".join(f"{s.num_units:,} {s.type}: {_range(s)}" for s in found.stages),
            )
        )
    over = {"throughput": "times as long", "money": "times as dear", "epoch": "times as dear"}
    yield from columns(
        (
            "instead",
            "samples/s",
            "an hour",
            over[proposal.aim.what],
            "stages, or why there are none",
        ),
        rows,
    )


def _range(stage: AssignedStage) -> str:
    if len(stage.layers) == 1:
        return stage.layers[0]
    return f"{stage.layers[0]} to {stage.layers[-1]}"


def _over(loss: float, best: float) -> float:
    return loss / best if best else 1.0


def layers_told(proposal: LayersProposal) -> dict[str, Any]:  # JSON values
    """Returns all of it as JSON has it, the stack too."""
    stack, solution = proposal.stack, proposal.solution
    return {
        "objective": proposal.aim.what,
        "batch_size": proposal.batch,
        **_assignment_told(stack, solution.assignment),
        "loss": solution.loss,
        "bound": solution.bound,
        "gap": solution.gap,
        "is_optimal": solution.is_optimal,
        "instead": [
            {
                "scheduler": rival.name,
                "loss": None if rival.solution is None else rival.solution.loss,
                "reason": rival.reason,
                **(
                    {}
                    if rival.solution is None
                    else _assignment_told(stack, rival.solution.assignment)
                ),
            }
            for rival in proposal.rivals
        ],
        "stack": json.loads(stack.to_json()),
    }


def _assignment_told(stack: LayerStack, assignment: Assignment) -> dict[str, Any]:  # JSON values
    prices = {each.name: each.price_per_hour for each in stack.types}
    return {
        "stages": [
            {
                "role": _role(stack, stage),
                "on": stage.type,
                "num_units": stage.num_units,
                "seconds_per_sample": stage.time,
                "price_per_hour": prices[stage.type] * stage.num_units,
                "layers": list(stage.layers),
            }
            for stage in assignment.stages
        ],
        "samples_per_second": assignment.throughput,
        "price_per_hour": assignment.price_per_hour,
        "price_per_sample": assignment.price_per_sample,
        "is_trainable": is_trainable(stack, assignment),
    }
