"""The executor against one without threads, and what happens when something fails."""

import itertools
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hetero_pipe.errors import DataError, NonFiniteError, ServerUnavailable, StageError
from hetero_pipe.pipeline import Executor, Finished, StalenessGate
from tests.oracles.serial_executor import run_serially

LATER = 30.0


class Call:
    """A stage that calls a function of step and item."""

    def __init__(self, function, name="call", close=lambda: None):
        self.name = name
        self.run = function
        self.close = close


def chain(*functions):
    return [Call(function, f"stage{i}") for i, function in enumerate(functions)]


def executor_of(source, stages, capacity=2, **options):
    return Executor(iter(source), stages, capacities=[capacity] * (len(stages) + 1), **options)


def take_all(executor):
    """Returns what came out, and the error after it."""
    seen = []
    try:
        for result in executor.results():
            seen.append(result)
    except Exception as error:
        return seen, error
    return seen, None


def fail_at(step, error):
    def run(at, item):
        if at == step:
            raise error
        return item

    return run


def run_of(source, stages, **options):
    with executor_of(source, stages, **options) as executor:
        return take_all(executor)


@pytest.mark.parametrize("capacity", [1, 3])
@pytest.mark.parametrize("first_step", [0, 7])
@pytest.mark.parametrize("num_stages", [0, 1, 4])
def test_results_are_those_of_the_serial_executor(num_stages, first_step, capacity):
    stages = chain(*[lambda step, item, i=i: (i, step, item) for i in range(num_stages)])
    expected = list(run_serially(range(50), stages, first_step=first_step))
    assert run_of(range(50), stages, first_step=first_step, capacity=capacity) == (expected, None)


def test_nothing_comes_of_an_empty_source():
    assert run_of([], chain(lambda step, item: item)) == ([], None)


def test_stages_of_different_steps_run_at_once():
    """Step 0 waits in the second stage until step 1 is in the first."""
    is_in_first = threading.Event()

    def first(step, item):
        if step == 1:
            is_in_first.set()
        return item

    def second(step, item):
        assert is_in_first.wait(LATER)
        return item

    assert run_of("ab", chain(first, second)) == ([(0, "a"), (1, "b")], None)


def test_each_stage_keeps_to_one_thread():
    users = [set(), set()]
    stages = chain(*[lambda _, item, seen=seen: seen.add(threading.get_ident()) for seen in users])
    run_of(range(20), stages)
    assert [len(seen) for seen in users] == [1, 1]
    assert users[0] != users[1]


def test_source_runs_no_further_ahead_than_capacities_allow():
    num_read = itertools.count()
    last_read = [-1]

    def source():
        for number in num_read:
            last_read[0] = number
            yield number

    # One item in each of 3 hand-offs, one in each of 2 stages, one that the reader cannot hand on.
    with executor_of(source(), chain(*[lambda step, item: item] * 2), capacity=1) as executor:
        results = executor.results()
        for step in range(100):
            assert next(results) == (step, step)
            assert last_read[0] - step <= 1 + 3 + 2 + 1


@pytest.mark.parametrize("failing", range(3))
@pytest.mark.parametrize("step", [0, 1, 4, 9])
def test_steps_before_a_failing_one_still_come_out(failing, step):
    cause = ZeroDivisionError("boom")
    stages = chain(*[lambda step, item: item] * 3)
    stages[failing].run = fail_at(step, cause)
    seen, error = run_of(range(20), stages)
    assert seen == [(i, i) for i in range(step)]
    assert type(error) is StageError
    assert str(error) == f"stage stage{failing} failed at step {step}: ZeroDivisionError('boom')"
    assert error.__cause__ is cause
    assert "raise error" in "".join(traceback.format_exception(error)), (
        "the cause has its traceback"
    )


def test_failing_source_is_called_by_its_name():
    def source():
        yield "a"
        raise OSError("the disk is gone")

    seen, error = run_of(source(), chain(lambda step, item: item), source_name="parquet")
    assert seen == [(0, "a")]
    assert str(error) == "stage parquet failed at step 1: OSError('the disk is gone')"
    assert isinstance(error.__cause__, OSError)


