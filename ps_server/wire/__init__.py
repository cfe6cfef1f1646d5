"""How is a parameter server spoken to? The messages of `proto/ps_server/wire/ps.proto`.

The stubs are built from the .proto file; `codec` and `trace` turn arrays, specs
and spans into messages and back. Nothing here opens a connection.
"""

from ps_server.wire.codec import (
    array_from_bytes,
    bytes_from_array,
    route_from_message,
    route_to_message,
    spec_from_message,
    spec_to_message,
)
from ps_server.wire.trace import spans_from_message, spans_to_message

__all__ = [
    "MAX_MESSAGE_BYTES",
    "array_from_bytes",
    "bytes_from_array",
    "route_from_message",
    "route_to_message",
    "spans_from_message",
    "spans_to_message",
    "spec_from_message",
    "spec_to_message",
]

MAX_MESSAGE_BYTES = -1
"""No limit: a batch's rows outgrow gRPC's default of 4 MiB at 65,536 keys of dim 16."""
