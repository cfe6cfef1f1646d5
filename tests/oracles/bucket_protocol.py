"""The protocol of docs/scaling.md on a small size: every state, and what may come next in each.

The adversary is the strongest there is. A message that was sent may arrive at any time, any number
of times, or never. Drivers of moves have no memory and there is any number of them: what one of
them might send, having seen what the servers answered, is sent. A server may crash after anything
that it did. Some things need no states of their own:

- A reply comes at once or is lost: one that comes late finds a client that might have waited.
- A message that waits behind a hold is one that has not arrived yet.
- What is staged, and what is discarded, is so at once. What is void stays void, so to discard it
  late is to discard it; a stage is refused unless it fits to what is there, whenever it comes.

A `Fault` breaks one rule, so that the search shows what the rule is there for.
"""

from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple


class Fault(Enum):
    SEQUENCE_OF_A_SERVER = (
        auto()
    )  # one last sequence of each client on a server, not of each bucket
    KEYS_ALONE_CHECKED = auto()  # a push is taken if its keys are owned, whatever the share
    LAST_FORGOTTEN = auto()  # the last sequences do not go with the bucket
    TAIL_FORGOTTEN = auto()  # what came since the copy does not go with the bucket
    TAIL_WITHOUT_COPY = auto()  # a target that lost what was staged takes the tail alone
    TARGET_FIRST = auto()  # the target owns what it has prepared, before the source gave it
    GIVEN_WITHOUT_HOLD = auto()  # the source gives although the hold is over
    VERSION_USED_AGAIN = auto()  # a hold has the version of the one before
    ANY_VERSION_TAKEN = auto()  # the target takes in another version than it has prepared
    PREPARED_IN_MEMORY = auto()  # and not in the journal
    ANSWERED_BEFORE_JOURNAL = auto()  # a push
    DISCARDED_UNASKED = auto()  # what is prepared, though the source does not say that it is void
    NEXT_PUSH_BEFORE_LAST_ENDS = auto()  # of a client
    SERVERS_COUNTED = auto()  # a push has ended when all servers said OK, for whatever buckets
    CLOCK_KEPT = auto()  # the target's clock does not go back to the source's


class Sizes(NamedTuple):
    """How much there is. Bucket b is server b's at first, later servers have none."""

    servers: int = 2
    clients: int = 1
    buckets: int = 2
    pushes: int = 2  # of each client, each with keys of all buckets
    holds: int = 1  # in all
    is_in_step: bool = False  # a push waits for the parts of all clients, which are applied as one


class Bucket(NamedTuple):
    pushes: tuple[tuple[int, ...], ...]  # by client, as applied; the order between clients is free
    last: tuple[int, ...]  # sequence by client
    version: int  # the last that a hold of it had


class Prepared(NamedTuple):
    version: int
    content: Bucket
    clocks: tuple[int, ...]


Route = tuple[tuple[int, int], ...]  # owner and version by bucket


class Kept(NamedTuple):
    """What a server has in its journal."""

    route: Route
    owned: tuple[Bucket | None, ...]  # by bucket
    prepared: tuple[Prepared | None, ...]  # by bucket
    clocks: tuple[int, ...]  # by client
    last: tuple[int, ...]  # by client; of Fault.SEQUENCE_OF_A_SERVER alone


class Hold(NamedTuple):
    bucket: int
    version: int
    target: int


class Server(NamedTuple):
    now: Kept
    journal: Kept  # what it comes back with
    hold: Hold | None
    staged: tuple[Bucket | None, ...]
    parts: tuple["Push | None", ...]  # by client, of a step whose parts are not all here


class Client(NamedTuple):
    route: Route
    open: tuple[tuple[int, frozenset[int]], ...]  # pushes under way, each with its acked buckets
    next: int  # sequence


# No two kinds of message have as many fields, so none equals another. None has a string: their
# hashes, and so the order of a set and the trace that is found, differ from run to run.


class Push(NamedTuple):
    to: int
    client: int
    sequence: int
    share: frozenset[int]
    keys: frozenset[int]  # the buckets that it has keys of


