"""What Paddle's launcher says to the processes that it starts, read as ours.

`python -m paddle.distributed.launch --server_num 2 --trainer_num 2 train.py`
starts the script four times and tells the copies apart by their environment:

============================ ================================= ==================
variable                     of                                read as
============================ ================================= ==================
TRAINING_ROLE                all: PSERVER or TRAINER           a server, a worker
PADDLE_PSERVERS_IP_PORT_LIST all: HOST:PORT,...                --servers
PADDLE_TRAINERS_NUM          all                               --num-workers
POD_IP, PADDLE_PORT          all: its own address              a server's --listen
PADDLE_TRAINER_ENDPOINTS     all: HOST:PORT,...; the first one --coordinator
PADDLE_TRAINER_ID            trainers                          --worker
============================ ================================= ==================

The launcher finds a free port for each trainer. Ours do not listen there, so
the first one's is where the workers meet.

HETERO_PIPE_DATA_DIR, which is ours, makes servers durable: each keeps its data in
the folder `server-N` of that one, N its place in the list of servers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hetero_pipe.errors import ConfigError

__all__ = ["ServerRole", "WorkerRole", "read_role"]

COMMAND = "python -m paddle.distributed.launch --server_num 2 --trainer_num 2 SCRIPT"

DATA_DIR = "HETERO_PIPE_DATA_DIR"


@dataclass(frozen=True)
class ServerRole:
    """A process that was started as a parameter server.

    Attributes:
        listen: HOST:PORT, as the workers name it.
        num_workers: Those that say goodbye before it leaves.
        data: Where it keeps its data, to come back with them; None keeps none.
    """

    listen: str
    num_workers: int
    data: Path | None = None

    def arguments(self) -> list[str]:
        """Returns those of `ps-server`."""
        arguments = ["--listen", self.listen, "--num-workers", str(self.num_workers)]
        if self.data is None:
            return arguments
        return [*arguments, "--data-dir", str(self.data), "--durability", "process"]


@dataclass(frozen=True)
class WorkerRole:
    """A process that was started as a whole worker.

    Attributes:
        servers: HOST:PORT of each.
        rank: From 0.
        num_workers: In the job.
        coordinator: HOST:PORT of the first worker's host, the same for all.
    """

    servers: tuple[str, ...]
    rank: int
    num_workers: int
    coordinator: str

    def arguments(self) -> list[str]:
        """Returns those that `add_arguments` adds."""
        return [
            *("--servers", ",".join(self.servers)),
            *("--worker", str(self.rank)),
            *("--num-workers", str(self.num_workers)),
            *("--coordinator", self.coordinator),
        ]


def read_role(environment: Mapping[str, str]) -> ServerRole | WorkerRole | None:
    """Returns what Paddle's launcher started this process as, None if it did not.

    Raises:
        ConfigError: The environment lacks a role of the job, or is not one that
            the launcher makes.
    """
    role = environment.get("TRAINING_ROLE")
    if role is None:
        return None
    if role not in ("PSERVER", "TRAINER"):
        raise ConfigError(
            f"TRAINING_ROLE is PSERVER or TRAINER, got {role!r}; start all processes with: "
            f"{COMMAND}"
        )
    servers = _list(environment, "PADDLE_PSERVERS_IP_PORT_LIST", missing="PSERVER")
    trainers = _list(environment, "PADDLE_TRAINER_ENDPOINTS", missing="TRAINER")
    num_workers = _count(environment, "PADDLE_TRAINERS_NUM", least=1)
    if role == "PSERVER":
        own = _own_address(environment, servers)
        folder = environment.get(DATA_DIR)
        data = Path(folder).absolute() / f"server-{servers.index(own)}" if folder else None
        return ServerRole(own, num_workers, data)
    rank = _count(environment, "PADDLE_TRAINER_ID", least=0)
    return WorkerRole(servers, rank, num_workers, coordinator=trainers[0])


def _text(environment: Mapping[str, str], name: str) -> str:
    if name not in environment:
        raise ConfigError(
            f"a process with TRAINING_ROLE={environment['TRAINING_ROLE']} needs {name}, which is "
            f"not set; start all processes with: {COMMAND}"
        )
    return environment[name]


def _list(environment: Mapping[str, str], name: str, *, missing: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in environment.get(name, "").split(",") if part.strip())
    if not found:
        raise ConfigError(
            f"a process with TRAINING_ROLE={environment['TRAINING_ROLE']} needs one with "
            f"TRAINING_ROLE={missing} beside it, got none in {name}; start all processes with: "
            f"{COMMAND}"
        )
    return found


def _count(environment: Mapping[str, str], name: str, *, least: int) -> int:
    text = _text(environment, name)
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{name} is a whole number from {least}, got {text!r}")
    return int(text)


def _own_address(environment: Mapping[str, str], servers: tuple[str, ...]) -> str:
    """Returns the address in the list that is this server's.

    With `--servers 127.0.0.1:...` the launcher lists loopback addresses and still
    sets POD_IP to that of the host: then the port tells.
    """
    port = _text(environment, "PADDLE_PORT")
    own = f"{_text(environment, 'POD_IP')}:{port}"
    if own in servers:
        return own
    same_port = [server for server in servers if server.rpartition(":")[2] == port]
    if len(same_port) != 1:
        raise ConfigError(
            f"PADDLE_PSERVERS_IP_PORT_LIST names this server, {own} (POD_IP:PADDLE_PORT), got "
            f"{', '.join(servers)}"
        )
    return same_port[0]
