"""Is the plan the best one? Against every plan of random problems, and against real runs here.

README.md beside this file says what is found.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exhaustive import every_prediction
from problems import large_problem, random_problem, trace_models

from hetero_pipe.cluster import Cluster, discover, load_cluster
from hetero_pipe.errors import PlanError
from hetero_pipe.graph import Graph
from hetero_pipe.planner import AIMS, Aim, propose

NUM_PROBLEMS = 36
QUICK_PROBLEMS = 6


def main() -> None:
    """Compares, measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help=f"{QUICK_PROBLEMS} problems, nothing trained")
    add("--json", action="store_true", help="last line is one JSON object")
    add("--problems", type=int, help=f"default: {NUM_PROBLEMS}")
    add("--rounds", type=int, default=2, help="of real runs, 0 for none; default: %(default)s")
    add(
        "--cluster",
        type=Path,
        metavar="FILE",
        help="what `hetero-pipe profile` measured here; default: what is found without measuring",
    )
    flags = parser.parse_args()
    graphs = trace_models()
    number = flags.problems or (QUICK_PROBLEMS if flags.quick else NUM_PROBLEMS)
    print("problem, objective: planner by brute force, plans of the space, predictions of both")
    problems = []
    for seed in range(number):
        for found in compare_problem(seed, graphs):
            problems.append(found)
            print(
                f"{seed:3} {found['objective']:10} {_ratio(found)} "
                f"{found['num_plans']:6} plans, {found['num_predicted']:6} predicted, "
                f"{found['seconds']:.2f} s against {found['brute_force_seconds']:.2f} s",
                flush=True,
            )
    told: dict[str, Any] = {
        "num_problems": number,
        "num_compared": len(problems),
        "num_equal": sum(each["is_equal"] for each in problems),
        "problems": problems,
    }
    if not flags.quick:
        told["large"] = list(plan_large(graphs))
        if flags.rounds:
            from measured import compare_measured  # noqa: PLC0415  # needs what trains

            cluster = load_cluster(flags.cluster) if flags.cluster else Cluster((discover(),))
            told["measured"] = list(compare_measured(cluster, rounds=flags.rounds))
            for each in told["measured"]:
                print(
                    f"{each['model']} {each['batch_size']}: picked {each['picked']}, fastest "
                    f"{each['fastest']}, {each['over_fastest']:.1%} slower than that"
                )
                for name, step in each["measured_s"].items():
                    print(
                        f"  {name:24} measured {1e3 * step:7.2f} ms, predicted "
                        f"{1e3 * each['predicted_s'][name]:7.2f} ms"
                    )
    print(f"equal: {told['num_equal']} of {told['num_compared']}, of {number} problems")
    if flags.json:
        print(json.dumps(told))


def compare_problem(seed: int, graphs: Mapping[str, Graph]) -> Iterator[dict[str, Any]]:
    """Yields how the planner's plan compares with the best of all plans, by objective."""
    model, space = random_problem(seed, graphs)
    start = time.perf_counter()
    predictions, num_plans = every_prediction(model, space)
    brute_force_seconds = time.perf_counter() - start
    fastest = max((each.samples_per_second for each in predictions), default=0.0)
    required = fastest * random.Random(seed).uniform(0.2, 0.8)
    for what in AIMS:
        if what == "money" and not required:
            continue
        aim = Aim(what, required if what == "money" else 0.0)
        least = min(map(aim.loss, predictions), default=math.inf)
        start = time.perf_counter()
        try:
            proposal = propose(model, space, aim)
            loss, num_predicted, gap = proposal.loss, proposal.num_predicted, proposal.gap
        except PlanError:
            loss, num_predicted, gap = math.inf, 0, 0.0
        yield {
            "seed": seed,
            "objective": what,
            "loss": None if math.isinf(loss) else loss,
            "least": None if math.isinf(least) else least,
            "is_equal": loss == least or math.isclose(loss, least, rel_tol=1e-9),
            "gap": gap,
            "num_plans": num_plans,
            "num_predicted": num_predicted,
            "seconds": time.perf_counter() - start,
            "brute_force_seconds": brute_force_seconds,
        }


def plan_large(graphs: Mapping[str, Graph]) -> Iterator[dict[str, Any]]:
    """Yields how long a plan of a thousand devices takes, and how sure it is."""
    for aim in (Aim(), Aim("epoch"), Aim("money", 2e7)):
        model, space = large_problem(graphs)
        start = time.perf_counter()
        proposal = propose(model, space, aim)
        found = {
            "objective": aim.what,
            "num_devices": model.cluster.num_devices,
            "kind": proposal.kind,
            "gap": proposal.gap,
            "num_predicted": proposal.num_predicted,
            "seconds": time.perf_counter() - start,
        }
        print(
            f"{found['num_devices']} devices, {aim.what}: {found['seconds']:.1f} s, "
            f"{proposal.num_predicted} predicted, gap {proposal.gap:.2%}: {proposal.kind}"
        )
        yield found


def _ratio(found: Mapping[str, Any]) -> str:
    if found["loss"] is None or found["least"] is None:
        return "nothing fits" if found["is_equal"] else "DIFFERS     "
    return f"{found['loss'] / found['least']:12.9f}"


if __name__ == "__main__":
    main()
