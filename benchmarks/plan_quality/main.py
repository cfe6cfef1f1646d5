"""Is the plan that is chosen the best one? Against every plan, and against what is measured.

On random small problems the planner's plan must cost what the best of all plans
costs. On this machine all that it can choose from is trained for real, and its pick
stands beside the fastest; README.md beside this file tells more.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from candidates import SETTINGS, Setting, compare, measure
from every_plan import every_prediction
from problems import LARGE, SPACES, Problem, draw, large_problem

import hetero_pipe as hp
from hetero_pipe.cluster import discover, load_cluster
from hetero_pipe.cost import CostModel
from hetero_pipe.errors import PlanError
from hetero_pipe.planner import Aim, Space, propose

EQUAL = 1e-9
"""Relative: sums of the same terms in another order."""

SHARES = (0.001, 0.02, 0.3, 0.95, 2.0)
"""Of the most samples a second: easy, medium, near to the most, and more than there is."""


def main() -> None:
    """Plans, compares and prints."""
    flags = _flags()
    cluster = load_cluster(flags.cluster) if flags.cluster else hp.Cluster((discover(),))
    told: dict[str, Any] = {"problems": [], "large": [], "picks": []}
    if flags.only in (None, "random"):
        told["problems"] = [against_every_plan(draw(seed)) for seed in range(flags.problems)]
        print_problems(told["problems"])
    if flags.only in (None, "large"):
        names = [flags.large] if flags.large else list(LARGE)
        told["large"] = plan_large(names[:1], shares=(0.3,)) if flags.quick else plan_large(names)
    if flags.only in (None, "measured"):
        settings = SETTINGS[:1] if flags.quick else SETTINGS
        told["picks"] = against_measured(settings, flags, cluster)
        print_picks(told["picks"])
    told["num_wrong"] = sum(not each["is_best"] for each in told["problems"])
    told["worst_pick"] = max((each["pick_over_fastest"] for each in told["picks"]), default=None)
    if flags.json:
        print(json.dumps(told))
    if told["num_wrong"]:
        sys.exit("error: a plan is not the best of all")


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="8 problems, one cluster, one model, one round")
    add("--json", action="store_true", help="last line is one JSON object")
    add("--only", choices=("random", "large", "measured"), help="one of three; default: all")
    add("--large", choices=tuple(LARGE), help="one of the large clusters; default: all")
    add("--problems", type=int, metavar="N", help="random ones; default: 40")
    add("--rounds", type=int, help="runs of each candidate; default: 3")
    add("--cluster", type=Path, metavar="FILE", help="what `hetero-pipe profile` measured here")
    add("--cache", type=Path, metavar="FILE", help="of runs: those in it are not run again")
    add("--seconds", type=float, default=math.inf, help="after which no run starts")
    flags = parser.parse_args()
    flags.problems = flags.problems or (8 if flags.quick else 40)
    flags.rounds = flags.rounds or (1 if flags.quick else 3)
    return flags


def against_every_plan(problem: Problem) -> dict[str, Any]:
    """Returns whether the planner finds the best plan for each aim, and how long both take."""
    space = SPACES[problem.space]
    start = time.perf_counter()
    predictions = every_prediction(problem.cost, space)
    brute_seconds = time.perf_counter() - start
    most = max((each.samples_per_second for each in predictions), default=0.0)
    aims = [Aim(), Aim("epoch"), *([Aim("money", 0.5 * most)] if most else [])]
    found = []
    start = time.perf_counter()
    for aim in aims:
        best = min((aim.loss(each) for each in predictions), default=math.inf)
        found.append((aim.what, best, _loss(problem, aim)))
    return {
        "seed": problem.seed,
        "model": problem.model,
        "space": problem.space,
        "num_plans": len(predictions),
        "is_best": all(math.isclose(a, b, rel_tol=EQUAL) for _, a, b in found),
        "losses": {what: None if best == math.inf else [best, loss] for what, best, loss in found},
        "planner_s": (time.perf_counter() - start) / len(aims),
        "brute_force_s": brute_seconds,
    }


def plan_large(names: Sequence[str], shares: Sequence[float] = SHARES) -> list[dict[str, Any]]:
    """Returns how long plans of a thousand devices take, and how sure they are.

    Args:
        names: Of clusters.
        shares: Of the most samples a second: what is required where money counts by the hour.
    """
    print(
        "\n| cluster | devices | best | required samples/s | s | of a core | predictions | gap "
        "| plan |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    told = []
    for name in names:
        model, space = large_problem(name)
        most = _planned(name, model, space, Aim())
        told.append(most)
        told.append(_planned(name, model, space, Aim("epoch")))
        for share in shares:
            told.append(_planned(name, model, space, Aim("money", share / most["loss"])))
    return told


def _planned(name: str, model: CostModel, space: Space, aim: Aim) -> dict[str, Any]:
    """Returns what came of one plan of a large cluster, and prints it."""
    start, cpu = time.perf_counter(), time.process_time()
    found: dict[str, Any] = {
        "cluster": name,
        "num_devices": model.cluster.num_devices,
        "aim": aim.what,
        "throughput": aim.throughput,
    }
    try:
        proposal = propose(model, space, aim)
        found |= {
            "loss": proposal.loss,
            "gap": proposal.gap,
            "num_predicted": proposal.num_predicted,
            "plan": proposal.kind,
        }
    except PlanError as error:
        found |= {"loss": None, "gap": None, "num_predicted": None, "plan": str(error)[:60]}
    found |= {"planner_s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}
    number = "" if found["num_predicted"] is None else f"{found['num_predicted']:,}"
    gap = "" if found["gap"] is None else f"{found['gap']:.1%}"
    cells = [
        name,
        f"{found['num_devices']:,}",
        aim.what,
        f"{aim.throughput:.3g}" if aim.throughput else "",
        f"{found['planner_s']:.1f}",
        f"{found['cpu_s']:.1f}",
        number,
        gap,
        found["plan"],
    ]
    print(f"| {' | '.join(cells)} |", flush=True)
    return found


def _loss(problem: Problem, aim: Aim) -> float:
    """Returns the loss of the plan that is proposed, infinite if there is none."""
    try:
        plan = propose(problem.cost, SPACES[problem.space], aim).plan
    except PlanError:
        return math.inf
    assert plan.predicted is not None
    return aim.loss(plan.predicted)


def against_measured(
    settings: Sequence[Setting], flags: argparse.Namespace, cluster: hp.Cluster
) -> list[dict[str, Any]]:
    """Returns what is picked of each setting whose candidates were all measured."""
    end = time.monotonic() + flags.seconds
    runs = measure(settings, flags.cache, rounds=flags.rounds, end=end)
    return [
        compare(setting, cluster, runs)
        for setting in settings
        if all(runs.get(config.name) for config in setting.candidates)
    ]


def print_problems(found: Sequence[dict[str, Any]]) -> None:
    """Prints random problems by what may be chosen."""
    print(
        "| what may be chosen | problems | plans that fit | best found | planner s | all plans s |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for space in SPACES:
        some = [each for each in found if each["space"] == space]
        if not some:
            continue
        plans = [each["num_plans"] for each in some]
        cells = [
            space,
            str(len(some)),
            f"{min(plans)} to {max(plans)}",
            f"{sum(each['is_best'] for each in some)} of {len(some)}",
            _seconds(some, "planner_s"),
            _seconds(some, "brute_force_s"),
        ]
        print(f"| {' | '.join(cells)} |")


def _seconds(found: Sequence[dict[str, Any]], key: str) -> str:
    values = [each[key] for each in found]
    return f"{statistics.median(values):.2f} (at most {max(values):.2f})"


def print_picks(found: Sequence[dict[str, Any]]) -> None:
    """Prints each candidate, and what was picked beside the fastest."""
    print("\n| candidate | predicted ms | after learning | measured ms (min, max) | |")
    print("| --- | --- | --- | --- | --- |")
    for setting in found:
        for name, each in setting["candidates"].items():
            repeats = each["repeats_s"]
            marks = [
                mark
                for mark, other in (
                    ("pick", setting["picks"][0]),
                    ("pick after learning", setting["picks"][-1]),
                    ("fastest", setting["fastest"]),
                )
                if name == other
            ]
            print(
                f"| {name} | {1e3 * each['predicted_s']:.2f} "
                f"| {1e3 * each['predicted_after_learning_s']:.2f} "
                f"| {1e3 * each['measured_s']:.2f} "
                f"({1e3 * min(repeats):.2f}, {1e3 * max(repeats):.2f}) | {', '.join(marks)} |"
            )
    print("\n| setting | pick by fastest | after learning | slowest by fastest | spread |")
    print("| --- | --- | --- | --- | --- |")
    for each in found:
        print(
            f"| {each['name']} | {each['pick_over_fastest']:.2f} "
            f"| {each['last_pick_over_fastest']:.2f} | {each['slowest_over_fastest']:.2f} "
            f"| {each['spread']:.0%} |"
        )


if __name__ == "__main__":
    main()
