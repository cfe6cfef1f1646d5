"""FitTrace: records when a fit did what, its servers too, and writes it to one file."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hetero_pipe.client import Client
from hetero_pipe.errors import ConfigError, HeteroPipeError
from hetero_pipe.pipeline import ServerTime, write_trace
from ps_server.spans import SpanRing, Spans

__all__ = ["FitTrace"]

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


Told = dict[str, Any] | None  # of `Spans.to_dict`


def _alone(value: Told) -> list[Told]:
    return [value]


class FitTrace:
    """Records from `start` to `stop`; nothing at all without a path.

    Args:
        path: Of the file, packed by gzip if its name ends in `.gz`.
        client: Of the servers.
        role: What this process is, for a reader.
        gather: Returns what every worker gives, by rank, as a `Group`'s does. Called
            once, also without a path, unless `fit` fails.
        is_first: Whether this worker asks the servers and writes the file.

    Attributes:
        ring: Where stages record; None if they need not.
        servers: Where the servers' time went, after `stop`.
        is_whole: Whether `fit` has ended well, to be said before `stop`.
    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        client: Client,
        role: str = "trainer",
        gather: Callable[[Told], list[Told]] = _alone,
        is_first: bool = True,
    ) -> None:
        self._path = None if path is None else Path(path)
        self._client = client
        self._role = role
        self._gather = gather
        self._is_first = is_first
        self.ring = None if path is None else SpanRing()
        self.servers: tuple[ServerTime, ...] = ()
        self.is_whole = False

    def start(self) -> None:
        """Asks the servers to record.

        Raises:
            ConfigError: The file cannot be written.
            ServerError: A server failed.
        """
        if self._path is None or not self._is_first:
            return
        try:
            self._path.open("ab").close()  # before hours of training, not after
        except OSError as error:
            raise ConfigError(
                f"a trace is written to a file, got {error}; name another one (--trace)"
            ) from error
        self._client.start_trace()

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Records what is done between two epochs."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.ring is not None:
                self.ring.record("fit", name, -1, start, time.perf_counter())

    def stop(self) -> None:
        """Writes the file, also of a `fit` that failed: then, that is what one wants to see.

        What goes wrong here is a warning. It is not to hide why `fit` failed, nor what
        it has trained.
        """
        ahead, mine = 0.0, None
        if self.ring is not None:
            # Workers of several hosts meet on the clock of their first server.
            ahead = self._try(self._client.clock_ahead) or 0.0
            mine = self.ring.spans(role=self._role).shifted(ahead).to_dict()
        told = self._try(lambda: self._gather(mine)) if self.is_whole else None
        if self._path is None or not self._is_first:
            return
        workers = [Spans.from_dict(each) for each in told or [mine] if each is not None]
        servers = [each.shifted(ahead) for each in self._try(self._client.stop_trace) or ()]
        self.servers = tuple(ServerTime.of(each) for each in servers)
        self._write(self._path, [*workers, *servers])

    def _try(self, ask: Callable[[], Value]) -> Value | None:
        """Returns what others tell, None if they do not."""
        try:
            return ask()
        except HeteroPipeError as error:
            logger.warning("the trace is not whole: %s", error)
            return None

    def _write(self, path: Path, processes: list[Spans]) -> None:
        try:
            write_trace(path, processes)
        except OSError as error:
            logger.warning("the trace could not be written: %s", error)
            return
        num_dropped = sum(each.num_dropped for each in processes)
        logger.info(
            "wrote %d spans of %s to %s%s; open it at https://ui.perfetto.dev",
            sum(map(len, processes)),
            ", ".join(each.role for each in processes),
            path,
            f" ({num_dropped} earlier ones were not kept)" if num_dropped else "",
        )
