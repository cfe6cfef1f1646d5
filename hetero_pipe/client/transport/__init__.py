"""The seam between the client and one server; how bytes get there is behind it."""

from hetero_pipe.client.transport.protocol import (
    ControlPlane,
    DataPlane,
    Gradients,
    IncomingMove,
    Keys,
    RangePlane,
    Reply,
    ServerStats,
    ServerTrace,
    TraceAction,
)

__all__ = [
    "ControlPlane",
    "DataPlane",
    "Gradients",
    "IncomingMove",
    "Keys",
    "RangePlane",
    "Reply",
    "ServerStats",
    "ServerTrace",
    "TraceAction",
]