@pytest.mark.parametrize("kind", [DataError, NonFiniteError, ServerUnavailable])
@pytest.mark.parametrize("place", ["source", "stage"])
def test_our_own_errors_pass_as_they_are(place, kind):
    ours = kind("what must hold, what was found, what to do")

    def source():
        yield 0
        if place == "source":
            raise ours
        yield 1

    run = fail_at(1, ours) if place == "stage" else lambda step, item: item
    seen, error = run_of(source(), chain(run))
    assert seen == [(0, 0)]
    assert error is ours
    assert error.place == f"stage {'read' if place == 'source' else 'stage0'} at step 1"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_process_passes_as_it_is(kind):
    with executor_of(range(3), chain(fail_at(1, kind(7)))) as executor:
        results = executor.results()
        assert next(results) == (0, 0)
        with pytest.raises(kind, match="7") as raised:
            next(results)
        assert raised.value is executor.failure


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit])
def test_a_stage_that_raises_what_is_no_exception_fails_like_others(kind):
    seen, error = run_of(range(3), chain(fail_at(1, kind())))
    assert seen == [(0, 0)]
    assert type(error) is StageError
    assert isinstance(error.__cause__, kind)


def test_of_two_failures_the_one_of_the_lower_step_is_raised():
    """Every step before the error's came out, or a caller would not know what was applied."""
    has_failed = threading.Event()

    def dense(step, item):
        if step == 3:
            has_failed.set()
            raise ValueError("dense")
        return item

    def push(step, item):
        if step == 2:
            assert has_failed.wait(LATER)
            raise ValueError("push")
        return item

    seen, error = run_of(range(9), [Call(dense, "dense"), Call(push, "push")], capacity=4)
    assert seen == [(0, 0), (1, 1)]
    assert str(error) == "stage push failed at step 2: ValueError('push')"


def test_failure_closes_the_stages_before_it_and_not_those_after():
    closed = []
    stages = [
        Call(run, name, lambda name=name: closed.append(name))
        for name, run in [
            ("pull", lambda step, item: item),
            ("dense", fail_at(2, ValueError())),
            ("push", lambda step, item: item),
        ]
    ]
    executor = executor_of(range(9), stages)
    with executor:
        seen, _ = take_all(executor)
        assert seen == [(0, 0), (1, 1)]
        assert set(closed) == {"pull", "dense"}
    assert set(closed) == {"pull", "dense", "push"}


def test_failure_wakes_a_pull_that_waits_for_a_push_that_never_comes():
    gate = StalenessGate(0)

    def pull(step, item):
        gate.wait_to_pull(step)
        return item

    stages = [Call(pull, "pull", gate.close), Call(fail_at(0, ValueError()), "dense")]
    seen, error = run_of(range(9), stages)
    assert seen == []
    assert str(error) == "stage dense failed at step 0: ValueError()"


def test_stop_lets_the_steps_under_way_out_and_reads_no_more():
    read = []

    def source():
        for number in itertools.count():
            read.append(number)
            yield number

    with executor_of(source(), chain(*[lambda step, item: item] * 3)) as executor:
        results = executor.results()
        head = [next(results) for _ in range(5)]
        executor.stop()
        tail = list(results)
    assert [step for step, _ in head + tail] == read, "nothing that was read is lost"


def test_stop_before_the_first_result_ends_the_run():
    with executor_of(itertools.count(), chain(lambda step, item: item)) as executor:
        executor.stop()
        steps = [step for step, _ in executor.results()]
    assert steps == list(range(len(steps)))


@pytest.mark.parametrize("num_taken", [0, 1, 10])
def test_leaving_early_joins_every_thread(num_taken):
    before = threading.active_count()
    stages = chain(*[lambda step, item: item] * 3)
    with executor_of(itertools.count(), stages, capacity=1) as executor:
        assert threading.active_count() == before + 4
        for _ in itertools.islice(executor.results(), num_taken):
            pass
    assert threading.active_count() == before


@pytest.mark.parametrize("num_taken", [1, 3])
def test_leaving_closes_the_source(num_taken):
    closed = []

    def source():
        try:
            yield from itertools.count()
        finally:
            closed.append(True)

    kept = source()  # as a traceback keeps it
    with executor_of(kept, chain(lambda step, item: item)) as executor:
        for _ in itertools.islice(executor.results(), num_taken):
            pass
        assert not closed
    assert closed


def test_leaving_by_an_exception_joins_every_thread_and_keeps_the_exception():
    before = threading.active_count()
    executor = executor_of(itertools.count(), chain(lambda step, item: item))

    def run():
        with executor:
            next(executor.results())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert threading.active_count() == before


def test_idle_consumer_holds_the_pipeline_and_leaving_frees_it():
    is_full = threading.Event()

    def count(step, item):
        if step == 2:  # two wait in front of the caller and one in the hand of the stage
            is_full.set()
        assert step <= 2
        return item

    with executor_of(itertools.count(), chain(count), capacity=2):
        assert is_full.wait(LATER)


