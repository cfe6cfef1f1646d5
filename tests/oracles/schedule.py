"""Workers that take turns as they are told: every delay there can be, without waiting for time.

A turn lets one worker begin its next operation. The others stand still: that is
what a delay of theirs looks like. What may run is found by a model of a few
lines, and the next turn is given when the workers have come as far.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

LATER = 10.0


def operations(num_steps, staleness):
    """Yields what a worker does: (kind, steps that its clock then has, after_step)."""
    for step in range(num_steps):
        yield "pull", step, max(step - staleness, 0)
        yield "push", step + 1, None
    yield "end", num_steps, None


def run_schedule(num_steps, staleness, turns, *, pull, push, end):
    """Runs workers of `num_steps` steps each; they have begun at step 0.

    Args:
        num_steps: Of each worker.
        staleness: Steps of another that a pull may miss.
        turns: Ranks, that of worker w `2 * num_steps[w] + 1` times.
        pull: Called with rank and `after_step`.
        push: Called with rank and step, from 1.
        end: Called with rank.

    Returns:
        Of each pull its rank, its step, from 0, and what it returned.

    Raises:
        AssertionError: A worker does not come as far as the model does, or
            further: it waits for one that it need not wait for, or does not wait.
    """
    ranks = range(len(num_steps))
    plans = [list(operations(steps, staleness)) for steps in num_steps]
    may_run = [threading.Semaphore(0) for _ in ranks]
    changed = threading.Condition()
    num_done = [0 for _ in ranks]
    failures, pulled = [], []

    def work(rank):
        try:
            for kind, step, after_step in plans[rank]:
                assert may_run[rank].acquire(timeout=LATER), f"worker {rank} got no turn"
                if kind == "pull":
                    pulled.append((rank, step, pull(rank, after_step)))
                elif kind == "push":
                    push(rank, step)
                else:
                    end(rank)
                with changed:
                    num_done[rank] += 1
                    changed.notify_all()
        except BaseException as error:
            with changed:
                failures.append(error)
                changed.notify_all()
            raise

    def is_ahead():
        return any(done > may for done, may in zip(num_done, model, strict=True))

    model = [0 for _ in ranks]
    given = [0 for _ in ranks]
    with ThreadPoolExecutor(len(num_steps)) as threads:
        workers = [threads.submit(work, rank) for rank in ranks]
        for turn in turns:
            given[turn] += 1
            advance(plans, model, given)
            may_run[turn].release()
            with changed:
                changed.wait_for(lambda: failures or num_done == model or is_ahead(), LATER)
                if failures or num_done != model:
                    break
        for rank in ranks:  # those that wait for a turn find out that it is over
            may_run[rank].release(len(plans[rank]))
        for worker in workers:
            worker.result(LATER)
    assert num_done == model, f"workers are at {num_done}, the model is at {model}"
    return pulled


def advance(plans, model, given):
    """Moves the model as far as the turns that are given let it."""
    is_moving = True
    while is_moving:
        is_moving = False
        clocks = [
            plan[done - 1][1] if done else 0
            for plan, done in zip(plans, model, strict=True)
            if done < len(plan)  # the others have ended
        ]
        for rank, plan in enumerate(plans):
            if model[rank] == given[rank]:
                continue
            kind, _, after_step = plan[model[rank]]
            if kind != "pull" or all(clock >= after_step for clock in clocks):
                model[rank] += 1
                is_moving = True
                break
