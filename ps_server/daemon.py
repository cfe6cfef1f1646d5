"""The process of a server: its flags, what it prints, how it ends."""

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import grpc
from google import protobuf

from ps_server.memory import keep_freed_memory
from ps_server.server import Server
from ps_server.table import COMPILER
from ps_server.version import VERSION

__all__ = ["run"]

logger = logging.getLogger(__name__)

# After a signal: the server's grace, and a second for all else. What runs longer is given up.
FORCE_SECONDS = 4.5

DESCRIPTION = """\
A parameter server: holds the embedding tables of a training job and serves them
over gRPC. Start one or more, on one host or several, then name them all to the
trainer: --servers HOST:PORT,HOST:PORT. Tables live in memory until the server
stops; a trainer saves them with its --save.
"""

EPILOG = """\
examples:
  ps-server                                    listen on 127.0.0.1:7000
  ps-server --listen 127.0.0.1:0               pick a free port and print it
  ps-server --listen 10.0.0.5:7000 --data-dir /var/lib/ps-server

It prints "listening on HOST:PORT" when it is ready. Ctrl-C or SIGTERM stops it:
requests under way end, the exit code is 0. There is no password: listen where
only your trainers reach.
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
        help="this server's own folder, where a checkpoint that is loaded waits until all of it "
        "has arrived; created if missing (default: a temporary folder, removed at the end)",
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


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a server until SIGTERM or Ctrl-C; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    keep_freed_memory()
    signals = _catch_signals()
    force = threading.Timer(FORCE_SECONDS, _end_at_once)
    force.daemon = True
    try:
        with Server(options.listen, data_dir=options.data_dir) as server:
            _say(f"listening on {server.address}")
            logger.info("stopping at %s", signal.Signals(signals.recv(1)[0]).name)
            force.start()
    except OSError as error:
        print(f"ps-server: error: {error}", file=sys.stderr)
        return 1
    force.cancel()
    logger.info("stopped")
    return 0


def _catch_signals() -> socket.socket:
    """Returns a socket that gives one byte a signal, its number.

    An Event set by a handler may be missed: a handler runs between any two
    instructions, so also while the Event's lock is held, or just before the
    main thread sleeps.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return reader


def _say(line: str) -> None:
    """Prints a line to stdout, if somebody still reads it."""
    try:
        print(line, flush=True)
    except OSError as error:
        logger.warning("%s; stdout is closed: %s", line, error)
        # Otherwise the interpreter fails at its exit, when it flushes what could not be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_at_once() -> None:
    logger.warning("a request did not end in time, it is given up")
    os._exit(0)
