"""Executor: runs a chain of stages, each in its own thread."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from hetero_pipe.errors import HeteroPipeError, StageError
from hetero_pipe.pipeline.handoff import Closed, Handoff
from hetero_pipe.pipeline.stage import Stage
from hetero_pipe.pipeline.timeline import StageClock, Timeline
from ps_server.spans import SpanRing

__all__ = ["Executor", "Finished"]


class Finished(Exception):
    """Raised by a stage that finds its item to be past the last step: what came before it ends."""


class Executor:
    """Feeds the items of a source through stages, in order, all stages at once.

    ::

        source ──▶ hand-off ──▶ stage ──▶ hand-off ──▶ stage ──▶ hand-off ──▶ results()
        thread 0               thread 1               thread 2               the caller's

    A context manager: leaving it stops every thread, however the block ended.
    When the source or a stage fails at a step, the steps before it still pass
    the stages after it and come out of `results`, which then raises.

    Args:
        source: What to run, one item a step. Iterated in a thread of its own, and
            closed in the end if it can be, as a generator can.
        stages: In order. Each gets the item that the one before it returned.
        capacities: Items that may wait before each stage and before the caller,
            one more than there are stages.
        first_step: Number of the first step.
        source_name: What errors call the source.
        ring: Records what the source and each stage do when; None records nothing.
    """

    def __init__(
        self,
        source: Iterator[Any],
        stages: Sequence[Stage],
        *,
        capacities: Sequence[int],
        first_step: int = 0,
        source_name: str = "read",
        ring: SpanRing | None = None,
    ) -> None:
        self._source = source
        self._source_name = source_name
        self._stages = stages
        self._first_step = first_step
        self._handoffs: list[Handoff[tuple[int, Any]]] = [Handoff(c) for c in capacities]
        assert len(self._handoffs) == len(stages) + 1, "a hand-off before each stage and the caller"
        names = (source_name, *(stage.name for stage in stages))
        self._clocks = [StageClock(name, ring=ring) for name in names]
        self._stopping = threading.Event()
        self._failure: tuple[int, BaseException] | None = None
        self._failure_lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._read, name=source_name),
            *(
                threading.Thread(target=self._work, args=(i,), name=stage.name)
                for i, stage in enumerate(stages)
            ),
        ]

    def results(self) -> Iterator[tuple[int, Any]]:
        """Yields step and item of each step that has passed every stage, in step order.

        Raises:
            HeteroPipeError: A stage failed with it.
            StageError: A stage failed with another exception, which is its cause.
                Of several failures, that of the lowest step is raised: every
                step before it has come out.
            SystemExit: A stage asked for the end of the process.
            KeyboardInterrupt: A stage raised it.
        """
        while True:
            try:
                step, item = self._handoffs[-1].get()
            except Closed:
                break
            yield step, item
        if self.failure is not None:
            raise self.failure

    @property
    def failure(self) -> BaseException | None:
        """What `results` raises once every step before it has come out."""
        return None if self._failure is None else self._failure[1]

    def stop(self) -> None:
        """Takes no more from the source; the steps under way still come out of `results`."""
        self._stopping.set()

    def timeline(
        self,
        *,
        waiting_at_gate: Mapping[str, float] | None = None,
        waiting_for_credit: Mapping[str, float] | None = None,
    ) -> Timeline:
        """Returns where the time of the source and of each stage went, so far.

        Args:
            waiting_at_gate: Seconds that stages, by name, have waited in `run` for
                what another stage does: the executor cannot tell them from work.
            waiting_for_credit: Likewise, for what another worker does.
        """
        at_gate, for_credit = waiting_at_gate or {}, waiting_for_credit or {}
        names = (self._source_name, *(stage.name for stage in self._stages))
        return Timeline(
            tuple(
                clock.time(
                    waiting_at_gate=at_gate.get(name, 0.0),
                    waiting_for_credit=for_credit.get(name, 0.0),
                )
                for name, clock in zip(names, self._clocks, strict=True)
            )
        )

    def __enter__(self) -> "Executor":
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # Ctrl-C may come between two of them
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._handoffs[-1].abort()
        try:
            self._abort(len(self._stages))
        finally:
            for thread in self._threads:
                if thread.ident is not None:  # it was started
                    thread.join()
            # A generator that nobody ends keeps its files and threads until it is collected.
            close = getattr(self._source, "close", None)
            if close is not None:
                close()

    def _read(self) -> None:
        step, clock = self._first_step, self._clocks[0]
        clock.start()
        try:
            # Asked before each item: the one that `stop` overtakes is never read.
            while not self._stopping.is_set():
                try:
                    item = next(self._source)
                except StopIteration:
                    break
                clock.has_run(step)
                self._handoffs[0].put((step, item))
                clock.has_output(step)
                step += 1
            self._handoffs[0].finish()
        except Closed:
            return
        except BaseException as error:  # a thread's failure is the caller's to handle
            self._fail(error, self._source_name, step, num_failed=0)

    def _work(self, index: int) -> None:
        stage, before, after = self._stages[index], *self._handoffs[index : index + 2]
        step, clock = self._first_step, self._clocks[index + 1]
        clock.start()
        try:
            while True:
                try:
                    step, item = before.get()
                except Closed:
                    after.finish()
                    return
                clock.has_input(step)
                result = stage.run(step, item)
                clock.has_run(step)
                after.put((step, result))
                clock.has_output(step)
        except Closed:
            return
        except Finished:
            self._abort(index + 1)
            after.finish()
        except BaseException as error:  # a thread's failure is the caller's to handle
            self._fail(error, stage.name, step, num_failed=index + 1)

    def _fail(self, error: BaseException, name: str, step: int, *, num_failed: int) -> None:
        """Stops the source and the first `num_failed` stages, lets the later ones finish."""
        if isinstance(error, HeteroPipeError):
            error.place = error.place or f"stage {name} at step {step}"
        elif not isinstance(error, (SystemExit, KeyboardInterrupt)):  # which end the process
            wrapped = StageError(f"stage {name} failed at step {step}: {error!r}")
            wrapped.__cause__ = error
            error = wrapped
        with self._failure_lock:
            if self._failure is None or step < self._failure[0]:
                self._failure = step, error
        self._abort(num_failed)
        self._handoffs[num_failed].finish()

    def _abort(self, num_stages: int) -> None:
        """Stops the source and the first `num_stages` stages, wherever they wait."""
        self._stopping.set()
        for handoff in self._handoffs[:num_stages]:
            handoff.abort()
        for stage in self._stages[:num_stages]:
            stage.close()
