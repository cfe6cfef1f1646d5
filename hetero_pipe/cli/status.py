"""`hetero-pipe status`: what runs of a job that is supervised."""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hetero_pipe.launch import JobStatus, ProcessStatus, job_status

__all__ = ["add_to"]

DESCRIPTION = """\
Asks the supervisor of a job, which `hetero-pipe launch JOB.toml` is, what runs: each
process with its id, where it listens, since when it is as it is, and how often it
was started again. The exit code is 1 if no supervisor runs.
"""


def add_to(commands: Any) -> None:  # argparse's sub-parsers, whose class is private
    """Adds the sub-command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "status",
        help="show what runs of a supervised job",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object; times are seconds since 1970")
    add("dir", metavar="DIR", type=Path, help="the job's folder")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, _: Sequence[str]) -> int:
    status = job_status(options.dir)
    print(json.dumps(asdict(status)) if options.json else _text(status))
    return 0


def _text(status: JobStatus) -> str:
    state = "is ending" if status.is_ending else "runs"
    head = f"job {status.name} {state}, pid {status.pid}, since {_at(status.since)}"
    return "\n".join([head, *map(_line, status.processes)])


def _line(process: ProcessStatus) -> str:
    pid = "" if process.pid is None else f"pid {process.pid}"
    return (
        f"{process.name:10} {process.state:9} {pid:12} {process.address or '':22} "
        f"since {_at(process.since)}, restarts {process.restarts}"
    )


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
