"""`hetero-pipe scale`: more or fewer servers of a job that trains."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_pipe.client import BucketsMoved, ScaleStep
from hetero_pipe.errors import ConfigError
from hetero_pipe.launch import find_job, scale_job
from hetero_pipe.plan import RETRY_SECONDS
from hetero_pipe.units import format_seconds

__all__ = ["add_to"]

DESCRIPTION = """\
Brings a supervised job, which `hetero-pipe launch JOB.toml` runs, to another number
of parameter servers while it trains. New servers start, then rows move, some
buckets of keys at a time; servers that own nothing any more leave in the end. Workers
go on, and wait for milliseconds where rows move just now.

Ctrl-C ends it between two calls; training goes on as it is by then, and the same
command goes on from there. The number is kept when the job is started again.
"""

EPILOG = """\
examples:
  hetero-pipe scale --servers 3            the only job of this folder
  hetero-pipe scale --servers 2 runs/3     back again
  hetero-pipe status runs/3                what runs
"""


def add_to(commands: Any) -> None:  # argparse's sub-parsers, whose class is private
    """Adds the sub-command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "scale",
        help="change the number of servers of a job while it trains",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--servers", metavar="N", type=int, required=True, help="how many there shall be")
    add(
        "--retry-seconds",
        metavar="S",
        type=float,
        default=RETRY_SECONDS,
        help="to wait for a server that is away; default: %(default)g",
    )
    add("--json", action="store_true", help="print one JSON object of what moved")
    add("dir", metavar="DIR", type=Path, nargs="?", default=Path(), help="the job's folder")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, _: Sequence[str]) -> int:
    if options.servers < 1:
        raise ConfigError(f"a job has at least 1 server, got --servers {options.servers}")
    folder = find_job(options.dir)
    progress = _Progress()
    try:
        done = scale_job(
            folder,
            options.servers,
            retry_seconds=options.retry_seconds,
            on_step=progress.show,
        )
    except KeyboardInterrupt:
        progress.end()
        print("hetero-pipe: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    progress.end()
    print(json.dumps(_described(done, options.servers)) if options.json else _text(done, options))
    return 0


class _Progress:
    """Says how far it is: on one line of a terminal, otherwise each tenth."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._tenth = 0
        self._is_open = False

    def show(self, step: ScaleStep) -> None:
        total = step.num_done + step.num_left
        text = (
            f"hetero-pipe: {step.num_done} of {total} buckets have moved, the last from "
            f"{step.source} to {step.target}, held {format_seconds(step.hold_seconds)}"
        )
        if self._is_terminal:
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
            self._is_open = True
        elif (tenth := 10 * step.num_done // total) > self._tenth:
            self._tenth = tenth
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_open:
            print(file=sys.stderr)


def _described(done: BucketsMoved, num_servers: int) -> dict[str, object]:
    return {
        "servers": num_servers,
        "buckets": done.num_buckets,
        "seconds": done.seconds,
        "longest_hold_seconds": done.longest_hold,
        "failures": done.num_failures,
    }


def _text(done: BucketsMoved, options: argparse.Namespace) -> str:
    return (
        f"{options.servers} servers; {done.num_buckets} of 4096 buckets moved in "
        f"{format_seconds(done.seconds)}, pushes were held for "
        f"{format_seconds(done.longest_hold)} at most"
    )
