"""What stages take beside each other, found from reference configurations that are not judged."""

import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from config import Config, load_configs
from predict import expect
from run import Measured, device_environment

from hetero_pipe.cluster import Cluster, Rate, Spread, load_cluster
from hetero_pipe.cost import OnCores, beside_factors

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

    Of several runs that tell of one kind of work on one device, it is the median.

    Args:
        cluster: With the rates of the very hour in which they ran.
        runs: Of references; without any, the cluster is as it was.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    # Of several processes, a part is what is left over when the others are known.
    for config, run in sorted(runs, key=lambda each: (each[0].servers, each[0].workers == "split")):
        call = statistics.median(found.get((config.device, "call"), [1.0]))
        alone = expect(config, cluster)
        for kind, factor in beside_factors(alone, _on_cores(config, run), call=call):
            found[config.device, kind].append(factor)
    return cluster.with_rates(
        [
            Rate("beside", HOST, Spread.of(each), device=device, kind=kind)
            for (device, kind), each in found.items()
        ]
    )


def _on_cores(config: Config, run: Measured) -> OnCores:
    """Returns what a run took on cores; of a split one, stages as a whole worker has them."""
    is_split = config.workers == "split"
    stages = {
        name: run.stages[("dense " if name == "dense" else "sparse ") + name if is_split else name][
            "cpu"
        ]
        for name in ("route", "pull", "dense", "push")
    }
    servers = sum(each for name, each in run.cpu.items() if name.startswith("server"))
    return OnCores(stages, sum(run.cpu.values()) - servers, servers)


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
