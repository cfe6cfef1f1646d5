"""`hetero-pipe launch`: a whole job on this host."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_pipe.errors import ConfigError
from hetero_pipe.launch import LocalJob, add_arguments, run_local_job
from hetero_pipe.plan import WorkersPlan

__all__ = ["add_to"]

DESCRIPTION = """\
Starts parameter servers and workers on this host, on free ports of 127.0.0.1,
and waits for the workers. Each is told what it is by flags after the script's
own. Their lines come out with a name in front.
"""

EPILOG = """\
examples:
  hetero-pipe launch train.py --mode sync              2 servers, 2 whole workers
  hetero-pipe launch --sparse 2 --dense 1 train.py     2 that read and pull feed 1
  hetero-pipe launch --servers 0 --workers 1 train.py  one process

The exit code is 0 if every worker's was; otherwise that of the first process
that failed, not of one that failed because of it (75), and the others are
stopped. Ctrl-C reaches the workers, which finish
the steps under way; a second one gives them 6 seconds. No process outlives the
command, not even one that is killed with -9.
"""


def add_to(commands: Any) -> None:  # argparse's sub-parsers, whose class is private
    """Adds the sub-command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "launch",
        help="start a job's servers and workers on this host",
        usage="hetero-pipe launch [options] SCRIPT [ARGUMENT ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--servers", metavar="N", type=int, default=2, help="0: tables in the worker; default: 2")
    add("--workers", metavar="N", type=int, help="whole ones, which do everything; default: 2")
    add("--sparse", metavar="N", type=int, help="workers that read, pull and push")
    add("--dense", metavar="N", type=int, help="workers that do the dense part of sparse ones")
    add("--log-dir", metavar="DIR", type=Path, help="write each process's lines to a file, too")
    add("script", metavar="SCRIPT", help="ends in hp.launch.run(main)")
    rest = add("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="the script's own")
    rest.required = False  # or it is called missing beside SCRIPT
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, _: Sequence[str]) -> int:
    if (options.sparse is None) != (options.dense is None):
        missing = "sparse" if options.sparse is None else "dense"
        raise ConfigError(
            f"sparse workers feed dense ones, got no {missing} worker; add --{missing} N, or start "
            "whole ones with --workers N"
        )
    if options.sparse is not None and options.workers is not None:
        raise ConfigError(
            f"workers are whole, or sparse and dense, got --workers {options.workers} beside "
            f"--sparse {options.sparse}; leave one out"
        )
    if options.dense is not None and options.dense < 1:
        raise ConfigError(f"sparse workers need a dense one, got --dense {options.dense}")
    whole = 2 if options.workers is None else options.workers
    job = LocalJob(
        command=(options.script, *options.arguments),
        num_servers=options.servers,
        num_readers=whole if options.sparse is None else options.sparse,
        num_dense=options.dense or 0,
        log_dir=options.log_dir,
    )
    if job.num_servers == 0 and job.num_readers + job.num_dense > 1:
        _check_own_tables(job, options.arguments)
    return run_local_job(job)


def _check_own_tables(job: LocalJob, arguments: Sequence[str]) -> None:
    """Refuses workers without servers that, by the script's flags, share their tables there."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_arguments(parser)
    try:
        flags, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError:  # the script says what is wrong with them
        return
    if not WorkersPlan(mode=flags.mode).has_own_tables:
        raise ConfigError(
            f"several workers share their tables on parameter servers, got {job.num_servers} "
            f"servers for {job.num_readers + job.num_dense} workers in mode {flags.mode}; leave "
            "--servers out, start one worker (--workers 1), or let each worker hold the tables: "
            "--mode cpu_only behind the script"
        )
