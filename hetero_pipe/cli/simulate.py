"""`hetero-pipe simulate`: what a plan would do, without running it."""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hetero_pipe.cluster import load_cluster
from hetero_pipe.errors import ConfigError, PlanError
from hetero_pipe.pipeline import write_trace
from hetero_pipe.plan import Plan
from hetero_pipe.simulate import (
    Conditions,
    Failure,
    Restart,
    Simulation,
    Slowdown,
    Straggler,
    simulate,
)

__all__ = ["add_to"]

DESCRIPTION = """\
Simulates the workers of a plan, stage by stage, on the machines of a cluster:
hand-offs, staleness, cores and links that are shared; and, if you like, times
that vary, workers that are slow and processes that fail. Prints what a real run
prints: where time went, what bounds it and what to change.
"""

EPILOG = """\
examples:
  hetero-pipe simulate --plan plan.json --cluster cluster.toml
  hetero-pipe simulate --plan plan.json --cluster cluster.toml --trace run.json.gz
                                  open the trace at ui.perfetto.dev, as a real run's
  ... --straggler 3:2             worker 3 takes twice as long
  ... --straggler 3:2:100-200     for its steps 100 to 199
  ... --slow server:network:4     the servers' links have a quarter of their bandwidth
  ... --slow trainer-1:cores:2:10-20
                                  that machine is half as fast from second 10 to 20
  ... --vary 0.3                  every stage's time varies by 30% (lognormal, --seed)
  ... --vary read=2 --vary dense=0.1
  ... --fail server@60            a server is gone after 60 s: all wait for ever
  ... --fail server@60 --restart-after 90 --checkpoint-every 500
                                  as today: the job ends, and goes on from its checkpoint

A plan is what `Plan.to_json` writes, with its prediction.
"""

Value = TypeVar("Value")


def add_to(commands: Any) -> None:  # argparse's sub-parsers, whose class is private
    """Adds the sub-command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "simulate",
        help="simulate a plan on a cluster",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--plan", metavar="FILE", type=Path, required=True, help="JSON, with its prediction")
    add("--cluster", metavar="FILE", type=Path, required=True, help="TOML or JSON")
    add("--steps", metavar="N", type=int, default=200, help="of each worker; default: 200")
    add("--straggler", metavar="RANK:FACTOR[:FIRST-LAST]", action="append", default=[])
    add("--slow", metavar="HOST:cores|network:FACTOR[:START-END]", action="append", default=[])
    add("--vary", metavar="[STAGE=]SHARE", action="append", default=[], help="standard deviation")
    add("--fail", metavar="ROLE[:RANK]@SECONDS", action="append", default=[])
    add("--restart-after", metavar="SECONDS", type=float, help="the job, after a failure")
    add("--checkpoint-every", metavar="STEPS", type=int, help="needed with --restart-after")
    add("--seed", metavar="N", type=int, default=0, help="of times that vary; default: 0")
    add("--trace", metavar="FILE", type=Path, help="write the spans of all workers; .gz packs it")
    add("--json", action="store_true", help="print figures as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, _: Sequence[str]) -> int:
    plan = _plan(options.plan)
    assert plan.predicted is not None, "_plan refuses others"
    stages = [stage.name for stage in plan.predicted.stages]
    found = simulate(
        plan,
        cluster=load_cluster(options.cluster),
        num_steps=options.steps,
        conditions=_conditions(options, stages),
        rng=np.random.default_rng(options.seed),
        is_recorded=True,
    )
    if options.trace is not None:
        try:
            write_trace(options.trace, found.spans)
        except OSError as error:
            raise ConfigError(
                f"a trace is written to a file, got {error}; name another one (--trace)"
            ) from error
        print(f"hetero-pipe: wrote {options.trace}: open it at ui.perfetto.dev", file=sys.stderr)
    print(json.dumps(_figures(found), indent=2) if options.json else found)
    return 0


def _plan(path: Path) -> Plan:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"a plan is read from a file, got {error}") from error
    try:
        plan = Plan.from_json(text)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error
    if plan.predicted is None:
        raise PlanError(
            f"{path}: a simulation is of a plan with its prediction, got none; `hetero-pipe plan` "
            "writes one, and so does CostModel.predict"
        )
    return plan


def _conditions(options: argparse.Namespace, stages: Sequence[str]) -> Conditions:
    if (options.restart_after is None) != (options.checkpoint_every is None):
        raise ConfigError(
            "a job that begins again does so from a checkpoint; give both --restart-after and "
            "--checkpoint-every, or neither"
        )
    restart = None
    if options.restart_after is not None:
        restart = Restart(options.restart_after, options.checkpoint_every)
    variation: dict[str, float] = {}
    for text in options.vary:
        variation |= _read("--vary", text, lambda text: _variation(text, stages))
    return Conditions(
        variation=variation,
        stragglers=tuple(_read("--straggler", text, _straggler) for text in options.straggler),
        slowdowns=tuple(_read("--slow", text, _slowdown) for text in options.slow),
        failures=tuple(_read("--fail", text, _failure) for text in options.fail),
        restart=restart,
    )


def _read(flag: str, text: str, make: Callable[[str], Value]) -> Value:
    """Returns what a text says; who wrote it is told which one is wrong."""
    try:
        return make(text)
    except (ValueError, IndexError) as error:
        if isinstance(error, ConfigError):
            raise ConfigError(f"{flag} {text}: {error}") from error
        raise ConfigError(
            f"{flag} {text}: a number, or a part of it, is missing; see hetero-pipe simulate --help"
        ) from error


def _straggler(text: str) -> Straggler:
    rank, factor, *steps = text.split(":")
    if not steps:
        return Straggler(int(rank), float(factor))
    first, last = steps[0].split("-")
    return Straggler(int(rank), float(factor), int(first), int(last) if last else None)


def _slowdown(text: str) -> Slowdown:
    host, what, factor, *times = text.split(":")
    if not times:
        return Slowdown(host, float(factor), what)
    start, end = times[0].split("-")
    return Slowdown(host, float(factor), what, float(start), float(end) if end else math.inf)


def _failure(text: str) -> Failure:
    who, at = text.split("@")
    role, _, rank = who.partition(":")
    return Failure(role, float(at), rank=int(rank or 0))


def _variation(text: str, stages: Sequence[str]) -> dict[str, float]:
    stage, equals, share = text.rpartition("=")
    return {stage: float(share)} if equals else dict.fromkeys(stages, float(share))


def _figures(found: Simulation) -> dict[str, Any]:
    return {
        "samples_per_second": found.samples_per_second,
        "step_seconds": found.step_seconds,
        "predicted_step_seconds": found.prediction.step_seconds,
        "seconds": found.seconds,
        "bottleneck": found.bottleneck,
        "advice": found.summary().advice,
        "is_whole": found.is_whole,
        "num_repeated": found.num_repeated,
        "lost_seconds": found.lost_seconds,
        "workers": [
            {
                "name": worker.name,
                "machine": worker.machine,
                "num_steps": worker.num_steps,
                "step_seconds": worker.step_seconds,
                "stages": [dataclasses.asdict(stage) for stage in worker.timeline.stages],
            }
            for worker in found.workers
        ],
        "resources": {each.name: each.busy for each in found.resources},
    }
