"""How does a worker speak to servers? It pulls and pushes rows by key, wherever they live.

The client dedups keys, splits them by server, asks all servers at once and
puts the rows together. It never knows what the rows are for.
"""

from hetero_pipe.client.client import Client
from hetero_pipe.client.patience import Retry
from hetero_pipe.client.profile import profile_grpc, profile_route, profile_tables
from hetero_pipe.client.route import RoutedKeys
from hetero_pipe.client.scale import (
    BucketsMoved,
    ScaleStep,
    check_tables,
    move_buckets,
    wait_until_left,
)
from hetero_pipe.client.status import ERROR_OF
from ps_server.store import Ask, Lease, LeaseKind, Origin, Rows

__all__ = [
    "ERROR_OF",
    "Ask",
    "BucketsMoved",
    "Client",
    "Lease",
    "LeaseKind",
    "Origin",
    "Retry",
    "RoutedKeys",
    "Rows",
    "ScaleStep",
    "check_tables",
    "move_buckets",
    "profile_grpc",
    "profile_route",
    "profile_tables",
    "wait_until_left",
]
