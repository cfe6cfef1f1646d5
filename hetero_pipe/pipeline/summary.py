"""Summary: what bounds a run, how near it came, and what to do about it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.pipeline.timeline import Timeline
from hetero_pipe.plan import Comparison
from hetero_pipe.units import format_seconds
from ps_server.spans import Spans

__all__ = ["ENOUGH_STEPS", "ServerTime", "Summary"]

ENOUGH_STEPS = 20
"""Below, filling and emptying the pipeline is a good part of the run."""

# What is busy for more of the time is what bounds the run: no other change gains over a ninth.
BUSY = 0.9
# What takes more of the time is worth a word.
NOTED = 0.1
# Between the pull of a step and the acknowledgement of its push: what staleness lets steps share.
# A sparse worker sends to a dense one and receives from it where a whole one has its dense stage.
TURNS = ("pull", "dense", "send", "recv", "push")


@dataclass(frozen=True)
class ServerTime:
    """Where the time of one server went, as shares of the time from its first to its last span.

    Attributes:
        name: ps-server HOST:PORT.
        busy: At least one request was served.
        waiting: Requests were there, and all of them waited for other workers.
    """

    name: str
    busy: float
    waiting: float = 0.0

    @staticmethod
    def of(spans: Spans) -> "ServerTime":
        """Returns the time of a server by its spans; waits are those that say so."""
        if not len(spans):
            return ServerTime(spans.role, 0.0)
        waits = np.array([text.startswith("waiting") for text in spans.texts], bool)[spans.names]
        seconds = float(spans.ends.max() - spans.starts.min()) or 1.0
        # A wait is within the request that waits, so there it takes one off.
        there = _covered(spans.starts[~waits], spans.ends[~waits])
        busy = _covered(spans.starts, spans.ends, np.where(waits, -1, 1))
        return ServerTime(spans.role, busy / seconds, (there - busy) / seconds)


def _covered(
    starts: NDArray[np.float64], ends: NDArray[np.float64], signs: NDArray[np.int64] | int = 1
) -> float:
    """Returns the seconds in which the signs of the spans under way sum to more than 0."""
    signs = np.broadcast_to(signs, starts.shape)
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.concatenate([signs, -signs])[order])
    return float(np.diff(times[order]) @ (level[:-1] > 0)) if len(times) else 0.0


@dataclass(frozen=True)
class Summary:
    """What bounds a run. Printed, it is a table, the bound, and a sentence of advice.

    Attributes:
        timeline: Where the time of each stage went.
        num_samples: Trained.
        seconds: That took.
        staleness: Pushes that a pull may miss; None is any number.
        mode: One of `hetero_pipe.plan.MODES`.
        num_workers: That hold a replica of the dense part.
        num_servers: 0 if the tables are in this process.
        num_cores: That this process may run on.
        servers: Where their time went; none if nobody traced them.
        comparison: With what was predicted; None if nothing was, or too few steps ran.
    """

    timeline: Timeline
    num_samples: int
    seconds: float
    staleness: int | None
    mode: str
    num_workers: int
    num_servers: int
    num_cores: int
    servers: tuple[ServerTime, ...] = ()
    comparison: Comparison | None = None

    @property
    def num_steps(self) -> int:
        """Steps that have passed every stage."""
        return min((stage.num_steps for stage in self.timeline.stages), default=0)

    @property
    def bound(self) -> float | None:
        """Samples a second if the busiest stage never waited, None if nothing ran."""
        longest = max((stage.busy for stage in self.timeline.stages), default=0.0)
        return self.num_samples / longest if longest and self.num_samples else None

    @property
    def reached(self) -> float:
        """The share of `bound` that was reached: that of the time in which that stage was busy."""
        longest = max((stage.busy for stage in self.timeline.stages), default=0.0)
        return self.share(longest)

    @property
    def advice(self) -> str:
        """One sentence: what to change, and why."""
        return next(said for rule in _RULES if (said := rule(self)) is not None)

    def share(self, seconds: float) -> float:
        """Returns which share of the run's time so many seconds are."""
        return min(seconds / self.seconds, 1.0) if self.seconds else 0.0

    def per_step(self, seconds: float) -> str:
        """Returns seconds over all steps as text of one step."""
        return format_seconds(seconds / self.num_steps)

    def on_cores(self) -> float:
        """Returns the seconds that the threads of the stages need on all cores together."""
        return sum(stage.cpu for stage in self.timeline.stages) / self.num_cores

    def __str__(self) -> str:
        if not self.num_steps:
            return f"where time went: {self.advice}"
        speed = self.num_samples / self.seconds if self.seconds else 0.0
        lines = [
            f"where time went: {self.num_steps} steps of {self.per_step(self.seconds)}, "
            f"{speed:,.0f} samples/s",
            f"{'':28}{'busy':>8}{'waiting':>9}{'blocked':>9}{'ms a step':>11}",
        ]
        for stage in self.timeline.stages:
            shares = [self.share(each) for each in (stage.busy, stage.waiting, stage.blocked)]
            lines.append(
                f"{stage.name:28}{shares[0]:8.0%}{shares[1]:9.0%}{shares[2]:9.0%}"
                f"{1e3 * stage.busy / self.num_steps:11.3f}"
                + ("  <- bottleneck" if stage.name == self.timeline.bottleneck else "")
            )
        lines += [
            f"{server.name:28}{server.busy:8.0%}{server.waiting:9.0%}" for server in self.servers
        ]
        if self.bound is not None:
            lines.append(
                f"bound 1 / {self.timeline.bottleneck}: {self.bound:,.0f} samples/s, "
                f"{self.reached:.0%} of it reached"
            )
        lines.append(f"advice: {self.advice}")
        return "\n".join(lines if self.comparison is None else [*lines, str(self.comparison)])


