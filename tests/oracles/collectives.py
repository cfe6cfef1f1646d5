"""Collectives, message by message: every member holds real parts, every link carries real bytes.

Slow and obvious. A member has a port to the others of its machine and one to the network;
a machine has one uplink that its members share. What is sent in one step is sent at once;
links share their bandwidth, and the next step begins when the last byte has come.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Network:
    machines: int
    per_machine: int
    intra: tuple[float, float]  # bytes/s, seconds
    inter: tuple[float, float]
    uplink: float
    now: float = 0.0
    sent: Counter = field(default_factory=Counter)

    @property
    def members(self):
        return range(self.machines * self.per_machine)

    def machine(self, member):
        return member // self.per_machine

    def links(self, source, target):
        if self.machine(source) == self.machine(target):
            return [("out", source, self.intra[0]), ("in", target, self.intra[0])]
        return [
            ("port out", source, self.inter[0]),
            ("machine out", self.machine(source), self.uplink),
            ("machine in", self.machine(target), self.uplink),
            ("port in", target, self.inter[0]),
        ]

    def step(self, messages):
        """Sends (source, target, bytes) at once."""
        load = Counter()
        for source, target, size in messages:
            for link in self.links(source, target):
                load[link] += size
                self.sent[link[0]] += size
        ends = []
        for source, target, _ in messages:
            is_near = self.machine(source) == self.machine(target)
            latency = self.intra[1] if is_near else self.inter[1]
            ends.append(latency + max(load[link] / link[2] for link in self.links(source, target)))
        self.now += max(ends, default=0.0)


def ring_reduce_scatter(network, members, held, size):
    """`held[member][part]` is the set of those whose share of a part a member has added up.

    Afterwards each has one part of all, that of its place in the ring plus 1.
    """
    n = len(members)
    for step in range(n - 1):
        moves = [(member, members[(i + 1) % n], (i - step) % n) for i, member in enumerate(members)]
        network.step([(a, b, size / n) for a, b, _ in moves])
        given = [(b, part, set(held[a][part])) for a, b, part in moves]
        for b, part, contributors in given:
            assert not held[b][part] & contributors, "nothing is added twice"
            held[b][part] |= contributors


def ring_all_gather(network, members, held, size):
    n = len(members)
    for step in range(n - 1):
        moves = [
            (member, members[(i + 1) % n], (i + 1 - step) % n) for i, member in enumerate(members)
        ]
        network.step([(a, b, size / n) for a, b, _ in moves])
        given = [(b, part, set(held[a][part])) for a, b, part in moves]
        for b, part, contributors in given:
            held[b][part] = contributors


def ring_all_reduce(network, size):
    members = list(network.members)
    held = {i: {part: {i} for part in range(len(members))} for i in members}
    ring_reduce_scatter(network, members, held, size)
    ring_all_gather(network, members, held, size)
    assert all(found == set(members) for parts in held.values() for found in parts.values())


def hierarchical_all_reduce(network, size):
    p, m = network.per_machine, network.machines
    inside = [[k * p + i for i in range(p)] for k in range(m)]
    held = {i: {part: {i} for part in range(p)} for i in network.members}
    _together(network, [(ring_reduce_scatter, inside[k], held, size) for k in range(m)])
    # Member i of each machine has part (i + 1) % p; it rings with its peers in m slices of it.
    slices = {
        k * p + i: {part: set(held[k * p + i][(i + 1) % p]) for part in range(m)}
        for k in range(m)
        for i in range(p)
    }
    peers = [[k * p + i for k in range(m)] for i in range(p)]
    _together(network, [(ring_reduce_scatter, peers[i], slices, size / p) for i in range(p)])
    _together(network, [(ring_all_gather, peers[i], slices, size / p) for i in range(p)])
    for i, parts in slices.items():
        assert len({frozenset(found) for found in parts.values()}) == 1
        held[i][(i % p + 1) % p] = next(iter(parts.values()))
    _together(network, [(ring_all_gather, inside[k], held, size) for k in range(m)])
    everyone = set(network.members)
    assert all(found == everyone for parts in held.values() for found in parts.values())


def tree_broadcast(network, size):
    """By halves: among the first members of machines, then within each machine."""
    has = {0}
    p, m = network.per_machine, network.machines
    for group, stride in (([k * p for k in range(m)], 1), (list(range(p)), m)):
        reach = 1
        while reach < len(group):
            moves = []
            for copy in range(stride):
                base = copy * p if stride > 1 else 0
                for i in range(min(reach, len(group) - reach)):
                    moves.append((base + group[i], base + group[i + reach], size))
            assert all(a in has and b not in has for a, b, _ in moves)
            has |= {b for _, b, _ in moves}
            network.step(moves)
            reach *= 2
    assert has == set(network.members)


def all_gather(network, size):
    """`size` is of all parts: a ring over all members."""
    members = list(network.members)
    held = {m: {part: set() for part in members} for m in members}
    for i, member in enumerate(members):
        held[member][(i + 1) % len(members)] = {member}
    ring_all_gather(network, members, held, size)
    assert all(
        {next(iter(found)) for found in parts.values()} == set(members) for parts in held.values()
    )


def hierarchical_all_gather(network, size):
    p, m = network.per_machine, network.machines
    has = {member: {member} for member in network.members}
    part = size / len(has)

    def move(moves):
        network.step([(a, b, part * len(what)) for a, b, what in moves])
        for _, b, what in moves:
            has[b] |= what

    for step in range(m - 1):  # a ring of peers: each hands on what it got last
        move([
            (k * p + i, (k + 1) % m * p + i, {(k - step) % m * p + i})
            for k in range(m)
            for i in range(p)
        ])  # fmt: skip
    for step in range(p - 1):
        move([
            (k * p + i, k * p + (i + 1) % p, {j * p + (i - step) % p for j in range(m)})
            for k in range(m)
            for i in range(p)
        ])  # fmt: skip
    assert all(found == set(network.members) for found in has.values())


def all_to_all(network, size):
    """Rounds within machines, then of each machine with the one r further on."""
    p, m = network.per_machine, network.machines
    part = size / (p * m)
    got = {member: {member} for member in network.members}

    def send(pairs):
        network.step([(a, b, part) for a, b in pairs])
        for a, b in pairs:
            assert a not in got[b]
            got[b].add(a)

    for r in range(1, p):
        send([(k * p + i, k * p + (i + r) % p) for k in range(m) for i in range(p)])
    for r in range(1, m):
        send([
            (k * p + i, (k + r) % m * p + j)
            for k in range(m)
            for i in range(p)
            for j in range(p)
        ])  # fmt: skip
    assert all(found == set(network.members) for found in got.values())


def _together(network, rings):
    """Runs equal rings at once: the steps of all are one step."""
    recorders = []
    for run, members, held, size in rings:
        recorder = _Recorder()
        run(recorder, members, held, size)
        recorders.append(recorder.steps)
    for steps in zip(*recorders, strict=True):
        network.step([message for messages in steps for message in messages])


class _Recorder:
    def __init__(self):
        self.steps = []

    def step(self, messages):
        self.steps.append(messages)
