"""Asking all servers at once."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from hetero_pipe.client.connect import Connection
from hetero_pipe.client.transport import Reply
from hetero_pipe.errors import HeteroPipeError

__all__ = ["ask", "await_all"]

Value = TypeVar("Value")


def ask(
    connections: Sequence[Connection], start: Callable[[Connection], Reply[Value]]
) -> list[Value]:
    """Asks every server, then waits for all; Ctrl-C ends the wait at once."""
    return await_all([start(connection) for connection in connections])


def await_all(replies: Iterable[Reply[Value]]) -> list[Value]:
    """Returns the answers when all are there; of failures, the first is raised then."""
    values: list[Value] = []
    failures: list[HeteroPipeError] = []
    for reply in replies:
        try:
            values.append(reply.result())
        except HeteroPipeError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return values
