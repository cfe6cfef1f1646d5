"""Measures rates of this machine in a process of its own, as `hetero-pipe profile` does.

Prints a cluster as JSON. With the emulated device in the environment, that is measured;
without it, the CPU, tables, and what a server adds.
"""

import argparse
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace

import paddle

import hetero_pipe as hp
from hetero_pipe import nn
from hetero_pipe.client import profile_grpc, profile_route, profile_tables
from hetero_pipe.cluster import (
    Cluster,
    Device,
    Link,
    Rate,
    Sampling,
    Spread,
    cluster_to_json,
    discover,
    profile_memory,
)
from hetero_pipe.launch import local_server
from hetero_pipe.pipeline import profile_cuts

HOST = "here"
DIM = 16
QUICK = Sampling(3, 0.005, is_quick=True)
USUAL = Sampling(9, 0.008)
SHORT = Sampling(40, 0.003)  # of the clock: what others disturb is to be few of them
EMULATED = Device("custom", name="emulated", memory=4 << 30)
LINK = Link(("emulated", "cpu"), "PCIe", 12e9, 5.7e-6)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--emulated", action="store_true")
    flags = parser.parse_args()
    logging.disable(logging.INFO)
    sampling = QUICK if flags.quick else USUAL
    rates = []
    if flags.emulated:
        device = nn.Device("emulated:0")
        rates += map(best, nn.profile_copies(HOST, device, SHORT))
        rates += map(best, stated_steps(device, SHORT))
    else:
        rates += profile_memory(HOST, sampling)
        rates += profile_route(HOST, sampling)
        rates += profile_tables(HOST, sampling, optimizers=["adagrad"])
        with local_server() as server:
            rates += profile_grpc(HOST, server.address, sampling, pid=server.pid)
        rates += profile_cuts(HOST, sampling)
        cpu = nn.Device("cpu")
        rates += nn.profile_device(HOST, cpu, sampling)
        rates += nn.profile_ops(HOST, cpu, sampling)
    host = discover((EMULATED,), (LINK,), name=HOST)
    sys.stdout.write(cluster_to_json(Cluster((host,)).with_rates(rates)))


def best(rate: Rate) -> Rate:
    """Returns a rate of a device as it is when nobody else has the host's cores."""
    value = rate.value.max if rate.unit == "B/s" else rate.value.min
    return replace(rate, value=Spread.of([value]))


def stated_steps(device: nn.Device, sampling: Sampling) -> Iterator[Rate]:
    """Yields `dense_step` of a device that takes no time for a batch."""
    from stated import Stated  # noqa: PLC0415  # asks for the device

    paddle.set_device(device.name)
    model = Stated(OneTable(), 0.0, is_pooled=False)
    yield from nn.profile_steps(HOST, device, sampling, model=model)


class OneTable(paddle.nn.Layer):
    """As little of a model as there is."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = hp.Embedding(["slot"], dim=DIM)


if __name__ == "__main__":
    main()
