"""The first and the last line of a script that may be any process of a job."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from hetero_pipe.errors import HeteroPipeError, ServerUnavailable, WorkerLost
from hetero_pipe.launch.paddle import ServerRole, WorkerRole, read_role

__all__ = ["begin", "run"]

# Paddle's launcher looks at its processes once a second, and takes up to 0.6 s to end each of those
# before ours.
STOPPED_SECONDS = 10.0

INTERRUPTED = 128 + signal.SIGINT


def begin() -> None:
    """Is called before a script's other imports, which take seconds.

    Ctrl-C ends them at once. A process that Paddle's launcher started as a
    server serves here and does not return: it needs neither Paddle nor the rest
    of the script. From here on, SIGTERM of that launcher is exit code 0.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _start(_role_or_exit())


def run(main: Callable[[list[str]], int | None]) -> NoReturn:
    """Calls a script's `main` with its arguments and exits; its last line.

    The arguments are those of the command line. Started as a trainer by Paddle's
    launcher, they end in `--servers`, `--worker`, `--num-workers` and
    `--coordinator`, as that launcher's environment says; started as a server,
    the process serves instead, until every worker has said goodbye.

    The exit code is what `main` returns (None is 0) or raises by SystemExit; 1
    after a HeteroPipeError, whose message goes to stderr; 130 after Ctrl-C.
    """
    role = _role_or_exit()
    _start(role)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = role.arguments() if isinstance(role, WorkerRole) else []
    try:
        code = main([*sys.argv[1:], *arguments])
    except HeteroPipeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        if isinstance(role, WorkerRole) and _is_of_another(error):
            # The launcher ends with the first code, in its own order, that is not 0. Ours would
            # hide the code of the process that failed: so it is left to stop us, with code 0.
            threading.Event().wait(STOPPED_SECONDS)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    sys.exit(code)


def _role_or_exit() -> ServerRole | WorkerRole | None:
    try:
        return read_role(os.environ)
    except HeteroPipeError as error:
        sys.exit(f"error: {error}")


def _start(role: ServerRole | WorkerRole | None) -> None:
    if role is not None:
        signal.signal(signal.SIGTERM, _exit_at_once)
    if isinstance(role, ServerRole):
        # Not before SIGTERM is caught: it imports gRPC, which takes a third of a second.
        from ps_server.cli import main as serve  # noqa: PLC0415

        sys.exit(serve(role.arguments()))


def _exit_at_once(*_: Any) -> None:  # a signal and a frame
    os._exit(0)


def _is_of_another(error: BaseException | None) -> bool:
    """Whether an error says that another process of the job is gone."""
    while error is not None:
        if isinstance(error, (WorkerLost, ServerUnavailable)):
            return True
        error = error.__cause__
    return False
