"""What is the hardware? Hosts, devices and links, as described, as found and as measured.

It reads and writes cluster files, knows machines that many have, finds the host
it runs on, measures its memory, disk and links, and answers how bytes get from
one place to another. It never predicts what a model costs there, and never
imports Paddle: whoever knows of devices tells it.
"""

from hetero_pipe.cluster.border import Border
from hetero_pipe.cluster.cluster import Cluster
from hetero_pipe.cluster.device import DEVICE_KINDS, DTYPES, Device
from hetero_pipe.cluster.discover import discover
from hetero_pipe.cluster.file import (
    cluster_from_json,
    cluster_from_toml,
    cluster_to_json,
    cluster_to_toml,
    load_cluster,
    save_cluster,
    save_rates,
)
from hetero_pipe.cluster.host import Disk, Host
from hetero_pipe.cluster.link import LINK_KINDS, Link, Switch
from hetero_pipe.cluster.measure import profile_disk, profile_memory, profile_shared_memory
from hetero_pipe.cluster.path import Path, Ways
from hetero_pipe.cluster.place import Place
from hetero_pipe.cluster.preset import DEVICE_PRESETS, HOST_PRESETS, device_preset, preset
from hetero_pipe.cluster.probe import profile_link, serve_link
from hetero_pipe.cluster.rate import BESIDE, RATES, SIDES, Rate, Spread
from hetero_pipe.cluster.sample import Sampling, sample_times
from hetero_pipe.cluster.wiring import Edge

__all__ = [
    "BESIDE",
    "DEVICE_KINDS",
    "DEVICE_PRESETS",
    "DTYPES",
    "HOST_PRESETS",
    "LINK_KINDS",
    "RATES",
    "SIDES",
    "Border",
    "Cluster",
    "Device",
    "Disk",
    "Edge",
    "Host",
    "Link",
    "Path",
    "Place",
    "Rate",
    "Sampling",
    "Spread",
    "Switch",
    "Ways",
    "cluster_from_json",
    "cluster_from_toml",
    "cluster_to_json",
    "cluster_to_toml",
    "device_preset",
    "discover",
    "load_cluster",
    "preset",
    "profile_disk",
    "profile_link",
    "profile_memory",
    "profile_shared_memory",
    "sample_times",
    "save_cluster",
    "save_rates",
    "serve_link",
]
