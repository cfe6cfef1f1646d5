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
ASIDE = ("step", "rows")  # of what is aside of a dense stage, in threads of the device
LEAST, MOST = 0.5, 5.0  # times; what is beyond was disturbed


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

    Of several runs that tell of one kind of work on one device, it is the mean.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    # Of several processes, a part is what is left over when the others are known.
    for config, run in sorted(runs, key=lambda each: (each[0].servers, each[0].workers == "split")):
        call = statistics.fmean(found.get((config.device, "call"), [1.0]))
        for kind, factor in _factors(cluster, config, run, call=call):
            found[config.device, kind].append(min(max(factor, LEAST), MOST))
    return cluster.with_rates(
        [
            Rate("beside", HOST, Spread.of([statistics.fmean(each)]), device=device, kind=kind)
            for (device, kind), each in found.items()
        ]
    )


def _factors(
    cluster: Cluster, config: Config, run: Measured, *, call: float
) -> Iterator[tuple[str, float]]:
    """Yields kinds of work, and seconds on a core by those that are predicted of each.

    Args:
        cluster: Without what is found here.
        config: That ran.
        run: What it took.
        call: How many times as long calls take.
    """
    stages = {stage.name: stage for stage in expect(config, cluster).stages}
    reader, dense = ("sparse ", "dense ") if config.workers == "split" else ("", "")
    on_core = {name: stage["cpu"] for name, stage in run.stages.items()}

    def predicted(resource: str, *labels: str) -> float:
        parts = [part for stage in stages.values() for part in stage.whole_cost.parts]
        return sum(p.amount for p in parts if p.resource == resource and p.label in labels)

    yield "route", on_core[f"{reader}route"] / stages["route"].cost.on("worker")
    looks = sum(part.amount for part in stages["dense"].aside.parts if part.label == "look")
    yield "dense", on_core[f"{dense}dense"] / (stages["dense"].cost.on("worker") + looks)
    if not config.servers:
        for name in ("pull", "push"):
            yield name, on_core[name] / stages[name].cost.on("worker")
        return
    # Calls and messages are in threads of gRPC, too: they are what is left over.
    others = sum(part.amount for part in stages["dense"].aside.parts if part.label in ASIDE)
    known = on_core[f"{reader}route"] + on_core[f"{dense}dense"] + others
    known += predicted("worker", "upload", "download")
    if config.workers == "whole":
        yield "call", (run.cpu["whole"] - known) / predicted("worker", "call")
        on_servers = sum(stage.whole_cost.on("server") for stage in stages.values())
        yield "server", run.cpu["server 0"] / on_servers
        return
    known += call * predicted("worker", "call") + predicted("worker", "pool")
    left = run.cpu["sparse"] + run.cpu["dense"] - known
    yield "cut", left / predicted("worker", "message")


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
