"""The flags by which every process of a job is told what it is."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from hetero_pipe.errors import ConfigError
from hetero_pipe.plan import MODES, RETRY_SECONDS, WIRES, Worker, WorkersPlan

__all__ = ["add_arguments", "mode_of", "take_device", "worker", "workers_plan"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of servers and workers to a script's own.

    Without any of them, a script is one process that trains alone. Their values
    are `servers`, `retry_seconds`, `mode`, `staleness`, `average_every`, `range_batches`,
    `lease_seconds`, `wire`, `trace`, `worker`, `num_workers`, `coordinator`, `stage` and
    `dense_workers`.
    """
    default = WorkersPlan()
    job = parser.add_argument_group("the job", "the same for all of its processes")
    add = job.add_argument
    add(
        "--servers",
        metavar="HOST:PORT,...",
        type=_servers,
        help="or @FILE, which names them and is read again when one is away; "
        "default: tables in this process",
    )
    add(
        "--retry-seconds",
        metavar="S",
        type=float,
        default=RETRY_SECONDS,
        help="to wait for a durable server that is away; default: %(default)g",
    )
    add("--mode", choices=MODES, default=default.mode, help="default: %(default)s")
    add("--staleness", metavar="K", type=int, default=0, help="latest pushes a pull may miss")
    add(
        "--average-every",
        metavar="STEPS",
        type=int,
        default=default.average_every,
        help="between two averages of dense parameters; default: %(default)s",
    )
    add(
        "--range-batches",
        metavar="N",
        type=int,
        default=default.range_batches,
        help="mode elastic: that a worker gets at once; default: %(default)s",
    )
    add(
        "--lease-seconds",
        metavar="S",
        type=float,
        default=default.lease_seconds,
        help="mode elastic: how long it may be silent until others get them; default: %(default)g",
    )
    add(
        "--num-workers",
        metavar="N",
        type=int,
        default=default.num_readers,
        help="that read: whole or sparse ones; default: %(default)s",
    )
    add(
        "--dense-workers",
        metavar="HOST:PORT,...",
        type=_addresses,
        default=[],
        help="where dense workers listen, by rank; default: workers are whole",
    )
    add(
        "--coordinator",
        metavar="HOST:PORT",
        type=_address,
        help="where the workers meet: a free port of worker 0's host",
    )
    add("--wire", choices=WIRES, default=default.wire, help="between workers; default: %(default)s")
    own = parser.add_argument_group("this process", "`hetero-pipe launch` fills them in")
    add = own.add_argument
    add(
        "--stage",
        choices=["whole", "sparse", "dense"],
        help="what it runs: all, or (with --dense-workers) one side; default: whole",
    )
    add("--worker", metavar="RANK", type=int, default=0, help="among those of its stage, from 0")
    add("--trace", metavar="FILE", type=Path, help="write where time went, for Perfetto")


def mode_of(arguments: Sequence[str]) -> str:
    """Returns the mode that a script's arguments name, or the default one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_arguments(parser)
    try:
        flags, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError:  # the script says what is wrong with them
        return WorkersPlan().mode
    return str(flags.mode)


def workers_plan(flags: argparse.Namespace) -> WorkersPlan:
    """Returns the training processes that the flags name.

    Raises:
        PlanError: There can be no such processes.
    """
    return WorkersPlan(
        mode=flags.mode,
        num_readers=flags.num_workers,
        dense=tuple(flags.dense_workers),
        wire=flags.wire,
        average_every=flags.average_every,
        range_batches=flags.range_batches,
        lease_seconds=flags.lease_seconds,
    )


def worker(flags: argparse.Namespace) -> Worker:
    """Returns which of the training processes the flags say this one is.

    Raises:
        ConfigError: A role of the job is missing from the flags.
        PlanError: The job has no such worker.
    """
    stage = flags.stage or "whole"
    if stage != "whole" and not flags.dense_workers:
        raise ConfigError(
            f"a {stage} worker needs the addresses of the dense workers, got none; name them all "
            "(--dense-workers HOST:PORT,...), or start a whole job with hetero-pipe launch "
            "--sparse S --dense D"
        )
    if stage == "whole" and flags.dense_workers:
        raise ConfigError(
            f"beside {len(flags.dense_workers)} dense workers a worker is sparse or dense, got a "
            "whole one; say which it is (--stage sparse)"
        )
    found = Worker(stage=stage, rank=flags.worker, coordinator=flags.coordinator)
    found.check(workers_plan(flags))
    return found


def take_device(flags: argparse.Namespace) -> None:
    """Has a worker train on a device that no other worker of its host has, if there are as many.

    To be called before the model is made. Worker r takes that of number r, and
    begins again with the first where there are fewer; ranks of a host are to
    follow one another. A choice of its own is left alone (FLAGS_selected_gpus),
    and so is a sparse worker, which has no dense part.
    """
    from hetero_pipe.nn import current_device, take_device  # noqa: PLC0415  # it takes seconds

    kind = current_device().partition(":")[0]
    if flags.stage != "sparse" and f"FLAGS_selected_{kind}s" not in os.environ:
        take_device(flags.worker)


def _servers(text: str) -> list[str]:
    """Returns the addresses of servers, or @FILE alone."""
    return [text] if text.startswith("@") else _names(text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _addresses(text: str) -> list[str]:
    return [_address(name) for name in _names(text)]


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(
            f"an address is HOST:PORT with a port from 1 to 65535, got {text!r}"
        )
    return text