def test_leaving_wakes_a_stage_that_waits_in_its_own_way():
    gate = StalenessGate(0)
    is_waiting = threading.Event()

    def pull(step, item):
        if step == 1:
            is_waiting.set()
        gate.wait_to_pull(step)
        return item

    with executor_of(itertools.count(), [Call(pull, "pull", gate.close)]):
        assert is_waiting.wait(LATER)


def test_results_from_another_thread_end_when_the_block_is_left():
    with ThreadPoolExecutor(1) as pool:
        is_blocked = threading.Event()
        release = threading.Event()

        def wait(step, item):
            is_blocked.set()
            assert release.wait(LATER)
            return item

        executor = executor_of(range(3), [Call(wait, "wait", release.set)])
        with executor:
            results = pool.submit(lambda: list(executor.results()))
            assert is_blocked.wait(LATER)
        assert results.result(LATER) in ([], [(0, 0)])


class Rows:
    """One number that pulls read and pushes change: what a server is to the gate."""

    def __init__(self, staleness, rng, num_steps):
        self.gate = StalenessGate(staleness)
        self.value = 1
        self.missed = []
        self._num_pushed = 0
        self._waits = rng.random((num_steps, 3)) * 1e-3
        self._never = threading.Event()
        self.stages = [
            Call(self._pull, "pull", self.gate.close),
            Call(self._dense, "dense"),
            Call(self._push, "push"),
        ]

    def _delay(self, step, stage):
        self._never.wait(self._waits[step, stage])

    def _pull(self, step, item):
        self.gate.wait_to_pull(step)
        self.missed.append(step - self._num_pushed)
        value = self.value
        self._delay(step, 0)
        return value + item

    def _dense(self, step, item):
        self._delay(step, 1)
        return (item * 6364136223846793005 + step) % 2**61

    def _push(self, step, item):
        self._delay(step, 2)
        self.value = (self.value * 31 + item) % 2**61
        self._num_pushed += 1
        self.gate.acknowledge(step)
        return self.value


@pytest.mark.parametrize("seed", range(6))
def test_staleness_zero_is_the_serial_run(seed):
    rng = np.random.default_rng(seed)
    num_steps, capacity = 40, int(rng.integers(1, 5))
    serial = Rows(0, np.random.default_rng(seed), num_steps)
    expected = list(run_serially(range(num_steps), serial.stages))
    rows = Rows(0, rng, num_steps)
    assert run_of(range(num_steps), rows.stages, capacity=capacity) == (expected, None)
    assert set(rows.missed) == {0}


@pytest.mark.parametrize("seed", range(12))
def test_no_pull_misses_more_than_k_pushes_whatever_the_delays(seed):
    rng = np.random.default_rng(seed)
    num_steps, staleness, capacity = 60, int(rng.integers(0, 5)), int(rng.integers(1, 5))
    rows = Rows(staleness, rng, num_steps)
    seen, error = run_of(range(num_steps), rows.stages, capacity=capacity)
    assert error is None
    assert [step for step, _ in seen] == list(range(num_steps))
    assert max(rows.missed) <= rows.gate.largest_seen <= staleness


@pytest.mark.parametrize("seed", range(20))
def test_every_wait_ends_whatever_fails(seed):
    rng = np.random.default_rng(100 + seed)
    num_steps = 30
    step, stage = int(rng.integers(num_steps)), int(rng.integers(3))
    rows = Rows(int(rng.integers(0, 4)), rng, num_steps)
    healthy = rows.stages[stage].run
    failing = fail_at(step, ValueError("injected"))
    rows.stages[stage].run = lambda at, item: failing(at, healthy(at, item))
    seen, error = run_of(range(num_steps), rows.stages, capacity=int(rng.integers(1, 4)))
    assert [at for at, _ in seen] == list(range(step))
    assert f"stage {rows.stages[stage].name} failed at step {step}" in str(error)
    assert max(rows.missed) <= rows.gate.largest_seen


def test_an_interrupt_while_threads_start_leaves_none(monkeypatch):
    started = []
    start = threading.Thread.start

    def start_two(thread):
        if len(started) == 2:
            raise KeyboardInterrupt
        started.append(thread)
        start(thread)

    executor = executor_of(itertools.count(), chain(lambda step, item: item, lambda s, i: i))
    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(KeyboardInterrupt), executor:
        pass
    assert len(started) == 2
    assert not any(thread.is_alive() for thread in started)


def test_a_stage_that_finds_the_end_ends_what_comes_before_it():
    """An endless source, and a stage in the middle that knows the last step."""

    def last(step, item):
        if step == 3:
            raise Finished
        return item

    with Executor(itertools.count(), chain(last, last), capacities=[1, 1, 1]) as executor:
        assert list(executor.results()) == [(0, 0), (1, 1), (2, 2)]
