"""How much do published kinds of scheduler lose to the best assignment of layers to devices?

Each scheduler gets each stack of stacks.toml with each price list, and those of the models
of examples/ctr on each cluster of clusters/, for three goals: least price an hour and
least price a sample, both at 0.3 of the most throughput that all units reach, and most
throughput. Nothing is run: what counts is what the models of docs/planner.md say. Brute
force tries all assignments where there are few.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from stacks import build, load
from traced import load_traced

from hetero_pipe.errors import PlanError
from hetero_pipe.planner.layers import (
    Goal,
    LayerStack,
    Objective,
    Solution,
    brute_force,
    exact,
    genetic,
    greedy,
    heuristic,
    one_type,
    random_search,
    trainable,
)

SHARE = 0.3  # of the most throughput, that is required
EQUAL = 1e-9  # relative


def schedulers(*, quick: bool) -> dict[str, Callable[[LayerStack, Objective], Solution]]:
    """Returns those that are compared with the exact one, by name."""
    tries, generations = (50, 2) if quick else (100, 5)
    return {
        "heuristic": heuristic,
        "greedy": greedy,
        "one type": one_type,
        "cuts a Trainer runs": trainable,
        f"random, {tries} tries": partial(random_search, rng=Random(0), num_tries=tries),
        f"genetic, {generations} generations": partial(
            genetic, rng=Random(0), num_generations=generations
        ),
    }


def attempt(scheduler: Callable, stack: LayerStack, objective: Objective) -> dict:
    """Returns what a scheduler finds, None for nothing, and the seconds it takes."""
    began = time.perf_counter()
    try:
        solution = scheduler(stack, objective)
    except PlanError:
        solution = None
    return {"solution": solution, "seconds": time.perf_counter() - began}


def compare(
    stack: LayerStack, objective: Objective, *, others: dict[str, Callable], most_tries: int
) -> dict:
    """Returns each scheduler's loss over the exact one's; None where it finds nothing."""
    best = attempt(exact, stack, objective)
    assert best["solution"] is not None
    loss = best["solution"].loss
    tried = dict(others)
    if len(stack.types) ** len(stack.layers) <= most_tries:
        tried["brute force"] = brute_force
    found = {
        "stack": stack.name,
        "goal": objective.goal.name,
        "num_stages": len(best["solution"].assignment.stages),
        "is_proven": best["solution"].is_optimal,
        "exact_seconds": best["seconds"],
        "over_exact": {},
        "seconds": {},
    }
    for name, scheduler in tried.items():
        each = attempt(scheduler, stack, objective)
        solution = each["solution"]
        found["over_exact"][name] = None if solution is None else solution.loss / loss
        found["seconds"][name] = each["seconds"]
    return found


def measure(*, quick: bool) -> list[dict]:
    """Returns the comparison of every stack, price list or cluster, and goal."""
    results = []
    for is_traced, prices, stack in all_stacks(quick=quick):
        fastest = exact(stack, Objective(Goal.TIME_PER_SAMPLE)).assignment.throughput
        for goal in Goal:
            required = 0.0 if goal is Goal.TIME_PER_SAMPLE else SHARE * fastest
            found = compare(
                stack,
                Objective(goal, required),
                others=schedulers(quick=quick),
                most_tries=300 if quick else 1100,
            )
            results.append({"is_traced": is_traced, "prices": prices, **found})
    return results


def all_stacks(*, quick: bool) -> Iterator[tuple[bool, str, LayerStack]]:
    """Yields whether a stack was traced, its price list or cluster, and the stack."""
    stacks, devices, lists = load()
    for name, prices in lists.items():
        for each in stacks[::4] if quick else stacks:
            yield False, name, build(each, devices, prices)
    for name, stack in load_traced(quick=quick):
        yield True, name, stack


def show(results: list[dict]) -> None:
    """Prints a line for each stack, and a table of each scheduler over all of a sort."""
    names = [name for name in results[0]["over_exact"] if name != "brute force"]
    print("loss over the optimum: price an hour / price a sample / time a sample; - finds nothing")
    print(f"{'stack':18}{'prices':10}" + "".join(f"{name[:20]:>21}" for name in names))
    for i in range(0, len(results), len(Goal)):
        three = results[i : i + len(Goal)]
        cells = ("/".join(ratio(each["over_exact"][name]) for each in three) for name in names)
        head = f"{three[0]['stack']:18}{three[0]['prices']:10}"
        print(head + "".join(f"{cell:>21}" for cell in cells))
    for is_traced, title in ((False, "stacks that are written down"), (True, "stacks of models")):
        some = [each for each in results if each["is_traced"] is is_traced]
        print(f"\n{title}")
        summarise(some, names)


def summarise(results: list[dict], names: list[str]) -> None:
    """Prints a table of each scheduler over some problems, and what the exact one proves."""
    print(f"{'':24}{'problems':>9}{'nothing':>9}{'best':>6}{'median':>8}{'max':>8}{'max s':>8}")
    for name in [*names, "brute force"]:
        ratios = [each["over_exact"][name] for each in results if name in each["over_exact"]]
        seconds = [each["seconds"][name] for each in results if name in each["seconds"]]
        fit = [each for each in ratios if each is not None]
        if not fit:
            continue
        best = sum(each <= 1 + EQUAL for each in fit)
        print(
            f"{name:24}{len(ratios):9}{len(ratios) - len(fit):9}{best:6}"
            f"{statistics.median(fit):8.3f}{max(fit):8.2f}{max(seconds):8.2f}"
        )
    times = [each["exact_seconds"] for each in results]
    proven = sum(each["is_proven"] for each in results)
    print(
        f"{'exact':24}{len(results):9}{0:9}{len(results):6}{1:8.3f}{1:8.2f}{max(times):8.2f}\n"
        f"exact: proven {proven} of {len(results)}, never worse: {never_worse(results)}, "
        f"median {statistics.median(times):.3f} s, max {max(times):.3f} s"
    )


def ratio(over: float | None) -> str:
    """Returns a ratio in a few letters."""
    return "-" if over is None else f"{over:.2f}"


def never_worse(results: list[dict]) -> bool:
    """Returns whether nothing beats the exact scheduler, and brute force always equals it."""
    return all(
        over is None or (over >= 1 - EQUAL and (name != "brute force" or over <= 1 + EQUAL))
        for each in results
        for name, over in each["over_exact"].items()
    )


def main() -> None:
    """Compares the schedulers and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the stacks")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    flags = parser.parse_args()
    results = measure(quick=flags.quick)
    show(results)
    if flags.json:
        exact_max = max(each["exact_seconds"] for each in results)
        print(
            json.dumps(
                {
                    "results": results,
                    "never_worse": never_worse(results),
                    "all_proven": all(each["is_proven"] for each in results),
                    "exact_max_seconds": exact_max,
                }
            )
        )


if __name__ == "__main__":
    main()
