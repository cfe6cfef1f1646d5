"""What a step costs: the bounds below which no pipeline of these stages can be."""

from collections.abc import Iterable, Mapping, Sequence

from hetero_pipe.plan import Breakdown, Part

__all__ = ["cores_time", "gate_time", "pipelined_step_time", "queued_step_time", "step_bounds"]


def pipelined_step_time(stage_times: Sequence[float], num_micro_batches: int) -> float:
    """Returns the time of one step of a synchronous pipeline.

    The first micro-batch crosses every stage; each later one leaves one
    bottleneck interval after the one before it::

        T = sum(t_i) + (m - 1) * max(t_i)

    Args:
        stage_times: Forward plus backward time of one micro-batch on each
            stage, in seconds, in pipeline order.
        num_micro_batches: Micro-batches in one step, at least 1.

    Raises:
        ValueError: `stage_times` is empty or `num_micro_batches` is below 1.

    Reference:
        Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism
        for Distributed Deep Learning", OSDI 2022.

    >>> pipelined_step_time([2.0, 3.0, 1.0], num_micro_batches=4)
    15.0
    """
    if not stage_times or num_micro_batches < 1:
        raise ValueError(
            f"a pipeline has a stage and a micro-batch, got {len(stage_times)} stages and "
            f"num_micro_batches={num_micro_batches}"
        )
    return sum(stage_times) + (num_micro_batches - 1) * max(stage_times)


def gate_time(cycle: Iterable[float], staleness: int) -> float:
    """Returns the least time of a step whose pull waits for the push of `1 + staleness` before.

    So many steps are in the cycle of pull, dense and push at once::

        T = sum(t_i) / (1 + k)

    >>> gate_time([2.0, 3.0, 1.0], staleness=1)
    3.0
    """
    return sum(cycle) / (1 + staleness)


def queued_step_time(cycle: Sequence[float], staleness: int, *, chance: float) -> float:
    """Returns the mean time of a step whose batches also wait for one another in the cycle.

    `gate_time` has `1 + staleness` batches in a cycle that never meet, as if each stage took
    the same time always. Where times vary, a batch finds others where it comes: those that
    wait there, and half of the one that is served. With n batches, and what a stage holds
    with one less::

        R_i = t_i * (1 + chance * (waiting_i + served_i / 2))    T(n) = max(sum(R_i) / n, t_i)

    Args:
        cycle: Seconds of each stage between a pull and its push.
        staleness: Pushes that a pull may miss.
        chance: That batches come as by chance, not always when nobody is there; of 0 this is
            `gate_time`, or the longest stage.

    Reference:
        Reiser and Lavenberg, "Mean-Value Analysis of Closed Multichain Queuing
        Networks", JACM 1980; the half is the mean residual of times that do not vary.

    >>> queued_step_time([2.0, 3.0, 1.0], 1, chance=0.0)
    3.0
    >>> round(queued_step_time([2.0, 3.0, 1.0], 1, chance=1.0), 2)
    3.58
    """
    times = [each for each in cycle if each > 0]
    if not times:
        return 0.0
    longest = max(times)
    ahead = [0.0] * len(times)  # of a batch that comes: what it waits, in times of the stage
    step = sum(times)
    for n in range(1, staleness + 2):
        waited = [t * (1 + chance * before) for t, before in zip(times, ahead, strict=True)]
        step = max(sum(waited) / n, longest)
        # Where more wait than the step has room for, it is at the longest.
        spare = n - sum(waited) / step
        found = [each / step for each in waited]
        found[times.index(longest)] += spare
        ahead = [has - t / step / 2 for has, t in zip(found, times, strict=True)]
    return step


def cores_time(costs: Iterable[tuple[Breakdown, float, tuple[str, ...]]], cores: int) -> float:
    """Returns the least time of a step on a machine whose processes share its cores.

    Stages that overlap do so on cores: what they hold of them, together, takes at
    least its sum by their number.

    Args:
        costs: Of each stage: its cost, how many such stages run on the machine in one
            step, and the resources that are this machine's cores.
        cores: Of the machine.
    """
    return sum(cost.on(*resources) * times for cost, times, resources in costs) / cores


def step_bounds(bounds: Mapping[str, float]) -> tuple[Part, ...]:
    """Returns bounds by name as parts, the largest first; of none below 0, and of 0 none."""
    found = [Part(name, seconds) for name, seconds in bounds.items() if seconds > 0]
    return tuple(sorted(found, key=lambda part: -part.amount))
