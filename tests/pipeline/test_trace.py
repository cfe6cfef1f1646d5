"""Spans to a trace: a literal one, and what every one must hold."""

import gzip
import json
from itertools import pairwise

import pytest

from hetero_pipe.pipeline import Executor, StalenessGate, merge, write_trace
from ps_server.spans import SpanRing
from tests.traces import Trace


def spans_of(*recorded, role="trainer", capacity=64):
    ring = SpanRing(capacity)
    for span in recorded:
        ring.record(*span)
    return ring.spans(role=role)


def test_a_trace_of_two_processes_is_this():
    """::

               100.0     100.001    100.002    100.003    100.004 s
    read         |---------|
    pull                   |  ~~ gate ~~  |--------|
    request_0                                |--|
    """
    trainer = spans_of(
        ("pull", "waiting for input", 0, 100.0, 100.001),
        ("read", "read", 0, 100.0, 100.001),
        ("pull", "waiting at the gate", 0, 100.001, 100.002),
        ("pull", "pull", 0, 100.001, 100.004),
    )
    server = spans_of(("request_0", "Pull", 0, 100.0025, 100.003), role="ps-server here:1")
    merged = merge([trainer, server])
    read, pull = {"pid": 1, "tid": 3}, {"pid": 1, "tid": 1}
    request = {"pid": 2, "tid": 1}
    at_0 = {"args": {"step": 0}}
    work, wait = {"ph": "X", "cat": "work"} | at_0, {"ph": "X", "cat": "wait"} | at_0
    arrow = {"name": "step", "cat": "step", "id": "1.0", "bp": "e"}
    meta = {"ph": "M"}
    assert merged == {
        "displayTimeUnit": "ms",
        "traceEvents": [
            meta | _process(1, "process_name", name=f"trainer {trainer.process}"),
            meta | _process(1, "process_sort_index", sort_index=1),
            meta | read | {"name": "thread_name", "args": {"name": "read"}},
            meta | read | {"name": "thread_sort_index", "args": {"sort_index": 0}},
            meta | pull | {"name": "thread_name", "args": {"name": "pull"}},
            meta | pull | {"name": "thread_sort_index", "args": {"sort_index": 1}},
            meta | _process(2, "process_name", name=f"ps-server here:1 {server.process}"),
            meta | _process(2, "process_sort_index", sort_index=2),
            meta | request | {"name": "thread_name", "args": {"name": "request_0"}},
            meta | request | {"name": "thread_sort_index", "args": {"sort_index": 0}},
            wait | pull | {"name": "waiting for input", "ts": 0.0, "dur": 1000.0},
            work | read | {"name": "read", "ts": 0.0, "dur": 1000.0},
            arrow | read | {"ph": "s", "ts": 0.0},
            work | pull | {"name": "pull", "ts": 1000.0, "dur": 3000.0},
            wait | pull | {"name": "waiting at the gate", "ts": 1000.0, "dur": 1000.0},
            arrow | pull | {"ph": "f", "ts": 1000.0},
            work | request | {"name": "Pull", "ts": 2500.0, "dur": 500.0},
        ],
    }


def _process(pid, kind, **arguments):
    return {"pid": pid, "tid": 0, "name": kind, "args": arguments}


def test_spans_that_meet_do_so_to_the_last_digit():
    """Though their seconds, of a machine long up, have no finite digits in nanoseconds."""
    edges = [4_000_000 + i / 3e5 for i in range(1000)]
    spans = spans_of(
        *(("read", "read", i, *pair) for i, pair in enumerate(pairwise(edges))),
        capacity=1000,
    )
    trace = Trace(merge([spans]))
    trace.check()
    read = trace.slices("trainer", "read")
    assert len(read) == 999
    assert all(a.end == b.start for a, b in pairwise(read))


def test_what_was_dropped_is_said():
    merged = merge(
        [spans_of(*[("read", "read", i, i + 1.0, i + 2.0) for i in range(7)], capacity=4)]
    )
    labels = [e["args"]["labels"] for e in merged["traceEvents"] if e["name"] == "process_labels"]
    assert labels == ["without its first 3 spans"]
    assert Trace(merged).steps("trainer", "read") == [3, 4, 5, 6]


@pytest.mark.parametrize("processes", [[], [spans_of()]])
def test_a_trace_of_nothing_is_one(processes, tmp_path):
    write_trace(tmp_path / "t.json", processes)
    Trace.read(tmp_path / "t.json").check()


def test_a_file_is_packed_if_its_name_says_so_and_nothing_is_left_beside_it(tmp_path):
    spans = spans_of(("read", "read", 0, 1.0, 2.0))
    (tmp_path / "t.json.gz").write_text("an earlier one")
    for name in ("t.json", "t.json.gz"):
        write_trace(tmp_path / name, [spans])
    packed = gzip.decompress((tmp_path / "t.json.gz").read_bytes())
    assert json.loads(packed) == json.loads((tmp_path / "t.json").read_text()) == merge([spans])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json", "t.json.gz"]


class Gated:
    """A stage that waits at a gate, and one that opens it."""

    def __init__(self, name, work):
        self.name = name
        self._work = work

    def run(self, step, item):
        self._work(step)
        return item

    def close(self):
        pass


@pytest.mark.parametrize("staleness", [0, 2])
def test_an_executor_records_every_piece_of_every_stage(staleness):
    ring = SpanRing()
    gate = StalenessGate(staleness, first_step=7, ring=ring)
    stages = [Gated("pull", gate.wait_to_pull), Gated("push", gate.acknowledge)]
    with Executor(
        iter(range(30)), stages, capacities=[2, 1, 3], first_step=7, ring=ring
    ) as executor:
        assert len(list(executor.results())) == 30
    trace = Trace(merge([ring.spans(role="trainer")]))
    trace.check()
    assert trace.tracks("trainer") == ["read", "pull", "push"]
    steps = list(range(7, 37))
    for track, waits in {
        "read": ["waiting for output"],
        "pull": ["waiting for input", "waiting at the gate", "waiting for output"],
        "push": ["waiting for input", "waiting for output"],
    }.items():
        for name in (track, *waits):
            assert trace.steps("trainer", track, name) == steps, (track, name)
    assert trace.arrows() == {f"1.{step}": ["read", "pull", "push"] for step in steps}
    timeline = executor.timeline(waiting_at_gate={"pull": gate.seconds_waited})
    for stage in timeline.stages:  # the sums are those of the spans
        seconds = {
            name: sum(s.end - s.start for s in trace.slices("trainer", stage.name, name)) / 1e9
            for name in (stage.name, "waiting for input", "waiting at the gate")
        }
        assert stage.busy + stage.waiting_at_gate == pytest.approx(seconds[stage.name], abs=1e-6)
        assert stage.waiting_for_input == pytest.approx(seconds["waiting for input"], abs=1e-6)
        assert stage.waiting_at_gate == pytest.approx(seconds["waiting at the gate"], abs=1e-6)


def test_without_a_ring_nothing_is_recorded():
    with Executor(iter(range(3)), [Gated("push", int)], capacities=[1, 1]) as executor:
        assert len(list(executor.results())) == 3
    assert executor.timeline().stage("push").num_steps == 3


@pytest.mark.parametrize(
    "slices",
    [
        [(0, 3), (2, 4)],  # overlap
        [(5, 4)],  # end before they start
    ],
)
def test_the_check_of_a_trace_sees_what_cannot_be(slices):
    spans = spans_of(*(("read", "read", i, s + 1.0, e + 1.0) for i, (s, e) in enumerate(slices)))
    with pytest.raises(AssertionError):
        Trace(merge([spans])).check()
