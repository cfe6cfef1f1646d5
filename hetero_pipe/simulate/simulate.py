"""simulate: a plan in, what it would do out."""

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np

from hetero_pipe.cluster import Cluster
from hetero_pipe.errors import ConfigError, PlanError
from hetero_pipe.pipeline import Timeline
from hetero_pipe.plan import Plan, Prediction
from hetero_pipe.simulate.conditions import Conditions, Failure, Straggler
from hetero_pipe.simulate.job import Job, Setting
from hetero_pipe.simulate.simulation import ResourceTime, Simulation, WorkerRun, joined
from ps_server.spans import Spans

__all__ = ["simulate"]


def simulate(
    plan: Plan,
    *,
    cluster: Cluster,
    num_steps: int,
    prediction: Prediction | None = None,
    conditions: Conditions | None = None,
    rng: np.random.Generator | None = None,
    is_recorded: bool = True,
) -> Simulation:
    """Returns what the workers of a plan would do in so many steps.

    Each stage of each worker is a thread that does what its predicted cost is made of,
    part after part, as the executor's thread does; hand-offs, gate, clocks, credits
    and sums over the workers are those of docs/pipeline.md. Threads of a machine share
    its cores, transfers its link each way; docs/simulate.md says how.

    Args:
        plan: Its processes, or all on the first host of the cluster.
        cluster: Has cores and links.
        num_steps: Of each worker that reads.
        prediction: What stages take; by default the plan's own.
        conditions: What does not go as predicted.
        rng: Draws times that vary.
        is_recorded: Whether spans are kept, 32 bytes each.

    Raises:
        ConfigError: The cluster has no such hosts, or conditions no such processes.
        PlanError: Nobody predicted the plan, or its processes do not make up a job that
            has room on the cluster.
    """
    prediction = prediction or plan.predicted
    conditions = conditions or Conditions()
    if prediction is None:
        raise PlanError(
            "a simulation is of a plan that was predicted, got predicted=None; give the prediction "
            "of CostModel.predict(plan)"
        )
    if num_steps < 1:
        raise ConfigError(f"a simulation has a step, got num_steps={num_steps}")
    if any(conditions.variation.values()) and rng is None:
        raise ConfigError("times that vary are drawn, got rng=None; give a numpy Generator")
    setting = Setting(plan, prediction, cluster, conditions, rng, is_recorded)
    run = _Run(setting, num_steps)
    _check(conditions, run.job_at(range(1), 0.0))
    run.run()
    return run.simulation()


def _check(conditions: Conditions, job: Job) -> None:
    """Refuses conditions of processes that there are not."""
    counts = {role: len(processes) for role, processes in job.machines.workers.items()}
    counts["server"] = job.machines.num_servers
    named: list[tuple[str, int, Failure | Straggler]]
    named = [(each.role, each.rank, each) for each in conditions.failures]
    reader = job.machines.readers[0].role
    named += [(each.role or reader, each.rank, each) for each in conditions.stragglers]
    for role, rank, each in named:
        if rank >= counts.get(role, 0):
            held = ", ".join(f"{count} {role}" for role, count in counts.items())
            raise ConfigError(f"ranks are from 0, of processes {held}, got {each}")
    stages = {stage.name for stage in job.setting.prediction.stages}
    for stage in (*conditions.variation, *conditions.interpreter):
        if stage not in stages:
            raise ConfigError(f"a stage is one of {', '.join(sorted(stages))}, got {stage!r}")


