"""How do sparse and dense workers speak? The messages of `stage.proto`.

The stubs are built from the .proto file; `codec` turns arrays into messages and
back. Nothing here opens a connection.
"""

from hetero_pipe.pipeline.wire.codec import (
    floats_from_bytes,
    read_cut,
    read_tensor,
    write_cut,
    write_tensor,
)

__all__ = [
    "floats_from_bytes",
    "read_cut",
    "read_tensor",
    "write_cut",
    "write_tensor",
]
