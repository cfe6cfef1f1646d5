"""`hetero-pipe launch`: a whole job on this host, once or supervised."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hetero_pipe.errors import ConfigError
from hetero_pipe.launch import (
    DURABILITIES,
    Job,
    LocalJob,
    load_job,
    run_local_job,
    supervise,
)
from hetero_pipe.plan import WorkersPlan

__all__ = ["add_to"]

JOB_FLAGS = ("dir", "durability", "restarts")

DESCRIPTION = """\
Starts parameter servers and workers on this host, on free ports of 127.0.0.1,
and waits for the workers. Each is told what it is by flags after the script's
own. Their lines come out with a name in front.

Of a script, a process that fails ends the job. Of a job file, JOB.toml, what dies
is started again: a server with its data, workers together from their checkpoint.
In mode elastic a worker that fails is alone in that, and the others go on.
"""

EPILOG = """\
examples:
  hetero-pipe launch train.py --mode sync              2 servers, 2 whole workers
  hetero-pipe launch --sparse 2 --dense 1 train.py     2 that read and pull feed 1
  hetero-pipe launch --servers 0 --workers 1 train.py  one process
  hetero-pipe launch job.toml                          what docs/operations.md says of it
  hetero-pipe launch --dir runs/3 job.toml --lr 0.01   flags override the file

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
        usage="hetero-pipe launch [options] SCRIPT|JOB.toml [ARGUMENT ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--servers", metavar="N", type=int, help="0: tables in the worker; default: 2")
    add("--workers", metavar="N", type=int, help="whole ones, which do everything; default: 2")
    add("--sparse", metavar="N", type=int, help="workers that read, pull and push")
    add("--dense", metavar="N", type=int, help="workers that do the dense part of sparse ones")
    add("--log-dir", metavar="DIR", type=Path, help="write each process's lines to a file, too")
    add("--dir", metavar="DIR", type=Path, help="of a job file: the job's folder")
    add("--durability", choices=DURABILITIES, help="of a job file: of its servers")
    add("--restarts", metavar="N", type=int, help="of a job file: of a server, of all workers")
    add("script", metavar="SCRIPT", help="ends in hp.launch.run(main); or a job file")
    rest = add("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="the script's own")
    rest.required = False  # or it is called missing beside SCRIPT
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, _: Sequence[str]) -> int:
    _check_workers(options)
    if options.script.endswith(".toml"):
        job = _changed(load_job(Path(options.script)), options)
        _check_own_tables(job.processes)
        return supervise(job)
    given = [name for name in JOB_FLAGS if getattr(options, name) is not None]
    if given:
        raise ConfigError(
            f"--{given[0]} is of a job that is supervised, got the script {options.script!r}; "
            "describe the job in a file, and launch that (docs/operations.md)"
        )
    whole = 2 if options.workers is None else options.workers
    processes = LocalJob(
        command=(options.script, *options.arguments),
        num_servers=2 if options.servers is None else options.servers,
        num_readers=whole if options.sparse is None else options.sparse,
        num_dense=options.dense or 0,
        log_dir=options.log_dir,
    )
    _check_own_tables(processes)
    return run_local_job(processes)


def _check_workers(options: argparse.Namespace) -> None:
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


def _changed(job: Job, options: argparse.Namespace) -> Job:
    """Returns the job of a file as the flags would have it."""
    processes = replace(
        job.processes,
        command=(*job.processes.command, *options.arguments),
        log_dir=options.log_dir,
    )
    if options.servers is not None:
        processes = replace(processes, num_servers=options.servers)
    if options.sparse is not None:
        processes = replace(processes, num_readers=options.sparse, num_dense=options.dense)
    elif options.workers is not None:
        processes = replace(processes, num_readers=options.workers, num_dense=0)
    if options.restarts is not None:
        job = replace(
            job,
            server_restarts=replace(job.server_restarts, limit=options.restarts),
            worker_restarts=replace(job.worker_restarts, limit=options.restarts),
        )
    return replace(
        job,
        processes=processes,
        folder=job.folder if options.dir is None else options.dir.absolute(),
        durability=options.durability or job.durability,
    )


def _check_own_tables(job: LocalJob) -> None:
    """Refuses workers without servers that, by the script's flags, share their tables there."""
    if job.num_servers > 0 or job.num_readers + job.num_dense == 1:
        return
    if not WorkersPlan(mode=job.mode).has_own_tables:
        raise ConfigError(
            f"several workers share their tables on parameter servers, got {job.num_servers} "
            f"servers for {job.num_readers + job.num_dense} workers in mode {job.mode}; leave "
            "--servers out, start one worker (--workers 1), or let each worker hold the tables: "
            "--mode cpu_only behind the script"
        )
