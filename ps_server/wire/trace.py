"""Spans to messages and back."""

import numpy as np

from ps_server.spans import Spans
from ps_server.wire import ps_pb2
from ps_server.wire.codec import array_from_bytes, bytes_from_array


def spans_to_message(spans: Spans) -> ps_pb2.TraceReply:
    """Returns the message of spans; its clock is the sender's to set."""
    return ps_pb2.TraceReply(
        process=spans.process,
        texts=spans.texts,
        starts=bytes_from_array(spans.starts),
        ends=bytes_from_array(spans.ends),
        steps=bytes_from_array(spans.steps),
        tracks=bytes_from_array(spans.tracks),
        names=bytes_from_array(spans.names),
        num_dropped=spans.num_dropped,
    )


def spans_from_message(message: ps_pb2.TraceReply, *, role: str) -> Spans:
    """Returns the spans of a message, on the clock of its sender, whose role is given."""
    return Spans(
        message.process,
        role,
        tuple(message.texts),
        array_from_bytes(message.starts, np.float64),
        array_from_bytes(message.ends, np.float64),
        array_from_bytes(message.steps, np.int64),
        array_from_bytes(message.tracks, np.int16),
        array_from_bytes(message.names, np.int16),
        message.num_dropped,
    )
