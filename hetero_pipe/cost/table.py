"""What tables cost: a batch's keys routed, its rows pulled, their gradients pushed."""

import math
from dataclasses import dataclass
from itertools import pairwise

from hetero_pipe.cluster import SIDES, Cluster, Rate, Ways
from hetero_pipe.cost.constants import Constants
from hetero_pipe.cost.curve import Curve
from hetero_pipe.graph import Table
from hetero_pipe.plan import Breakdown

__all__ = [
    "CallRates",
    "Link",
    "TableRates",
    "aside_call_cost",
    "call_cost",
    "measured_call_cost",
    "pull_cost",
    "push_cost",
    "route_cost",
    "table_rates",
]

OPTIMIZERS = ("sgd", "adagrad", "adam")
"""By floats of state a weight."""

KEY_BYTES = 8


@dataclass(frozen=True)
class TableRates:
    """What a row takes on a core, in a table that is far larger than any cache.

    Attributes:
        pull: Seconds a distinct row.
        push: Likewise, with its optimizer.
        is_measured: Whether somebody measured them.
        pulls: Seconds over the rows of a call, if several sizes were measured.
        pushes: Likewise, of a push.
    """

    pull: float
    push: float
    is_measured: bool
    pulls: Curve | None = None
    pushes: Curve | None = None

    def pull_seconds(self, rows: float) -> float:
        """Returns the seconds of a pull of so many distinct rows."""
        return rows * self.pull if self.pulls is None else self.pulls.at(rows)

    def push_seconds(self, rows: float) -> float:
        """Returns the seconds of a push of so many distinct rows."""
        return rows * self.push if self.pushes is None else self.pushes.at(rows)


@dataclass(frozen=True)
class CallRates:
    """What a call to one server takes, over the bytes of its keys and rows, table aside.

    Attributes:
        worker: Seconds of a core of who calls.
        server: Of one of who answers.
        wait: Of none.
        aside: Of both of them, at the same time as those.
    """

    worker: Curve
    server: Curve
    wait: Curve
    aside: Curve

    @staticmethod
    def of(cluster: Cluster, host: str, what: str) -> "CallRates | None":
        """Returns those of `grpc_pull` or `grpc_push`; None if nobody measured them."""
        curves = []
        for side in SIDES:
            rates = cluster.rates_of(what, host=host, side=side)
            if not rates:
                return None
            # What nobody uses is longer whenever others run: the least is its own.
            times = [
                (float(r.size or 1), r.value.min if side == "wait" else r.value.median)
                for r in rates
            ]
            curves.append(Curve.of(times))
        return CallRates(*curves)


@dataclass(frozen=True)
class Link:
    """The way between a worker and the servers of its tables.

    Attributes:
        num_servers: 0 if the tables are in the worker's process.
        ways: To a server of another machine; None if all are on the worker's.
        uplink: Bytes/s of all that leaves the worker's machine, and of all that enters it.
        away: The share of the bytes for servers of other machines.
        call: Seconds of a request of one key and its answer.
        message_byte: Of a core, to pack, send, receive or unpack a byte, at both ends together.
        skew: Keys that the busiest server gets by those of an even share.
        pull: Of calls that pull; measured ones take the place of `call` and `message_byte`.
        push: Of calls that push.
        most_servers: That there are in any plan that is bounded; 0 is as many as there are.
    """

    num_servers: int = 0
    ways: Ways | None = None
    uplink: float = math.inf
    away: float = 1.0
    call: float = 0.0
    message_byte: float = 0.0
    skew: float = 1.0
    pull: CallRates | None = None
    push: CallRates | None = None
    most_servers: int = 0

    @property
    def share(self) -> float:
        """Of the keys, what the busiest server has."""
        return min(self.skew / max(self.num_servers, 1), 1.0)

    def seconds(self, num_bytes: float) -> float:
        """Returns when the last byte of a message to, or from, all servers has come.

        The busiest one's share goes over its own link, and all over the worker's.
        """
        if self.ways is None:
            return 0.0
        return max(self.ways.time(num_bytes * self.share), num_bytes * self.away / self.uplink)


def table_rates(cluster: Cluster, host: str, table: Table, *, constants: Constants) -> TableRates:
    """Returns what a row of a table takes on a host, by its optimizer and its dim.

    Between measured dims it goes straight; without any it is assumed, and grows
    with the bytes of a row above those of 16 weights.
    """
    optimizer = OPTIMIZERS[min(table.state_per_weight, len(OPTIMIZERS) - 1)]
    found, curves = [], []
    for what, assumed in (("pull", constants.pull_row), ("push", constants.push_row)):
        rates = cluster.rates_of(what, host=cluster.host(host).name, optimizer=optimizer)
        found.append(_at_dim(rates, table.dim, assumed))
        curves.append(_over_rows(rates, table.dim, assumed))
    return TableRates(found[0][0], found[1][0], found[0][1] and found[1][1], *curves)


