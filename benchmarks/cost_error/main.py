"""How far is the cost model from what happens? Predicted beside measured, on this machine.

Each configuration is trained in processes of its own, all of them in each round,
so that what else the machine does hits all; README.md beside this file tells what
is measured.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calibrate import beside, medians, needed, profiled
from config import Config, load_configs
from predict import Predicted, predict
from run import Measured, run_config

import hetero_pipe as hp
from hetero_pipe.cluster import cluster_from_json, cluster_to_json

MOST_OTHERS = 0.05  # share of the cores: such a run is repeated
FOLDER = Path(__file__).parent
QUICK = ("deepfm-512-server-k2", "emulated-wide_deep-2048-server-k2")
HEADER = (
    "| configuration | predicted ms | measured ms (min, max) | error | spread "
    "| predicted MB | measured MB | error | busiest stage | CPU ms | others |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> None:
    """Measures, predicts and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="two configurations, one round")
    add("--json", action="store_true", help="last line is one JSON object")
    add("--config", type=Path, metavar="FILE", help="TOML with [[config]] tables; default: ours")
    add("--only", nargs="+", metavar="NAME", help="configurations; default: all of the file")
    add("--rounds", type=int, help="default: 3")
    add(
        "--state",
        type=Path,
        metavar="FILE",
        help="add what is found, and tell of all that is in it; --rounds 0 adds nothing",
    )
    add("--tries", type=int, default=2, help="of a run that others disturb; default: 2")
    add("--without-rates", action="store_true", help="those of --state are enough")
    add("--verbose", action="store_true", help="show what the processes say")
    flags = parser.parse_args()
    try:
        configs = _selected(flags)
    except hp.ConfigError as error:
        sys.exit(f"error: {error}")
    found = _read(flags.state)
    usual = 1 if flags.quick else 3
    for i in range(usual if flags.rounds is None else flags.rounds):
        for each in _round(configs, i, flags):
            found.append(each)
            if flags.state:
                with flags.state.open("a") as file:
                    print(json.dumps(each.to_json()), file=file)
    _tell(configs, found, as_json=flags.json)


def _round(configs: Sequence[Config], number: int, flags: argparse.Namespace) -> Iterator["Found"]:
    """Yields the rates of now, and a run of each configuration and of the references among them."""
    references: list[Config] = []
    if not flags.without_rates:
        with tempfile.TemporaryDirectory() as folder:
            yield Found(cluster=profiled(configs, folder=Path(folder), is_quick=flags.quick))
        references = needed(configs)
    for config in _spread_out(references, configs):
        yield Found(config.name, run=_undisturbed(config, number, flags))


def _spread_out(some: Sequence[Config], others: Sequence[Config]) -> list[Config]:
    """Returns all of both, the first ones evenly among the others: they see the same hour."""
    places = [(i / len(some), 0, each) for i, each in enumerate(some)]
    places += [(i / len(others), 1, each) for i, each in enumerate(others)]
    return [each for _, _, each in sorted(places, key=lambda place: place[:2])]


@dataclass(frozen=True)
class Found:
    """What a part of a round has found: this machine's rates, or a run of a configuration."""

    name: str = ""
    run: Measured | None = None
    cluster: hp.Cluster | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        if self.run is not None:
            return {"name": self.name, "run": asdict(self.run)}
        assert self.cluster is not None, "it is one of the two"
        return {"cluster": cluster_to_json(self.cluster)}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> "Found":
        """Returns what `to_json` gave."""
        if "run" in found:
            return Found(found["name"], run=Measured(**found["run"]))
        return Found(cluster=cluster_from_json(found["cluster"]))


def _read(path: Path | None) -> list[Found]:
    if path is None or not path.exists():
        return []
    return [Found.from_json(json.loads(line)) for line in path.read_text().splitlines()]


def _tell(configs: Sequence[Config], parts: Sequence[Found], *, as_json: bool) -> None:
    """Prints what was predicted from all rounds beside what was measured in all of them."""
    cluster = medians([each.cluster for each in parts if each.cluster is not None])
    references = {config.name: config for config in needed(configs)}
    known = [(references[p.name], p.run) for p in parts if p.run and p.name in references]
    cluster = beside(cluster, known)
    runs = {c.name: [p.run for p in parts if p.name == c.name and p.run] for c in configs}
    measured = [config for config in configs if runs[config.name]]
    found = [result(each, runs[each.name], predict(each, cluster)) for each in measured]
    print(f"\n{HEADER}")
    for each in found:
        print(row(each))
    for name, value in errors(found).items():
        print(f"{name}: {value}")
    if as_json:
        print(json.dumps({"results": found, **errors(found)}))


