"""Does the planner take the plan that is fastest here? Each candidate is trained for real."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_error"))

from config import Config
from predict import predict
from run import run_config

import hetero_pipe as hp

TASKS = (("deepfm", 256), ("wide_deep", 1024))
SERVERS = (0, 1)
STALENESS = (0, 1, 2)


def compare_measured(cluster: hp.Cluster, *, rounds: int) -> Iterator[dict[str, Any]]:
    """Yields for each model and batch the plan that is predicted to be fastest, and how fast it is.

    What is chosen from is what one process can do: its tables in its memory or on a
    server, and a staleness of up to 2.
    """
    for model, batch in TASKS:
        configs = [
            Config(f"{model}-{batch}-{servers}-{k}", model, batch, servers=servers, staleness=k)
            for servers in SERVERS
            for k in STALENESS
        ]
        steps: dict[str, list[float]] = {config.name: [] for config in configs}
        for _ in range(rounds):
            for config in configs:
                steps[config.name].append(run_config(config).step)
        measured = {name: min(found) for name, found in steps.items()}
        predicted = {}
        for config in configs:
            found = predict(config, cluster)
            assert found is not None, "the CPU is predicted"
            predicted[config.name] = found.step
        picked = min(predicted, key=lambda name: predicted[name])
        fastest = min(measured, key=lambda name: measured[name])
        yield {
            "model": model,
            "batch_size": batch,
            "picked": picked,
            "fastest": fastest,
            "over_fastest": measured[picked] / measured[fastest] - 1,
            "measured_s": measured,
            "predicted_s": predicted,
        }