# The rules of advice, the first that has something to say is heard.


def _too_few_steps(run: Summary) -> str | None:
    if run.num_steps == 0:
        return "nothing was trained"
    if run.num_steps >= ENOUGH_STEPS:
        return None
    return (
        f"{run.num_steps} steps are too few to tell, as filling and emptying the pipeline is a "
        f"good part of them; train {ENOUGH_STEPS} and more"
    )


def _cores(run: Summary) -> str | None:
    if run.share(run.on_cores()) < BUSY:
        return None
    return (
        f"the stages keep {run.num_cores} cores busy, so that none can run beside the others; add "
        "cores, or workers on other hosts"
    )


def _credit(run: Summary) -> str | None:
    """Says who holds a sparse worker up that has batches nobody takes."""
    for_credit = run.share(sum(stage.waiting_for_credit for stage in run.timeline.stages))
    if for_credit < NOTED:
        return None
    return (
        f"send waits {for_credit:.0%} of the time for a dense worker to have room, so the dense "
        "workers bound the run; add dense workers, or give them faster devices"
    )


def _gate(run: Summary) -> str | None:
    """Says how many steps have to be under way to keep the busiest stage busy.

    That is `(pull + dense + push) / longest`, one of them beside the staleness.
    """
    at_gate = run.share(sum(stage.waiting_at_gate for stage in run.timeline.stages))
    if run.staleness is None or at_gate < NOTED or run.reached >= BUSY:
        return None
    within = [stage for stage in run.timeline.stages if stage.name in TURNS]
    turns = sum(stage.busy for stage in within)
    *names, last = [stage.name for stage in within]
    # Stages that run at once need their cores at once.
    longest = max(run.on_cores(), *(stage.busy for stage in run.timeline.stages))
    enough = max(math.ceil(turns / longest) - 1, run.staleness + 1)
    change = "use mode bounded with staleness" if run.mode == "sync" else "raise staleness to"
    return (
        f"pull waits {at_gate:.0%} of the time for the push of an earlier step, as "
        f"{', '.join(names)} and {last} of a step take {run.per_step(turns)} together and "
        f"staleness is {run.staleness}; {change} {enough}, and a step may take "
        f"{run.per_step(longest)}"
    )


def _other_workers(run: Summary) -> str | None:
    waiting = max((server.waiting for server in run.servers), default=0.0)
    if waiting < NOTED or run.timeline.bottleneck not in ("pull", "push"):
        return None
    change = "use mode bounded" if run.mode == "sync" else "raise staleness"
    return (
        f"servers wait {waiting:.0%} of the time for the slowest worker; see in the trace which "
        f"one it is, or {change}, so that the others need not wait for it at each step"
    )


def _uneven(run: Summary) -> str | None:
    if run.reached >= BUSY - NOTED:
        return None
    return (
        f"{run.timeline.bottleneck} bounds the run and is busy {run.reached:.0%} of the time, as "
        "the time of stages varies from step to step; let more steps wait between them "
        "(StagePlan.capacity)" + (", with a higher staleness" if run.staleness else "")
    )


def _bottleneck(run: Summary) -> str:
    """Says how to make the stage faster that all others wait for."""
    stage = run.timeline.stage(run.timeline.bottleneck or "")
    is_on_core = stage.cpu >= stage.busy / 2
    busiest = max((server.busy for server in run.servers), default=None)
    if stage.name == "read" and is_on_core:
        change = "give it less to parse (Parquet, fewer columns), or let more workers read"
    elif stage.name == "read":
        change = "its files come slowly; put them on a faster disk, or let more workers read"
    elif stage.name == "dense" and run.mode == "sync" and run.num_workers > 1:
        change = (
            "it waits there for the slowest worker, too; compare the workers in a trace, then take "
            "a faster device for that one, or mode bounded"
        )
    elif stage.name == "dense":
        change = "the device is its own limit; use a faster one, or more workers"
    elif stage.name == "recv":
        change = "it waits for the dense workers; add dense workers, or give them faster devices"
    elif stage.name == "send" and not is_on_core:
        change = "the wire to the dense workers is slow; send float16 (--wire), or use a faster one"
    elif stage.name not in ("pull", "push"):
        change = "let more workers share the batches"
    elif not run.num_servers:
        change = "the tables are in this process; put them on servers on other hosts"
    elif busiest is None:
        change = "add servers, or see in a trace whether it is they or the wire"
    elif busiest >= BUSY / 2:
        change = f"the busiest server is busy {busiest:.0%} of the time; add servers"
    else:
        change = (
            f"no server is busy more than {busiest:.0%} of the time, the rest is the wire and its "
            "two ends; use a faster network, smaller rows, or more workers"
        )
    return f"{stage.name} bounds the run with {run.per_step(stage.busy)} a step: {change}"


_RULES: tuple[Callable[[Summary], str | None], ...] = (
    _too_few_steps,
    _cores,
    _credit,
    _gate,
    _other_workers,
    _uneven,
    _bottleneck,
)
