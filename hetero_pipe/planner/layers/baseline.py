"""The schedulers that HeterPS is compared with, and that `exact` is: quick, and often wrong.

The paper names them and says little of how they decide; what is assumed stands at each.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from random import Random

from hetero_pipe.errors import PlanError
from hetero_pipe.planner.layers.assignment import Assignment
from hetero_pipe.planner.layers.objective import Objective, Solution
from hetero_pipe.planner.layers.provision import Provisioner
from hetero_pipe.planner.layers.stack import LayerStack

__all__ = ["best_of", "brute_force", "genetic", "greedy", "heuristic", "one_type", "random_search"]

MUTATION = 0.1  # of a layer's type, in `genetic`


def brute_force(stack: LayerStack, objective: Objective) -> Solution:
    """Returns the best of all assignments, each tried: types ** layers of them.

    Raises:
        PlanError: None does what the objective requires.
    """
    found = best_of(stack, objective, _all(stack))
    return replace(found, bound=found.loss)


def one_type(stack: LayerStack, objective: Objective) -> Solution:
    """Returns the best assignment of all layers to one type: CPU-only, GPU-only.

    Raises:
        PlanError: No type is enough for all layers.
    """
    alike = ((number,) * len(stack.layers) for number in range(len(stack.types)))
    return best_of(stack, objective, alike)


def heuristic(stack: LayerStack, objective: Objective) -> Solution:
    """Returns the best assignment of sparse layers to one type of CPU, all others to another type.

    Of several CPUs and several others it takes the best pair, which flatters it:
    the paper has one of each.

    Raises:
        PlanError: No such pair is enough.
    """
    cpus = [i for i, each in enumerate(stack.types) if each.kind == "cpu"]
    others = [i for i, each in enumerate(stack.types) if each.kind != "cpu"]
    pairs = (
        [cpu if layer.kind == "sparse" else other for layer in stack.layers]
        for cpu, other in product(cpus, others)
    )
    return best_of(stack, objective, pairs)


def greedy(stack: LayerStack, objective: Objective) -> Solution:
    """Returns what comes of giving layer after layer the type that is best so far.

    Best is least loss of the layers up to this one, as if they were the model;
    no choice is taken back.

    Raises:
        PlanError: At some layer no type is enough.
    """
    chosen: list[int] = []
    for num_layers in range(1, len(stack.layers) + 1):
        front = replace(stack, layers=stack.layers[:num_layers])
        options = ([*chosen, number] for number in range(len(stack.types)))
        found = best_of(front, objective, options)
        names = [each.name for each in stack.types]
        chosen.append(names.index(found.assignment.types[-1]))
    return found


def random_search(
    stack: LayerStack, objective: Objective, *, rng: Random | None = None, num_tries: int = 1000
) -> Solution:
    """Returns the best of assignments drawn at random, each layer's type by itself.

    Raises:
        PlanError: None of those drawn is enough.
    """
    rng = rng or Random(0)
    draws = (_draw(stack, rng) for _ in range(num_tries))
    return best_of(stack, objective, draws)


def genetic(
    stack: LayerStack,
    objective: Objective,
    *,
    rng: Random | None = None,
    num_alive: int = 40,
    num_generations: int = 25,
) -> Solution:
    """Returns the best of generations of assignments, bred from the better half of the last one.

    A child has its front from one parent and the rest from another, cut anywhere, and each
    layer's type is drawn anew with a chance of `MUTATION`.

    Raises:
        PlanError: None of all that lived is enough.
    """
    rng = rng or Random(0)
    provisioner = Provisioner(stack, objective)
    losses: dict[tuple[int, ...], float] = {}
    alive = [_draw(stack, rng) for _ in range(num_alive)]
    for _ in range(num_generations):
        for types in alive:
            if types not in losses:
                made = _attempt(provisioner, types)
                losses[types] = float("inf") if made is None else objective.loss(made)
        parents = sorted(alive, key=losses.__getitem__)[: num_alive // 2]
        children = [
            _child(stack, rng, *rng.sample(parents, 2)) for _ in range(num_alive - len(parents))
        ]
        alive = [*parents, *children]
    return best_of(stack, objective, sorted(losses, key=losses.__getitem__)[:1])


def best_of(
    stack: LayerStack, objective: Objective, candidates: Iterable[Sequence[int]]
) -> Solution:
    """Returns the best of some assignments.

    Raises:
        PlanError: None is enough; says why the last one is not.
    """
    provisioner = Provisioner(stack, objective)
    best: Solution | None = None
    reason: object = "there is no assignment of this sort; add device types"
    for types in candidates:
        try:
            assignment = provisioner.provision(types)
        except PlanError as error:
            reason = error
            continue
        loss = objective.loss(assignment)
        if best is None or loss < best.loss:
            best = Solution(assignment, loss)
    if best is None:
        raise PlanError(f"none of the assignments tried is enough, the last because {reason}")
    return best


def _attempt(provisioner: Provisioner, types: Sequence[int]) -> Assignment | None:
    try:
        return provisioner.provision(types)
    except PlanError:
        return None


def _all(stack: LayerStack) -> Iterator[tuple[int, ...]]:
    return product(range(len(stack.types)), repeat=len(stack.layers))


def _draw(stack: LayerStack, rng: Random) -> tuple[int, ...]:
    return tuple(rng.randrange(len(stack.types)) for _ in stack.layers)


def _child(
    stack: LayerStack, rng: Random, mother: Sequence[int], father: Sequence[int]
) -> tuple[int, ...]:
    at = rng.randint(0, len(mother))
    return tuple(
        rng.randrange(len(stack.types)) if rng.random() < MUTATION else number
        for number in (*mother[:at], *father[at:])
    )
