"""A cluster with a queue of jobs whose hosts fail, by discrete events. Time is in hours."""

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class After(Enum):
    """What follows the failure of a host."""

    END = "the job fails"
    RESTART = "it starts again from its checkpoint"
    RIDE = "what died comes back, nothing is done twice"


@dataclass(frozen=True)
class Way:
    """How jobs live with failures.

    Attributes:
        after: What follows a failure.
        pause: Hours in which the job then does nothing.
        checkpoint_every: Hours of work between two checkpoints; infinite is never.
        speed: Work in an hour of a host, at most 1.
        restarts: After more of them a job fails.
        least: Share of its hosts with which a job goes on.
        scale_pause: Hours in which a job does nothing when it gets or gives up hosts.
    """

    after: After
    pause: float = 0.0
    checkpoint_every: float = math.inf
    speed: float = 1.0
    restarts: float = math.inf
    least: float = 1.0
    scale_pause: float = 0.0


@dataclass(eq=False)
class Job:
    """Wants `length` hours of `hosts`. Below them, it takes longer in proportion."""

    hosts: int
    length: float
    arrives: float
    done: float = 0.0  # hours of all its hosts
    num_failures: int = 0
    held: int = 0  # hosts, now
    since: float = 0.0  # when what follows was last brought up to date
    pause: float = 0.0  # hours left of it
    host_hours: float = 0.0
    ends: float | None = None
    has_failed: bool = False
    plan: int = 0  # an event of an earlier one is void

    def least(self, way: Way) -> int:
        """Returns the hosts without which the job does not run."""
        return math.ceil(self.hosts * way.least)

    def advance(self, now: float, way: Way) -> None:
        """Does what there was to do up to now."""
        hours = now - self.since
        work = max(hours - self.pause, 0.0)
        self.done += work * way.speed * self.held / self.hosts
        self.pause = max(self.pause - hours, 0.0)
        self.host_hours += hours * self.held
        self.since = now


def run(
    jobs: Sequence[Job], *, hosts: int, rate: float, way: Way, until: float, rng: random.Random
) -> None:
    """Runs jobs, in the order of their arrival, on a cluster; they know afterwards what came of it.

    A host that fails is replaced at once. A job that does not fit lets smaller ones pass.

    Args:
        jobs: By arrival.
        hosts: Of the cluster.
        rate: Failures of a host in an hour.
        way: Of all jobs.
        until: When it ends, in hours.
        rng: Draws the times of failures.
    """
    here: list[Job] = []
    events: list[tuple[float, int, Job, str, int]] = []
    num_events = 0

    def say(time: float, job: Job, what: str) -> None:
        nonlocal num_events
        num_events += 1
        heapq.heappush(events, (time, num_events, job, what, job.plan))

    def plan(job: Job, now: float) -> None:
        """Says what comes next of a job: a time to failure has no memory, so it is drawn anew."""
        job.plan += 1
        if job.held:
            left = (job.length - job.done) * job.hosts / job.held / way.speed
            end, failure = now + job.pause + left, now + rng.expovariate(rate * job.held)
            say(min(end, failure), job, "end" if end <= failure else "fail")

    for job in jobs:
        say(job.arrives, job, "arrive")
    while events and events[0][0] <= until:
        now, _, job, what, number = heapq.heappop(events)
        if number != job.plan:
            continue
        job.advance(now, way)
        if what == "arrive":
            here.append(job)
        elif what == "fail" and goes_on(job, way):
            plan(job, now)
            continue
        else:
            job.done = job.length if what == "end" else job.done
            job.ends, job.has_failed = now, what == "fail"
            here.remove(job)
            job.held, job.plan = 0, job.plan + 1
        for each, held in zip(here, shared_out(here, hosts, way), strict=True):
            if held != each.held:
                each.advance(now, way)
                each.pause = max(each.pause, way.scale_pause if each.held else 0.0)
                each.held = held
                plan(each, now)
    for job in here:
        job.advance(until, way)


def goes_on(job: Job, way: Way) -> bool:
    """Does what follows a failure; returns whether the job has survived it."""
    job.num_failures += 1
    if way.after is After.END or job.num_failures > way.restarts:
        return False
    if way.after is After.RESTART and math.isfinite(way.checkpoint_every):
        job.done = job.done // way.checkpoint_every * way.checkpoint_every
    elif way.after is After.RESTART:
        job.done = 0.0
    job.pause = way.pause
    return True


def shared_out(jobs: Sequence[Job], hosts: int, way: Way) -> list[int]:
    """Returns the hosts of each job: those that run keep their least, the first get the rest."""
    held = [0] * len(jobs)
    order = sorted(range(len(jobs)), key=lambda i: (jobs[i].held == 0, i))
    for i in order:
        if jobs[i].least(way) <= hosts:
            held[i] = jobs[i].least(way)
            hosts -= held[i]
    for i in order:
        if held[i]:
            more = min(jobs[i].hosts - held[i], hosts)
            held[i] += more
            hosts -= more
    return held
