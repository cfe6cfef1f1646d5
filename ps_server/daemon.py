"""The process of a server: its flags, what it prints, how it ends."""

import argparse
import logging
import math
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import grpc
from google import protobuf

from ps_server.checkpoint import CheckpointError
from ps_server.durable import JOURNAL_LIMIT
from ps_server.journal import JournalError
from ps_server.memory import keep_freed_memory, share_one_heap
from ps_server.server import REJOIN_SECONDS, Server
from ps_server.store import MAX_WORKERS, SnapshotError
from ps_server.table import COMPILER
from ps_server.version import VERSION

__all__ = ["run"]

logger = logging.getLogger(__name__)

# After a signal: the server's grace, and a second for all else. What runs longer is given up.
FORCE_SECONDS = 4.5

# What ends a server beside signals, whose numbers are from 1 to 64.
GOODBYE, LOST = b"\xfe", b"\xff"

DESCRIPTION = """\
A parameter server: holds the embedding tables of a training job and serves them
over gRPC. Start one or more, on one host or several, then name them all to the
trainer: --servers HOST:PORT,HOST:PORT. Tables live in memory until the server
stops; a trainer saves them with its --save. With --durability process they also
come back after a kill: start the server again with the same --data-dir.
"""

EPILOG = """\
examples:
  ps-server                                    listen on 127.0.0.1:7000
  ps-server --listen 127.0.0.1:0               pick a free port and print it
  ps-server --listen 10.0.0.5:7000 --data-dir /var/lib/ps-server
  ps-server --data-dir /var/lib/ps-server --durability process

It prints "listening on HOST:PORT" when it is ready. Ctrl-C or SIGTERM stops it:
requests under way end, the exit code is 0. With --num-workers it stops by itself
when all workers have said goodbye, or with exit code 1 once one was lost and no
other is left. There is no password: listen where only your trainers reach.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ps-server",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:7000",
        type=_address,
        help="address to listen on; port 0 picks a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        type=Path,
        help="this server's own folder, for its journal and checkpoints, and where a checkpoint "
        "that is loaded waits until all of it has arrived; created if missing (default: a "
        "temporary folder, removed at the end)",
    )
    parser.add_argument(
        "--durability",
        choices=["none", "process"],
        default="none",
        help="what a kill leaves of what was answered: none of it, or with process all of it, by a "
        "journal and checkpoints in --data-dir, from which the next start of this server goes on; "
        "they do not outlive a loss of power (default: %(default)s)",
    )
    parser.add_argument(
        "--journal-limit",
        metavar="SIZE",
        type=_size,
        default=JOURNAL_LIMIT,
        help="with --durability process: write a checkpoint when the journal has grown by this "
        "much, such as 512MiB; less makes recovery faster, and the disk busier (default: 1GiB)",
    )
    parser.add_argument(
        "--rejoin-seconds",
        metavar="SECONDS",
        type=_seconds,
        help="how long others wait for a worker whose connection broke to come back, before it is "
        f"lost (default: {REJOIN_SECONDS:g} with --durability process, otherwise 0)",
    )
    parser.add_argument(
        "--num-workers",
        metavar="N",
        type=_count,
        help=f"stop when the N workers of a job, {MAX_WORKERS} at most, have said goodbye "
        "(default: serve one job after another)",
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="how much to say on stderr (default: %(default)s)",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"ps-server {VERSION} (native core by {COMPILER}, grpcio {grpc.__version__}, "
        f"protobuf {protobuf.__version__})",
    )
    return parser


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(
            f"an address is HOST:PORT with a port from 0 to 65535, got {text!r}"
        )
    return text


_SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text)
    if match is None or match[2] not in _SIZES:
        raise argparse.ArgumentTypeError(
            f"a size is a number and {', '.join(_SIZES)}, such as 512MiB, got {text!r}"
        )
    return round(float(match[1]) * _SIZES[match[2]])


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"seconds are a number from 0 on, got {text!r}")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_WORKERS:
        raise argparse.ArgumentTypeError(
            f"a number of workers is from 1 to {MAX_WORKERS}, got {text!r}"
        )
    return int(text)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a server until it is told to stop or its workers have left; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    is_durable = options.durability == "process"
    if is_durable and options.data_dir is None:
        parser.error(
            "--durability process needs a folder that the next start finds again; name it with "
            "--data-dir DIR"
        )
    logging.basicConfig(
        level=options.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    keep_freed_memory()
    share_one_heap()
    endings, tell = _catch_signals()
    on_over = None if options.num_workers is None else partial(_tell_over, tell)
    try:
        with Server(
            options.listen,
            data_dir=options.data_dir,
            num_workers=options.num_workers,
            on_over=on_over,
            journal_limit=options.journal_limit if is_durable else None,
            rejoin_seconds=options.rejoin_seconds,
        ) as server:
            _say(f"listening on {server.address}")
            ending = endings.recv(1)
            logger.info("stopping at %s", _name_of(ending))
            code = 1 if ending == LOST else 0
            force = threading.Timer(FORCE_SECONDS, _end_at_once, [code])
            force.daemon = True
            force.start()
    except (OSError, JournalError, CheckpointError, SnapshotError) as error:
        print(f"ps-server: error: {error}", file=sys.stderr)
        return 1
    force.cancel()
    logger.info("stopped")
    return code


def _catch_signals() -> tuple[socket.socket, socket.socket]:
    """Returns a socket that gives one byte a signal, its number, and one to send it others.

    An Event set by a handler may be missed: a handler runs between any two
    instructions, so also while the Event's lock is held, or just before the
    main thread sleeps.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    teller = writer.dup()
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return reader, teller


def _tell_over(teller: socket.socket, all_said_goodbye: bool) -> None:
    teller.send(GOODBYE if all_said_goodbye else LOST)


def _name_of(ending: bytes) -> str:
    if ending == GOODBYE:
        return "the goodbye of the last worker"
    if ending == LOST:
        return "the loss of a worker, none is left"
    return signal.Signals(ending[0]).name


def _say(line: str) -> None:
    """Prints a line to stdout, if somebody still reads it."""
    try:
        print(line, flush=True)
    except OSError as error:
        logger.warning("%s; stdout is closed: %s", line, error)
        # Otherwise the interpreter fails at its exit, when it flushes what could not be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_at_once(code: int) -> None:
    logger.warning("a request did not end in time, it is given up")
    os._exit(code)
