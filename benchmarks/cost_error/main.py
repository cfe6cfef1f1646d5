"""How far is the cost model from what happens? Predicted beside measured, on this machine.

Each configuration is trained in processes of its own, all of them in each round,
so that what else the machine does hits all; README.md beside this file tells what
is measured.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from config import Config, load_configs
from predict import Predicted, predict
from run import Measured, run_config

import hetero_pipe as hp
from hetero_pipe.cluster import discover, load_cluster

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
        "--cluster",
        type=Path,
        metavar="FILE",
        help="what `hetero-pipe profile` measured here; default: what is found without measuring",
    )
    add("--verbose", action="store_true", help="show what the processes say")
    flags = parser.parse_args()
    try:
        configs = _selected(flags)
        cluster = load_cluster(flags.cluster) if flags.cluster else hp.Cluster((discover(),))
    except hp.ConfigError as error:
        sys.exit(f"error: {error}")
    runs: dict[str, list[Measured]] = {config.name: [] for config in configs}
    for i in range(flags.rounds or (1 if flags.quick else 3)):
        for config in configs:
            runs[config.name].append(run_config(config, verbose=flags.verbose))
            step = 1e3 * runs[config.name][-1].step
            print(f"round {i}, {config.name}: {step:.2f} ms", flush=True)
    found = [result(each, runs[each.name], predict(each, cluster)) for each in configs]
    print(f"\n{HEADER}")
    for each in found:
        print(row(each))
    told = {"results": found, **errors(found)}
    for name, value in errors(found).items():
        print(f"{name}: {value}")
    if flags.json:
        print(json.dumps(told))


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
