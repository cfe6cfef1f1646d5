"""The ring of spans: what is kept, what goes, and threads that record at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ps_server.spans import SpanRing, Spans, process_name
from ps_server.wire import spans_from_message, spans_to_message

LATER = 30.0


def rows(spans):
    return [
        (spans.texts[track], spans.texts[name], step, start, end)
        for track, name, step, start, end in zip(
            spans.tracks, spans.names, spans.steps, spans.starts, spans.ends, strict=True
        )
    ]


def test_what_was_recorded_comes_back_in_the_order_of_its_end():
    ring = SpanRing(8)
    ring.record("pull", "pull", 3, 1.0, 5.0)
    ring.record("pull", "waiting at the gate", 3, 1.5, 2.5)
    ring.record("request_0", "Pull", -1, 0.5, 6.0)
    spans = ring.spans(role="trainer")
    assert rows(spans) == [
        ("pull", "waiting at the gate", 3, 1.5, 2.5),
        ("pull", "pull", 3, 1.0, 5.0),
        ("request_0", "Pull", -1, 0.5, 6.0),
    ]
    assert (spans.role, spans.process, spans.num_dropped) == ("trainer", process_name(), 0)


@pytest.mark.parametrize(("number", "kept"), [(0, 0), (1, 1), (4, 4), (5, 4), (11, 4)])
def test_of_more_spans_than_there_is_room_for_the_latest_are_kept(number, kept):
    ring = SpanRing(4)
    for step in range(number):
        ring.record("read", "read", step, step + 1.0, step + 2.0)
    spans = ring.spans(role="trainer")
    assert spans.steps.tolist() == list(range(number - kept, number))
    assert len(spans) == kept
    assert spans.num_dropped == number - kept


def test_threads_that_record_at_once_lose_nothing():
    ring = SpanRing(8 * 1000)

    def record(thread):
        for step in range(1000):
            ring.record(f"thread {thread}", f"work {thread}", step, thread + 1.0, step + 2.0)

    with ThreadPoolExecutor(8) as threads:
        for future in [threads.submit(record, thread) for thread in range(8)]:
            future.result(LATER)
    spans = ring.spans(role="trainer")
    assert spans.num_dropped == 0
    assert sorted(rows(spans)) == sorted(
        (f"thread {thread}", f"work {thread}", step, thread + 1.0, step + 2.0)
        for thread in range(8)
        for step in range(1000)
    )


def test_a_ring_keeps_a_span_at_least():
    with pytest.raises(ValueError, match="got capacity=0"):
        SpanRing(0)


def test_spans_are_words_and_arrays_for_a_group_to_gather():
    ring = SpanRing(4)
    ring.record("dense", "waiting for input", 7, 1.0, 2.0)
    spans = ring.spans(role="dense 0")
    values = spans.to_dict()
    assert {type(value) for value in values.values()} == {str, list, int, np.ndarray}
    again = Spans.from_dict(values)
    assert rows(again) == rows(spans)
    assert (again.role, again.process) == ("dense 0", spans.process)


def test_spans_move_to_another_clock_and_over_the_wire():
    ring = SpanRing(2)
    for step in range(3):
        ring.record("request_0", "Push", step, 10.0 + step, 10.5 + step)
    spans = ring.spans(role="ps-server")
    moved = spans.shifted(-3.0)
    assert moved.starts.tolist() == [8.0, 9.0]
    assert moved.ends.tolist() == [8.5, 9.5]
    there = spans_from_message(spans_to_message(spans), role="ps-server 10.0.0.5:7000")
    assert rows(there) == rows(spans)
    assert (there.process, there.num_dropped) == (spans.process, 1)
    assert there.role == "ps-server 10.0.0.5:7000"
