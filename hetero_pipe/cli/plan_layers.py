"""`hetero-pipe plan --layers`: which layers of a model run where, on how many units."""

import argparse
import json
import sys

from hetero_pipe.cost import CostModel
from hetero_pipe.errors import ConfigError, PlanError
from hetero_pipe.planner import Aim, assumed_of, explain_layers, layers_told, propose_layers

__all__ = ["NO_PLAN", "check_layers", "run_layers"]

NO_PLAN = 3
"""The exit code where nothing fits."""


def check_layers(options: argparse.Namespace) -> None:
    """Refuses flags that are of plans for a Trainer.

    Raises:
        ConfigError: There is one.
    """
    given = {
        "--out": options.out is not None,
        "--wide": options.wide,
        "--staleness": options.staleness is not None,
    }
    if strays := [flag for flag, is_given in given.items() if is_given]:
        raise ConfigError(
            f"--layers assigns layers to units, which is no plan for a Trainer; got "
            f"{', '.join(strays)} beside it; leave out one of both"
        )


def run_layers(options: argparse.Namespace, model: CostModel, aim: Aim) -> int:
    """Prints the best assignment; returns the exit code."""
    try:
        found = propose_layers(
            model,
            aim,
            batch_sizes=options.batch_size,
            mode=options.mode or "bounded",
            wire=options.wire,
        )
    except PlanError as error:
        print(f"hetero-pipe: error: {error}", file=sys.stderr)
        return NO_PLAN
    if options.json:
        print(json.dumps(layers_told(found), indent=2))
        return 0
    told = explain_layers(
        found,
        samples=model.workload.samples,
        has_prices=model.cluster.price_per_hour is not None,
        assumed=assumed_of(model, batch=found.batch),
    )
    print(told)
    return 0
