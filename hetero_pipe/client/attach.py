"""Making a job's tables on its servers, or finding them there: whole, and under its route."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from hetero_pipe.client.ask import ask
from hetero_pipe.client.connect import Connection
from hetero_pipe.client.transport import ServerStats
from hetero_pipe.errors import RouteMismatch, ServerError
from ps_server.route import Route
from ps_server.spec import TableSpec

__all__ = ["attach_tables"]

logger = logging.getLogger(__name__)


def attach_tables(
    route: Route,
    connections: Sequence[Connection],
    specs: Mapping[str, TableSpec],
    *,
    fresh: bool,
    beside_others: bool = False,
) -> int:
    """Creates tables, or attaches to those that are there. Raises as `Client.attach` does.

    Args:
        route: Of the job.
        connections: To its servers, in its order.
        specs: Of the tables, by name.
        fresh: Drop tables of these names first.
        beside_others: Whether others may just be creating them: then one that some
            servers have is no error.

    Returns:
        The largest step pushed to any of them, 0 for new ones.
    """
    if fresh:
        for name in specs:
            _drop(name, connections)
    stats = ask(connections, lambda c: c.control.stats())
    for connection, held in zip(connections, stats, strict=True):
        _check_route(route, connection.ref.address, held)
    for name in () if beside_others else specs:
        _check_whole(name, connections, stats)
    if not beside_others:
        _say_held(specs, route, stats)
    return max((_attach(spec, route, connections) for spec in specs.values()), default=0)


def _drop(name: str, connections: Sequence[Connection]) -> None:
    ask(connections, lambda c: c.control.drop_table(name))


def _check_whole(
    name: str, connections: Sequence[Connection], stats: Sequence[ServerStats]
) -> None:
    without = [
        c.ref.address for c, held in zip(connections, stats, strict=True) if name not in held.tables
    ]
    if without and len(without) < len(connections):
        raise ServerError(
            f"table {name!r} must be on every server, got none on {', '.join(without)}; "
            "start over with fresh=True (--fresh), then load a checkpoint"
        )


def _say_held(names: Iterable[str], route: Route, stats: Sequence[ServerStats]) -> None:
    for name in names:
        tables = [held.tables[name] for held in stats if name in held.tables]
        if tables:
            logger.info(
                "attached to table %s: %d rows on %s; training goes on with them, fresh=True "
                "(--fresh) drops them",
                name,
                sum(table.num_rows for table in tables),
                route,
            )


def _attach(spec: TableSpec, route: Route, connections: Sequence[Connection]) -> int:
    tables = ask(connections, lambda c: c.control.create_table(spec, route))
    return max(table.last_step for table in tables)


def _check_route(route: Route, address: str, stats: ServerStats) -> None:
    """Refuses a server that serves as one of another set.

    Raises:
        RouteMismatch: It does; the message names both sets, or the server that
            was restarted and so is another one.
    """
    held = stats.route
    if held is None or held.is_of_job(route):
        return
    ids = {server.id for server in route.servers}
    gone = {server.address for server in held.servers if server.id not in ids}
    restarted = [s.address for s in route.servers if s.address in gone]
    if restarted:
        raise RouteMismatch(
            f"the tables of server {address} must be whole, got {', '.join(restarted)} restarted "
            "since they were created, without its rows; start over with fresh=True (--fresh), "
            "then load a checkpoint"
        )
    raise RouteMismatch(
        f"the tables {', '.join(sorted(stats.tables))} of server {address} were created on the "
        f"servers {held}, got the servers {route}; name the same servers (one that was restarted "
        "is another), start over with fresh=True (--fresh) if the tables are this model's, or "
        "restart the servers to drop them all"
    )
