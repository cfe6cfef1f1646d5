"""`hetero-pipe`: one command, its parts as sub-commands."""

import argparse
import logging
import platform
import sys
from collections.abc import Sequence

from hetero_pipe.cli import launch, plan, profile, scale, simulate, status, worker
from hetero_pipe.errors import HeteroPipeError
from ps_server.version import VERSION

__all__ = ["main"]

DESCRIPTION = """\
Runs training jobs of several processes: parameter servers (ps-server), which
hold the embedding tables, and workers, which are all one Python script that
ends in hp.launch.run(main). Measures the hosts they are to run on,
plans what runs where, and simulates what a plan would do there.
"""

EPILOG = """\
On one host, `hetero-pipe launch` starts everything. On several, start ps-server
and `hetero-pipe worker` by hand on each, or use Paddle's launcher:
  python -m paddle.distributed.launch --server_num 2 --trainer_num 2 SCRIPT ...
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="hetero-pipe: %(message)s", stream=sys.stderr)
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    try:
        code: int = options.run(options, given)
    except HeteroPipeError as error:
        print(f"hetero-pipe: error: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hetero-pipe",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"hetero-pipe {VERSION} (Python {platform.python_version()})",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    launch.add_to(commands)
    status.add_to(commands)
    scale.add_to(commands)
    worker.add_to(commands)
    profile.add_to(commands)
    plan.add_to(commands)
    simulate.add_to(commands)
    return parser