class Prepare(NamedTuple):
    to: int
    source: int
    bucket: int
    version: int
    content: Bucket
    clocks: tuple[int, ...]


class Give(NamedTuple):
    to: int
    bucket: int
    version: int
    target: int


class Take(NamedTuple):
    to: int
    bucket: int
    version: int


Message = Push | Prepare | Give | Take


class State(NamedTuple):
    servers: tuple[Server, ...]
    clients: tuple[Client, ...]
    sent: frozenset[Message]
    holds: int  # that there may still be


CRASH, DRIVER, SERVER = "crash", "driver", "server"
"""Who does something. A client is its number."""

STAGED = Bucket((), (), 0)
"""Rows of a bucket up to some push: the tail makes the same of all, so which is forgotten."""

Next = tuple[object, frozenset[object], State]
"""What happens, who can bring it about alone, and what comes of it."""


class Protocol:
    """Its first state, what may come next, and what must hold in each.

    Args:
        sizes: How much there is.
        fault: The rule that is broken.
        forgets_dead: Whether messages without effect for ever are not told apart from none.
    """

    def __init__(
        self, sizes: Sizes, fault: Fault | None = None, *, forgets_dead: bool = True
    ) -> None:
        self.forgets_dead = forgets_dead and fault is None  # a broken rule might wake them
        self.sizes = sizes
        self.fault = fault
        self.window = 2 if fault is Fault.NEXT_PUSH_BEFORE_LAST_ENDS else 1

    def start(self) -> State:
        zeros = (0,) * self.sizes.clients
        empty = Bucket(((),) * self.sizes.clients, zeros, 0)
        buckets = range(self.sizes.buckets)
        route = tuple((b, 0) for b in buckets)
        servers = []
        for s in range(self.sizes.servers):
            owned = tuple(empty if b == s else None for b in buckets)
            kept = Kept(route, owned, (None,) * len(buckets), zeros, zeros)
            servers.append(self._recovered(kept))
        state = State(
            tuple(servers),
            (Client(route, (), 1),) * self.sizes.clients,
            frozenset(),
            self.sizes.holds,
        )
        for w in range(self.sizes.clients):
            state = self._client_is(state, w, state.clients[w])
        return state

    def _recovered(self, kept: Kept) -> Server:
        nothing_staged = (None,) * self.sizes.buckets
        return Server(kept, kept, None, nothing_staged, (None,) * self.sizes.clients)

    def has_ended(self, state: State, client: int) -> bool:
        held = state.clients[client]
        return not held.open and held.next > self.sizes.pushes

    def is_over(self, state: State) -> bool:
        return all(self.has_ended(state, client) for client in range(self.sizes.clients))

    def is_settled(self, state: State) -> bool:
        """Whether no move is left half done."""
        owned = zip(*(server.now.owned for server in state.servers), strict=True)
        return all(map(any, owned)) and not any(any(s.now.prepared) for s in state.servers)

    # What may come next

    def nexts(self, state: State) -> Iterator[Next]:
        for what, by, after in self._nexts(state):
            yield what, by, self._without_dead(after) if self.forgets_dead else after

    def _without_dead(self, state: State) -> State:
        dead = [message for message in state.sent if self._is_dead(state, message)]
        return state._replace(sent=state.sent.difference(dead)) if dead else state

    def _is_dead(self, state: State, message: Message) -> bool:
        """Whether a message can change nothing any more, in whatever state may follow."""
        if isinstance(message, Push):
            w, n = message.client, message.sequence
            servers = [server.now for server in state.servers]
            ready = [each for server in servers for each in server.prepared if each]
            clocks = [server.clocks for server in servers if any(server.owned)]
            clocks += [each.clocks for each in ready]  # none above a push that is not in
            return n not in dict(state.clients[w].open) and all(each[w] >= n for each in clocks)
        server, b = state.servers[message.to], message.bucket
        known, content = server.now.route[b][1], server.now.owned[b]
        if isinstance(message, Give):
            is_held = server.hold == Hold(b, message.version, message.target)
            return not is_held and message.version <= (content.version if content else known)
        return message.version <= known

    def _nexts(self, state: State) -> Iterator[Next]:
        for message in state.sent:
            yield from _HANDLERS[type(message)](self, state, message)
        for s, server in enumerate(state.servers):
            yield from self._alone(state, s, server)
            for b, content in enumerate(server.now.owned):
                if content is not None:
                    yield from self._driven(state, s, server, b, content)

    def _alone(self, state: State, s: int, server: Server) -> Iterator[Next]:
        back = self._recovered(server.journal)
        yield (f"server {s} crashes", s), frozenset({CRASH}), _with(state, s, back)
        if server.hold is not None:
            over = server._replace(hold=None)
            yield (f"the hold of server {s} is over", s), frozenset({SERVER}), _with(state, s, over)
        if server.journal is not server.now:
            written = server._replace(journal=server.now)
            yield (f"server {s} writes", s), frozenset({SERVER}), _with(state, s, written)

    def _driven(self, state: State, s: int, server: Server, b: int, content: Bucket):
        """What drivers do with a bucket at its owner, and send of what they saw."""
        driver = frozenset({DRIVER})
        for t, other in enumerate(state.servers):
            if t != s:
                yield from self._moved(state, s, t, b)
            there = other.now.prepared[b]
            if there is None:
                continue
            is_held = server.hold is not None and server.hold[:2] == (b, there.version)
            is_void = there.version <= content.version and not is_held
            if is_void or self.fault is Fault.DISCARDED_UNASKED:
                kept = other.now._replace(prepared=_put(other.now.prepared, b, None))
                after = _with(state, t, other._replace(now=kept, journal=kept))
                yield (
                    (f"version {there.version} of bucket {b} discarded at server {t}",),
                    driver,
                    after,
                )

    def _moved(self, state: State, s: int, t: int, b: int) -> Iterator[Next]:
        driver = frozenset({DRIVER})
        server, target = state.servers[s], state.servers[t]
        content = server.now.owned[b]
        if target.now.prepared[b] is None:
            staged = content if self.fault is Fault.TAIL_FORGOTTEN else STAGED
            after = _with(state, t, target._replace(staged=_put(target.staged, b, staged)))
            yield (f"bucket {b} copied from server {s} to server {t}",), driver, after
        if state.holds == 0:
            return
        if self.fault is Fault.VERSION_USED_AGAIN:
            version = server.now.route[b][1] + 1
        else:
            version = content.version + 1
        held = content._replace(version=version)
        kept = server.now._replace(owned=_put(server.now.owned, b, held))
        holding = server._replace(now=kept, journal=kept, hold=Hold(b, version, t))
        prepare = Prepare(t, s, b, version, held, kept.clocks)
        after = _sent(_with(state, s, holding), prepare)._replace(holds=state.holds - 1)
        yield (f"server {s} holds bucket {b} for server {t}, version {version}",), driver, after

    def _push(self, state: State, push: Push) -> Iterator[Next]:
        s, w, n = push.to, push.client, push.sequence
        server = state.servers[s]
        if server.hold is not None:
            return
        share = frozenset(b for b, content in enumerate(server.now.owned) if content is not None)
        is_right = share == push.share
        if self.fault is Fault.KEYS_ALONE_CHECKED:
            is_right = push.keys <= share
        by = frozenset({w})
        if not is_right:
            client = state.clients[w]
            merged = _merged(client.route, server.now.route)
            if merged != client.route:
                told = self._client_is(state, w, client._replace(route=merged))
                yield ("refused", push), by, told
            return
        parts = (push,)
        if self.sizes.is_in_step and any(c.last[w] < n for c in server.now.owned if c):
            parts = _put(server.parts, w, push)
            if None in parts:
                yield (
                    ("waits for other parts", push),
                    by,
                    _with(state, s, server._replace(parts=parts)),
                )
                return
        kept = server.now
        for part in parts:
            kept = self._applied(kept, part, share)
        is_late = self.fault is Fault.ANSWERED_BEFORE_JOURNAL
        journal = server.journal if is_late else kept
        after = server._replace(now=kept, journal=journal, parts=(None,) * self.sizes.clients)
        changed = state if kept == server.now else _with(state, s, after)
        client = state.clients[w]
        pushes = tuple(
            (each, acked | push.share if each == n else acked) for each, acked in client.open
        )
        if pushes != client.open:
            answered = self._client_is(changed, w, client._replace(open=pushes))
            yield ("applied and answered", push), by, answered
        yield ("applied, and the reply is lost", push), by, changed

    def _applied(self, kept: Kept, push: Push, share: frozenset[int]) -> Kept:
        w, n = push.client, push.sequence
        owned = list(kept.owned)
        is_of_server = self.fault is Fault.SEQUENCE_OF_A_SERVER
        for b in share:
            content = owned[b]
            assert content is not None
            if (kept.last[w] if is_of_server else content.last[w]) < n:
                if b in push.keys:
                    pushes = _put(content.pushes, w, (*content.pushes[w], n))
                    content = content._replace(pushes=pushes)
                owned[b] = content._replace(last=_put(content.last, w, n))
        clocks = _put(kept.clocks, w, max(kept.clocks[w], n))
        last = _put(kept.last, w, max(kept.last[w], n)) if is_of_server else kept.last
        return kept._replace(owned=tuple(owned), clocks=clocks, last=last)

    def _prepare(self, state: State, prepare: Prepare) -> Iterator[Next]:
        t, b = prepare.to, prepare.bucket
        server = state.servers[t]
        staged = server.staged[b]
        content = prepare.content  # with what was staged, and the pushes since
        if staged is None and self.fault is not Fault.TAIL_WITHOUT_COPY:
            return
        if server.now.owned[b] is not None or server.now.prepared[b] is not None:
            return
        if prepare.version <= server.now.route[b][1]:
            return
        nothing = (0,) * self.sizes.clients
        if self.fault is Fault.TAIL_FORGOTTEN:
            content = staged._replace(version=prepare.version, last=content.last)
        elif self.fault is Fault.LAST_FORGOTTEN:
            content = content._replace(last=nothing)
        elif staged is None:
            content = content._replace(pushes=((),) * self.sizes.clients)
        ready = Prepared(prepare.version, content, prepare.clocks)
        kept = server.now._replace(prepared=_put(server.now.prepared, b, ready))
        if self.fault is Fault.TARGET_FIRST:
            kept = self._taken(kept, t, b, ready)
        is_lost = self.fault is Fault.PREPARED_IN_MEMORY
        journal = server.journal if is_lost else kept
        after = server._replace(now=kept, journal=journal, staged=_put(server.staged, b, None))
        giving = Give(prepare.source, b, prepare.version, t)
        yield ("prepared", prepare), frozenset({DRIVER}), _sent(_with(state, t, after), giving)

    def _give(self, state: State, give: Give) -> Iterator[Next]:
        s, b = give.to, give.bucket
        server = state.servers[s]
        content = server.now.owned[b]
        is_held = server.hold == Hold(b, give.version, give.target)
        if self.fault is Fault.GIVEN_WITHOUT_HOLD:
            is_held = content is not None and content.version == give.version
        if not is_held:
            return
        route = _put(server.now.route, b, (give.target, give.version))
        kept = server.now._replace(route=route, owned=_put(server.now.owned, b, None))
        after = self._recovered(kept)._replace(staged=server.staged)  # parts are refused
        taking = Take(give.target, b, give.version)
        yield ("given", give), frozenset({DRIVER}), _sent(_with(state, s, after), taking)

    def _take(self, state: State, take: Take) -> Iterator[Next]:
        t, b = take.to, take.bucket
        server = state.servers[t]
        ready = server.now.prepared[b]
        if ready is None:
            return
        if ready.version != take.version and self.fault is not Fault.ANY_VERSION_TAKEN:
            return
        kept = self._taken(server.now, t, b, ready)
        knowing = [w for w, c in enumerate(state.clients) if c.route[b] == (t, take.version)]
        after = self._recovered(kept)._replace(staged=server.staged)  # parts are refused
        yield ("taken", take), frozenset({DRIVER, *knowing}), _with(state, t, after)

    def _taken(self, kept: Kept, t: int, b: int, ready: Prepared) -> Kept:
        clocks = tuple(map(min, kept.clocks, ready.clocks))
        if not any(kept.owned):
            clocks = ready.clocks
        if self.fault is Fault.CLOCK_KEPT and any(kept.owned):
            clocks = kept.clocks
        return kept._replace(
            route=_put(kept.route, b, (t, ready.version)),
            owned=_put(kept.owned, b, ready.content),
            prepared=_put(kept.prepared, b, None),
            clocks=clocks,
        )

    def _client_is(self, state: State, w: int, client: Client) -> State:
        """Returns the state with a client that has heard something: it goes on as far as it can."""
        pushes = tuple((n, acked) for n, acked in client.open if not self._has_all(acked, client))
        n = client.next
        while len(pushes) < self.window and n <= self.sizes.pushes:
            pushes, n = (*pushes, (n, frozenset())), n + 1
        client = Client(client.route, pushes, n)
        sent = {
            Take(owner, b, version) for b, (owner, version) in enumerate(client.route) if version
        }
        for n, acked in pushes:
            for s in range(self.sizes.servers):
                share = frozenset(b for b, (owner, _) in enumerate(client.route) if owner == s)
                if share - acked:
                    sent.add(Push(s, w, n, share, share - acked))
        return state._replace(clients=_put(state.clients, w, client), sent=state.sent | sent)

    def _has_all(self, acked: frozenset[int], client: Client) -> bool:
        if self.fault is Fault.SERVERS_COUNTED:
            firsts = dict.fromkeys(b for b in acked)  # of each server, at first, one bucket
            return {owner for owner, _ in client.route} <= {*firsts}
        return len(acked) == self.sizes.buckets

    # What must hold

    def wrong(self, state: State) -> str | None:
        """Returns which part of the invariant does not hold, None if all do."""
        for b in range(self.sizes.buckets):
            owners = [s for s in state.servers if s.now.owned[b] is not None]
            if len(owners) > 1:
                return f"bucket {b} has two owners"
            found = self._found(state, b)
            if found is None:
                return f"bucket {b} is nowhere"
            clocks = owners[0].now.clocks if owners else (0,) * self.sizes.clients
            for w, client in enumerate(state.clients):
                if wrong := _wrong_pushes(found.pushes[w], client, b, clocks[w]):
                    return wrong.format(client=w, bucket=b)
        return None

    def _found(self, state: State, b: int) -> Bucket | None:
        """Returns a bucket where it is; None if it is at no server, or at several."""
        owned = [s.now.owned[b] for s in state.servers if s.now.owned[b] is not None]
        if owned:
            return owned[0]
        given = max((s.now.route[b] for s in state.servers), key=lambda each: each[1])
        there = state.servers[given[0]].now.prepared[b]
        return there.content if there is not None and there.version == given[1] else None


