"""Every state that can be reached, breadth first: the shortest way to one that is wrong."""

from typing import NamedTuple


class Found(NamedTuple):
    """What a search has found.

    Attributes:
        states: All that were reached, in the order of their distance.
        wrong: What is wrong with the last one; None if none is.
        trace: What happens on a shortest way to it.
        edges: Of each state, who can do something alone, and the number of what comes of it.
    """

    states: list
    wrong: str | None
    trace: list
    edges: list


def search(protocol, *, max_states=None):
    """Explores all states from `protocol.start()` on by `nexts`, and checks each by `wrong`."""
    first = protocol.start()
    numbers = {first: 0}
    states, came, edges = [first], [None], []
    for number, state in enumerate(states):  # grows meanwhile
        found = []
        for what, by, after in protocol.nexts(state):
            to = numbers.get(after)
            if to is None:
                to = numbers[after] = len(states)
                states.append(after)
                came.append((number, what))
                if wrong := protocol.wrong(after):
                    return Found(states, wrong, trace_to(came), edges)
                if max_states is not None and len(states) > max_states:
                    raise AssertionError(f"more than {max_states} states")
            if to != number:
                found.append((by, to))
        edges.append(found)
    return Found(states, None, [], edges)


def trace_to(came):
    """Returns what happened on the way to the last state."""
    at, trace = len(came) - 1, []
    while came[at] is not None:
        at, what = came[at]
        trace.append(what)
    return trace[::-1]


def stuck(found, is_end, may):
    """Returns the states from which no way leads to an end, by what `may` happen of `edges`."""
    before = [[] for _ in found.states]
    for number, edges in enumerate(found.edges):
        for by, to in edges:
            if may(by):
                before[to].append(number)
    reached = [is_end(state) for state in found.states]
    front = [number for number, is_reached in enumerate(reached) if is_reached]
    while front:
        for number in before[front.pop()]:
            if not reached[number]:
                reached[number] = True
                front.append(number)
    return [
        state for state, is_reached in zip(found.states, reached, strict=True) if not is_reached
    ]
