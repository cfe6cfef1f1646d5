"""What stages take beside each other, found from reference configurations that are not judged."""

import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from config import Config, load_configs
from predict import expect
from run import Measured, device_environment

from hetero_pipe.cluster import Cluster, Rate, Spread, load_cluster

FOLDER = Path(__file__).parent
REFERENCES = FOLDER / "references.toml"
HOST = "here"


def profiled(configs: Sequence[Config], *, folder: Path, is_quick: bool) -> Cluster:
    """Returns this machine as it is found to be now, in processes of their own.

    Args:
        configs: What is to be predicted: the emulated device is measured if it is in one.
        folder: Gets files.
        is_quick: Whether fewer sizes are enough.
    """
    cluster = _measured([], {}, folder, is_quick=is_quick)
    if any(config.is_emulated for config in configs):
        found = _measured(["--emulated"], device_environment(), folder, is_quick=is_quick)
        cluster = cluster.with_rates(found.rates)
    return cluster


def _measured(
    flags: Sequence[str], environment: Mapping[str, str], folder: Path, *, is_quick: bool
) -> Cluster:
    import os  # noqa: PLC0415

    path = folder / "cluster.json"
    command = [sys.executable, str(FOLDER / "profile_here.py"), *flags]
    with path.open("w") as file:
        subprocess.run(
            command + ["--quick"] * is_quick,
            env={**os.environ, **environment},
            stdout=file,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    return load_cluster(path)


def needed(configs: Sequence[Config]) -> list[Config]:
    """Returns the references for all kinds of jobs that are among some configurations."""

    def kinds(config: Config) -> set[tuple[object, ...]]:
        found: set[tuple[object, ...]] = {(config.device, "embedded")}
        if config.workers == "split":
            return found | {(config.device, "server"), (config.device, "split")}
        return found | ({(config.device, "server")} if config.servers else set())

    def kind(config: Config) -> tuple[object, ...]:
        if config.workers == "split":
            return config.device, "split"
        return config.device, "server" if config.servers else "embedded"

    wanted = {each for config in configs for each in kinds(config)}
    return [each for each in load_configs(REFERENCES) if kind(each) in wanted]


def beside(cluster: Cluster, runs: Sequence[tuple[Config, Measured]]) -> Cluster:
    """Returns the cluster with what its cores take longer beside each other, by those runs.

    What a run of one process shows goes before what is left over of one of several.
    """
    for each in sorted(runs, key=lambda run: (run[0].servers, run[0].workers == "split")):
        by_kind = dict(_factors(cluster, *each))
        device = each[0].device
        known = {r.kind for r in cluster.rates_of("beside", host=HOST, device=device)}
        rates = [
            Rate("beside", HOST, Spread.of([factor]), device=device, kind=kind)
            for kind, factor in by_kind.items()
            if kind not in known
        ]
        cluster = cluster.with_rates(rates)
    return cluster


def _factors(cluster: Cluster, config: Config, run: Measured) -> Iterator[tuple[str, float]]:
    """Yields kinds of work, and seconds on a core by those that are predicted of each."""
    stages = {stage.name: stage for stage in expect(config, cluster).stages}
    if config.workers == "split":
        messages = sum(
            part.amount
            for stage in stages.values()
            for part in stage.cost.parts
            if part.label == "message"
        )
        on_cores = sum(stage.cost.on("worker") for stage in stages.values())
        measured = run.cpu["sparse"] + run.cpu["dense"]
        # Both ends have as much, and the dense worker's is in no stage.
        yield "cut", (measured - on_cores + messages) / (2 * messages)
        return
    if not config.servers:
        for name in ("route", "pull", "push", "dense"):
            yield name, run.stages[name]["cpu"] / stages[name].cost.on("worker")
        return
    calls = sum(
        part.amount
        for stage in stages.values()
        for part in stage.cost.parts
        if part.label == "call" and part.resource == "worker"
    )
    on_cores = sum(stage.cost.on("worker") for stage in stages.values())
    yield "call", (run.cpu["whole"] - on_cores + calls) / calls
    on_servers = sum(stage.cost.on("server") for stage in stages.values())
    yield "server", run.cpu["server 0"] / on_servers


def medians(clusters: Sequence[Cluster]) -> Cluster:
    """Returns one cluster with the median of each rate."""
    values: dict[tuple[object, ...], list[Rate]] = defaultdict(list)
    for cluster in clusters:
        for rate in cluster.rates:
            values[rate.key].append(rate)
    rates = [
        replace(found[0], value=_spread([rate.value for rate in found]))
        for found in values.values()
    ]
    return replace(clusters[0], rates=tuple(rates))


def _spread(found: Sequence[Spread]) -> Spread:
    least, most = (statistics.median(getattr(each, at) for each in found) for at in ("min", "max"))
    middle = statistics.median(each.median for each in found)
    return Spread(middle, min(least, middle), max(most, middle), sum(s.samples for s in found))