def _over_rows(rates: tuple[Rate, ...], dim: int, assumed: float) -> Curve | None:
    """Returns the seconds of a call over its rows; None if but one size was measured."""
    by_size: dict[int, list[Rate]] = {}
    for rate in rates:
        by_size.setdefault(rate.size or 1, []).append(rate)
    if len(by_size) < 2:
        return None
    return Curve.of(
        [(size, size * _at_dim(tuple(same), dim, assumed)[0]) for size, same in by_size.items()]
    )


def _at_dim(rates: tuple[Rate, ...], dim: int, assumed: float) -> tuple[float, bool]:
    if not rates:
        return assumed * (0.5 + 0.5 * dim / 16), False
    # Of each dim the largest size: rates come by size, and rows in no cache are what counts.
    points = sorted({rate.dim or 1: rate.value.median for rate in rates}.items())
    if dim <= points[0][0] or len(points) == 1:
        return points[0][1] * max(dim / points[0][0], 1.0), True
    for (d0, t0), (d1, t1) in pairwise(points):
        if dim <= d1:
            return t0 + (t1 - t0) * (dim - d0) / (d1 - d0), True
    return points[-1][1] * dim / points[-1][0], True


def route_cost(keys: float, *, constants: Constants) -> Breakdown:
    """Returns the seconds in which a batch's keys become distinct ones, by server."""
    return Breakdown.of("route", keys * constants.route_key, "worker")


def pull_cost(table: Table, rows: float, rates: TableRates, link: Link) -> Breakdown:
    """Returns the seconds until a batch's distinct rows are there: keys out, weights back."""
    out, back = rows * KEY_BYTES, rows * 4 * table.dim
    seconds = rates.pull_seconds(rows * link.share)
    return _exchange("pull", seconds, link, out=out, back=back, calls=link.pull)


def push_cost(table: Table, rows: float, rates: TableRates, link: Link) -> Breakdown:
    """Returns the seconds until all servers have applied a batch's gradients."""
    out = rows * (KEY_BYTES + 4 * table.dim)
    seconds = rates.push_seconds(rows * link.share)
    return _exchange("push", seconds, link, out=out, back=0.0, calls=link.push)


def _exchange(
    label: str, seconds: float, link: Link, *, out: float, back: float, calls: CallRates | None
) -> Breakdown:
    """Returns the seconds of a request to all servers at once, the busiest of which is last.

    Args:
        label: Of the request.
        seconds: Of the busiest server's rows.
        link: The way there.
        out: Bytes to all servers.
        back: Bytes from them.
        calls: What messages take, if that was measured: it is of all tables together.
    """
    if not link.num_servers:
        return Breakdown.of(label, seconds, "worker")
    parts = [Breakdown.of(label, seconds, "server")]
    if calls is None:
        # The worker packs for all servers, one after another; each server has its own share.
        packed = (out + back) * link.message_byte / 2
        parts.append(Breakdown.of("message", packed, "worker"))
        parts.append(Breakdown.of("message", packed * link.share, "server"))
    if link.ways is not None:
        latency = 2 * link.ways.time(0)
        moved = link.seconds(out) + link.seconds(back) - latency
        parts.append(Breakdown.of("network", max(moved, 0.0), "network"))
        parts.append(Breakdown.of("latency", latency, "wait"))
    return Breakdown.sum(parts)


def measured_call_cost(rates: CallRates, num_bytes: float, link: Link) -> Breakdown:
    """Returns the seconds of one request to each server, with these bytes in all of them.

    The worker makes and reads them one after another; servers work at once, and the
    busiest is last.
    """
    of_each = num_bytes / (link.most_servers or link.num_servers)
    of_busiest = num_bytes * link.share
    return Breakdown.sum(
        (
            Breakdown.of("call", link.num_servers * rates.worker.at(of_each), "worker"),
            Breakdown.of("call", rates.server.at(of_busiest), "server"),
            Breakdown.of("call", rates.wait.at(of_busiest), "wait"),
        )
    )


def aside_call_cost(rates: CallRates, num_bytes: float, link: Link) -> Breakdown:
    """Returns what cores do for such requests at the same time, at either end.

    They share it as they share what is not aside.
    """
    of_each = num_bytes / (link.most_servers or link.num_servers)
    of_busiest = num_bytes * link.share
    found = []
    for resource, curve, size, times in (
        ("worker", rates.worker, of_each, link.num_servers),
        ("server", rates.server, of_busiest, 1),
    ):
        both = rates.worker.at(size) + rates.server.at(size)
        seconds = times * rates.aside.at(size) * curve.at(size) / both if both else 0.0
        found.append(Breakdown.of("call", seconds, resource))
    return Breakdown.sum(found)


def call_cost(num_servers: int, *, call: float, call_cpu: float) -> Breakdown:
    """Returns the seconds of one request to each server, its bytes aside.

    The worker's core starts them one after another; what is left of a request and
    its answer is waited for once.
    """
    if not num_servers:
        return Breakdown()
    wait = max(call - 2 * call_cpu, 0.0)
    return Breakdown.sum(
        (
            Breakdown.of("call", num_servers * call_cpu, "worker"),
            Breakdown.of("call", call_cpu, "server"),
            Breakdown.of("call", wait, "wait"),
        )
    )