class _Run:
    """Jobs, one after another: up to a checkpoint, or a failure."""

    def __init__(self, setting: Setting, num_steps: int) -> None:
        self._setting = setting
        self._num_steps = num_steps
        self._jobs: list[Job] = []
        self._num_repeated = 0
        self._lost = 0.0
        self._end = 0.0

    def job_at(self, steps: range, start: float) -> Job:
        """Returns a job that has not begun."""
        return Job(self._setting, steps, start)

    def run(self) -> None:
        """Runs all steps, or up to where nothing goes on."""
        restart = self._setting.conditions.restart
        every = self._num_steps if restart is None else restart.checkpoint_every
        failures = sorted(self._setting.conditions.failures, key=lambda each: each.at)
        first, now, reached = 0, 0.0, 0
        while first < self._num_steps:
            steps = range(first, min(first + every, self._num_steps))
            job = self.job_at(steps, now)
            failure = None if restart is None else _next(failures, now)
            job.run(math.inf if failure is None else failure.at)
            self._jobs.append(job)
            done = first + job.num_done
            is_done = job.num_done == len(steps)
            self._end = job.end
            self._num_repeated += max(min(done, reached) - first, 0)
            reached = max(reached, done)
            if is_done and restart is None:
                return
            if is_done:
                assert restart is not None, "jobs end early to be restarted"
                first, now = steps.stop, job.end + restart.save
                self._lost += restart.save
                if first < self._num_steps:
                    failures = [each for each in failures if each.at >= now]
            elif failure is not None:
                assert restart is not None, "jobs end early to be restarted"
                now = failure.at + restart.after
                self._lost += now - job.start
                failures = [each for each in failures if each.at >= now]
            else:  # who is down for good holds up all who wait
                return

    def simulation(self) -> Simulation:
        """Returns what was done."""
        first = self._jobs[0]
        # Of one job the clock, and what was held, may go on beyond the last push.
        runs = tuple(self._worker(index) for index in range(len(first.workers)))
        return Simulation(
            plan=self._setting.plan,
            prediction=self._setting.prediction,
            num_steps=self._num_steps,
            workers=runs,
            seconds=self._end,
            spans=tuple(self._spans()),
            resources=self._resources(),
            num_repeated=self._num_repeated,
            lost_seconds=self._lost,
        )

    def _worker(self, index: int) -> WorkerRun:
        parts = [job.workers[index] for job in self._jobs]
        timeline = Timeline()
        ends: dict[int, float] = {}
        for job, part in zip(self._jobs, parts, strict=True):
            timeline = timeline.plus(part.timeline)
            ends.update(enumerate(part.threads[-1].ends, start=job.steps.start))
        process = parts[0].process
        gates = [part.gate for part in parts if part.gate is not None]
        num_pulls = sum(len(part.threads[0].ends) for part in parts)
        return WorkerRun(
            role=process.role,
            rank=process.rank,
            machine=process.machine.name,
            num_cores=round(process.machine.cores.capacity),
            timeline=timeline,
            source_end=parts[-1].threads[0].ends[-1] if parts[-1].threads[0].ends else math.inf,
            ends=np.array([ends[step] for step in sorted(ends)], np.float64),
            mean_staleness=sum(gate.num_missed for gate in gates) / max(num_pulls, 1),
            max_staleness=max((gate.largest_seen for gate in gates), default=0),
        )

    def _spans(self) -> list[Spans]:
        if not self._setting.is_recorded:
            return []
        found = []
        for index, worker in enumerate(self._jobs[0].workers):
            rings = [job.workers[index].ring for job in self._jobs]
            process = worker.process
            title = f"{process.role} worker {process.rank}"
            if process.role == "whole":
                alone = len(self._jobs[0].readers) == 1
                title = "trainer" if alone else f"worker {process.rank}"
            pieces = [ring.spans(role=title) for ring in rings if ring is not None]
            found.append(replace(joined(pieces), process=f"{process.machine.name}:simulated"))
        rings = [job.server_ring for job in self._jobs]
        machines = self._jobs[0].machines
        name = machines.servers[0][0].name if machines.servers else ""
        pieces = [ring.spans(role=f"ps-server {name}") for ring in rings if ring is not None]
        if pieces:
            found.append(replace(joined(pieces), process=f"{name}:simulated"))
        return found

    def _resources(self) -> tuple[ResourceTime, ...]:
        used: dict[str, float] = defaultdict(float)
        for job in self._jobs:
            for machine in job.machines.all:
                for each in (machine.cores, machine.sends, machine.receives):
                    used[each.name] += each.used / each.capacity
        seconds = self._end or 1.0
        found = [ResourceTime(name, held / seconds) for name, held in used.items()]
        return tuple(sorted(found, key=lambda each: -each.busy))


def _next(failures: list[Failure], now: float) -> Failure | None:
    return next((each for each in failures if each.at >= now), None)
