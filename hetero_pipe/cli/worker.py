"""`hetero-pipe worker`: a script as one worker of a job, started by hand."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_pipe.errors import ConfigError
from hetero_pipe.launch import add_arguments, worker, workers_plan

__all__ = ["add_to"]

DESCRIPTION = """\
Runs a script as one worker of a job that spans hosts. Start the ps-servers and
each worker by hand; the flags of the job are the same everywhere.
"""

EPILOG = """\
example, two hosts, 10.0.0.1 with servers and sparse workers, 10.0.0.2 with a device:
  JOB="--servers 10.0.0.1:7000 --num-workers 2 --dense-workers 10.0.0.2:7100 \\
       --coordinator 10.0.0.1:7200"
  10.0.0.1$ ps-server --listen 10.0.0.1:7000 --num-workers 2
  10.0.0.1$ hetero-pipe worker $JOB --stage sparse --worker 0 train.py --epochs 3
  10.0.0.1$ hetero-pipe worker $JOB --stage sparse --worker 1 train.py --epochs 3
  10.0.0.2$ hetero-pipe worker $JOB --stage dense --worker 0 train.py --epochs 3

The coordinator is a free port of worker 0's host (of the first sparse worker's,
if there are sparse ones); nobody listens there before the job does.
"""


def add_to(commands: Any) -> None:  # argparse's sub-parsers, whose class is private
    """Adds the sub-command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "worker",
        help="run a script as one worker of a job on several hosts",
        usage="hetero-pipe worker [options] SCRIPT [ARGUMENT ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    add = parser.add_argument
    add("script", metavar="SCRIPT", help="ends in hp.launch.run(main)")
    rest = add("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="the script's own")
    rest.required = False  # or it is called missing beside SCRIPT
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, given: Sequence[str]) -> int:
    """Becomes the script; the flags in front of it follow its own arguments."""
    which = worker(options)
    workers = workers_plan(options)
    needs_servers = workers.num_processes > 1 and not workers.has_own_tables
    if needs_servers and not options.servers:
        raise ConfigError(
            f"{which.stage} worker {which.rank} shares its tables on parameter servers, got none; "
            "start ps-server and name it (--servers HOST:PORT,...)"
        )
    if not Path(options.script).is_file():
        raise ConfigError(f"a worker runs a script, got no file {options.script!r}")
    flags = given[1 : len(given) - 1 - len(options.arguments)]
    flags = flags[:-1] if flags[-1:] == ["--"] else flags
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, options.script, *options.arguments, *flags])
