"""The protocol of docs/scaling.md holds in all states of small sizes, and needs each rule."""

import pytest

from tests.oracles.bucket_protocol import DRIVER, SERVER, Fault, Protocol, Sizes
from tests.oracles.state_search import search, stuck

SMALL = Sizes(servers=2, clients=1, buckets=2, pushes=2, holds=1)

# Which part of the invariant goes with each rule, and in how many steps. One that needs a bucket to
# go, to come back and to go again has its own size.
LACKS = "bucket 0 lacks a push of client 0 that was acknowledged"
FAULTS = {
    Fault.SEQUENCE_OF_A_SERVER: (SMALL, LACKS, 8),
    Fault.KEYS_ALONE_CHECKED: (SMALL, "the clock of client 0 is above what is in bucket 0", 6),
    Fault.LAST_FORGOTTEN: (SMALL, "a push of client 0 is in bucket 1 twice", 8),
    Fault.TAIL_FORGOTTEN: (SMALL, LACKS, 5),
    Fault.TAIL_WITHOUT_COPY: (SMALL, LACKS, 4),
    Fault.TARGET_FIRST: (SMALL, "bucket 0 has two owners", 3),
    Fault.GIVEN_WITHOUT_HOLD: (SMALL, LACKS, 6),
    Fault.VERSION_USED_AGAIN: (SMALL._replace(holds=2), LACKS, 7),
    Fault.ANY_VERSION_TAKEN: (SMALL._replace(pushes=1, holds=3), "bucket 0 has two owners", 14),
    Fault.PREPARED_IN_MEMORY: (SMALL, "bucket 0 is nowhere", 5),
    Fault.ANSWERED_BEFORE_JOURNAL: (SMALL, LACKS, 2),
    Fault.DISCARDED_UNASKED: (SMALL, "bucket 0 is nowhere", 5),
    Fault.NEXT_PUSH_BEFORE_LAST_ENDS: (SMALL, LACKS, 2),
    Fault.SERVERS_COUNTED: (SMALL, LACKS, 6),
    Fault.CLOCK_KEPT: (SMALL, "the clock of client 0 is above what is in bucket 0", 6),
}


def long(*sizes):
    return pytest.param(Sizes(*sizes), marks=pytest.mark.long)


@pytest.mark.parametrize(
    "sizes",
    [
        SMALL,
        Sizes(servers=2, clients=1, buckets=1, pushes=2, holds=2),
        Sizes(servers=2, clients=2, buckets=1, pushes=1, holds=1),
        Sizes(servers=2, clients=2, buckets=2, pushes=1, holds=1, is_in_step=True),
        Sizes(servers=3, clients=1, buckets=1, pushes=1, holds=2),
        long(2, 1, 2, 2, 2),
        long(2, 2, 2, 1, 1),
        long(3, 1, 2, 1, 2),
        long(2, 1, 2, 1, 3),
        long(2, 1, 2, 3, 2),
        long(2, 2, 2, 2, 1, True),
        long(2, 2, 2, 2, 1),
    ],
    ids=lambda sizes: "-".join(map(str, sizes)),
)
def test_protocol_holds_in_every_state_and_every_client_can_finish(sizes):
    protocol = Protocol(sizes)
    found = search(protocol)
    assert found.wrong is None, found.trace
    assert any(protocol.is_over(state) for state in found.states)

    clients = range(sizes.clients)
    groups = [clients] if sizes.is_in_step else [[client] for client in clients]
    for group in groups:  # nobody else acts: no driver, no other client

        def is_end(state, group=group):
            return all(protocol.has_ended(state, client) for client in group)

        alone = {*group, SERVER}
        assert not stuck(found, is_end, may=lambda by, alone=alone: not alone.isdisjoint(by))
    driven = {DRIVER, SERVER}
    assert not stuck(found, protocol.is_settled, may=lambda by: not driven.isdisjoint(by))


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[pytest.mark.long] * (FAULTS[fault][0].holds > 2))
        for fault in Fault
    ],
    ids=lambda fault: fault.name.lower(),
)
def test_each_rule_is_needed(fault):
    sizes, wrong, num_steps = FAULTS[fault]
    found = search(Protocol(sizes, fault))
    assert (found.wrong or "").replace("bucket 1 lacks", "bucket 0 lacks") == wrong
    assert len(found.trace) == num_steps


def test_sequences_of_a_server_lose_a_push_of_a_bucket_that_moves():
    """The shortest way: the target had its part of the push when the bucket came without it."""
    found = search(Protocol(SMALL, Fault.SEQUENCE_OF_A_SERVER))
    target = 1
    assert [what[0] for what in found.trace if what[0] in {"given", "taken"}] == ["given", "taken"]
    pushes = [step for step in found.trace if step[0].startswith(("applied", "refused"))]
    assert [(what, push.to, push.sequence, {*push.share}) for what, push in pushes] == [
        ("applied and answered", target, 1, {1}),
        ("refused", target, 1, {1}),
        ("applied and answered", target, 1, {0, 1}),  # and bucket 0 lacks it
    ]


def test_messages_that_are_forgotten_had_no_effect():
    sizes = SMALL._replace(pushes=1)
    all_of_them = search(Protocol(sizes, forgets_dead=False)).states
    told_apart = search(Protocol(sizes)).states
    assert len(told_apart) < len(all_of_them)
    reached = {(state.servers, state.clients) for state in told_apart}
    assert reached == {(state.servers, state.clients) for state in all_of_them}


def test_search_reaches_a_bucket_that_is_given_and_not_taken():
    """Or it would be no wonder that nothing goes wrong there."""
    found = search(Protocol(SMALL))
    assert any(
        all(server.now.owned[0] is None for server in state.servers) for state in found.states
    )
