"""Where servers are: by name, or by a file that is rewritten when one of them moves."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hetero_pipe.errors import ConfigError

__all__ = ["Servers", "ServersFile", "servers_of"]


class Servers(Protocol):
    """Where the servers of a job are."""

    @property
    def may_move(self) -> bool:
        """Whether addresses change."""

    def addresses(self) -> tuple[str, ...]:
        """Returns HOST:PORT of each, as of now. Position i is always the same server.

        Raises:
            ConfigError: That cannot be told now.
        """


@dataclass(frozen=True)
class NamedServers:
    """Servers that stay where they are.

    Attributes:
        names: HOST:PORT of each.

    Raises:
        ConfigError: One is malformed, or there is none.
    """

    names: tuple[str, ...]

    may_move = False

    def __post_init__(self) -> None:
        _check_addresses(self.names)

    def addresses(self) -> tuple[str, ...]:
        return self.names


@dataclass(frozen=True)
class ServersFile:
    """A file that says where the servers of a job are.

    It is JSON, `{"servers": ["HOST:PORT", ...]}`, and replaced by one rename when
    a server comes back on another port. Position i is always the same server.

    Attributes:
        path: Of the file.
    """

    path: Path

    may_move = True

    def addresses(self) -> tuple[str, ...]:
        """Returns HOST:PORT of each server, as the file has it now.

        Raises:
            ConfigError: It cannot be read, or is no such file.
        """
        try:
            found = json.loads(self.path.read_text())["servers"]
            if not isinstance(found, list):
                raise TypeError(f"servers={found!r}")
            _check_addresses(found)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                'a servers file is JSON, {"servers": ["HOST:PORT", ...]}, got '
                f"{type(error).__name__}: {error} in {self.path}; the supervisor of the job writes "
                "it, as hetero-pipe launch does"
            ) from error
        return tuple(found)


def servers_of(servers: Sequence[str]) -> Servers:
    """Returns what says where servers are.

    Args:
        servers: HOST:PORT of each; or one alone, @FILE, of a servers file.

    Raises:
        ConfigError: An address is malformed.
    """
    if len(servers) == 1 and servers[0].startswith("@"):
        return ServersFile(Path(servers[0][1:]))
    return NamedServers(tuple(servers))


def _check_addresses(addresses: Sequence[object]) -> None:
    if not addresses:
        raise ConfigError("servers must name at least one HOST:PORT, got none; None is embedded")
    for address in addresses:
        host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(
                f"a server is HOST:PORT with a port from 1 to 65535, got {address!r}; "
                "for example servers=['127.0.0.1:7000'], or servers=['@FILE'] of a file that "
                "names them"
            )