def _undisturbed(config: Config, number: int, flags: argparse.Namespace) -> Measured:
    """Runs a configuration, again if others had much of the cores; returns the best run."""
    runs: list[Measured] = []
    while len(runs) < flags.tries and not any(run.others < MOST_OTHERS for run in runs):
        runs.append(run_config(config, verbose=flags.verbose))
    best = min(runs, key=lambda run: run.others)
    step, others = 1e3 * best.step, best.others
    tries = f", of {len(runs)} tries" if len(runs) > 1 else ""
    print(f"round {number}, {config.name}: {step:.2f} ms{tries}, others {others:.0%}", flush=True)
    return best


def _selected(flags: argparse.Namespace) -> list[Config]:
    """Returns the configurations that are asked for."""
    configs = load_configs(flags.config or FOLDER / "configs.toml")
    only = flags.only or (QUICK if flags.quick and not flags.config else None)
    if only is None:
        return configs
    names = [config.name for config in configs]
    strays = set(only) - set(names)
    if strays:
        raise hp.ConfigError(f"no config {', '.join(sorted(strays))}; there are {', '.join(names)}")
    return [config for config in configs if config.name in only]


def result(config: Config, runs: Sequence[Measured], predicted: Predicted | None) -> dict[str, Any]:
    """Returns what is told of a configuration: of its run with the median step time."""
    steps, sizes = [run.step for run in runs], [run.peak_bytes for run in runs]
    middle = sorted(runs, key=lambda run: run.step)[len(runs) // 2]
    return {
        "name": config.name,
        "predicted_s": predicted and predicted.step,
        "measured_s": statistics.median(steps),
        "predicted_bytes": predicted and predicted.peak_bytes,
        "measured_bytes": int(statistics.median(sizes)),
        "is_emulated": config.is_emulated,
        "repeats_s": steps,
        "repeats_bytes": sizes,
        "spread": spread(steps),
        "core_speeds": [run.core_speed for run in runs],
        "others": max(run.others for run in runs),
        "predicted_stages": predicted and dict(predicted.stages),
        "measured": asdict(middle),
        "config": asdict(config),
    }


def spread(values: Sequence[float]) -> float:
    """Returns the most that a repeat is away from the median, as a share of that."""
    middle = statistics.median(values)
    return max(abs(value - middle) for value in values) / middle


def error(found: dict[str, Any], unit: str) -> float | None:
    """Returns how far predicted is above (or below) measured, as a share of that."""
    if found[f"predicted_{unit}"] is None:
        return None
    return found[f"predicted_{unit}"] / found[f"measured_{unit}"] - 1


def errors(found: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Returns the errors over all configurations, and their spread beside it."""
    told: dict[str, float | None] = {}
    for unit, prefix in (("s", ""), ("bytes", "memory_")):
        sizes = [abs(e) for each in found if (e := error(each, unit)) is not None]
        told[f"{prefix}median_error"] = statistics.median(sizes) if sizes else None
        told[f"{prefix}worst_error"] = max(sizes, default=None)
    told["median_spread"] = statistics.median(each["spread"] for each in found)
    told["worst_spread"] = max(each["spread"] for each in found)
    return told


def row(found: dict[str, Any]) -> str:
    """Returns the line of a table for a configuration."""
    steps, stages = found["repeats_s"], found["measured"]["stages"]
    longest = max(stages, key=lambda name: stages[name]["busy"])
    predicted_s, predicted_bytes = found["predicted_s"], found["predicted_bytes"]
    cells = [
        found["name"],
        "" if predicted_s is None else f"{1e3 * predicted_s:.2f}",
        f"{1e3 * found['measured_s']:.2f} ({1e3 * min(steps):.2f}, {1e3 * max(steps):.2f})",
        _percent(error(found, "s")),
        f"{found['spread']:.1%}",
        "" if predicted_bytes is None else f"{predicted_bytes / 1e6:.0f}",
        f"{found['measured_bytes'] / 1e6:.0f}",
        _percent(error(found, "bytes")),
        f"{longest} {1e3 * stages[longest]['busy']:.2f} ms",
        f"{1e3 * sum(found['measured']['cpu'].values()):.1f}",
        f"{found['others']:.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}"


if __name__ == "__main__":
    main()