_HANDLERS = {
    Push: Protocol._push,
    Prepare: Protocol._prepare,
    Give: Protocol._give,
    Take: Protocol._take,
}


def _wrong_pushes(pushes: tuple[int, ...], client: Client, bucket: int, clock: int) -> str | None:
    """Returns what is wrong with the pushes of a client in a bucket."""
    if len({*pushes}) < len(pushes):
        return "a push of client {client} is in bucket {bucket} twice"
    if list(pushes) != sorted(pushes):
        return "pushes of client {client} are in bucket {bucket} in another order"
    acked = {*range(1, client.next)} - {n for n, at in client.open if bucket not in at}
    if acked - {*pushes}:
        return "bucket {bucket} lacks a push of client {client} that was acknowledged"
    if clock > max(pushes, default=0):
        return "the clock of client {client} is above what is in bucket {bucket}"
    return None


def _put(items: tuple, at: int, item: object) -> tuple:
    return (*items[:at], item, *items[at + 1 :])


def _with(state: State, s: int, server: Server) -> State:
    return state._replace(servers=_put(state.servers, s, server))


def _sent(state: State, message: Message) -> State:
    return state._replace(sent=state.sent | {message})


def _merged(one: Route, other: Route) -> Route:
    return tuple(b if b[1] > a[1] else a for a, b in zip(one, other, strict=True))
