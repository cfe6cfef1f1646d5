"""How do sparse and dense workers speak? The messages of `stage.proto`.

The stubs are built from the .proto file; `codec` turns arrays into messages and
back. Nothing here opens a connection.
"""

from hetero_pipe.pipeline.wire.codec import (
    cut_from_message,
    cut_to_message,
    floats_from_bytes,
    tensor_from_message,
    tensor_to_message,
)

__all__ = [
    "cut_from_message",
    "cut_to_message",
    "floats_from_bytes",
    "tensor_from_message",
    "tensor_to_message",
]
