"""The first and the last line of a script that may be any process of a job."""

import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from hetero_pipe.errors import HeteroPipeError, ServerUnavailable, StageError
from hetero_pipe.launch.arguments import mode_of
from hetero_pipe.launch.paddle import ServerRole, WorkerRole, read_role
from hetero_pipe.plan import WorkersPlan
from ps_server.cli import main as serve  # light: it catches signals before it loads the rest

__all__ = ["FOLLOWED", "begin", "run"]

# Paddle's launcher looks at its processes once a second, and takes up to 0.6 s to end each.
STOPPED_SECONDS = 10.0

# Servers start beside their workers, and a machine may be busy.
START_SECONDS = 20.0
WATCH_SECONDS = 0.2

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM

# Of one that failed because another process had: sysexits.h's EX_TEMPFAIL, start it once more.
FOLLOWED = 75

AWAIT_SIGTERM = "await-sigterm"  # the thread's name, by which `run` finds it


def begin() -> None:
    """Is called before a script's other imports, which take seconds.

    Ctrl-C ends them at once. A process that Paddle's launcher started as a
    server serves here and does not return: it needs neither Paddle nor the rest
    of the script. From here on, SIGTERM of that launcher is exit code 0; of
    others, it ends the imports as 143. It is blocked until `run`, also in what is
    started before: start processes in `main`.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    role = _role_or_exit()
    _start(role)
    _await_sigterm(0 if role is not None else TERMINATED)


def run(main: Callable[[list[str]], int | None]) -> NoReturn:
    """Calls a script's `main` with its arguments and exits; its last line.

    The arguments are those of the command line. Started as a trainer by Paddle's
    launcher, they end in `--servers`, `--worker`, `--num-workers` and
    `--coordinator`, as that launcher's environment says; started as a server,
    the process serves instead, until every worker has said goodbye.

    The exit code is what `main` returns (None is 0) or raises by SystemExit, also
    in a stage; 1 after a HeteroPipeError, whose message goes to stderr, below the
    traceback of what a stage failed of if it is no error of ours; 75 if it failed
    because another process of the job had; 130 after Ctrl-C.
    """
    role = _role_or_exit()
    # Paddle's import put a handler below Python's, which prints 15 lines of a fatal error.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    _start(role)
    _end_await_sigterm()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    starting = _watch_start(role) if isinstance(role, WorkerRole) else None
    code = _call(main, role)
    if isinstance(role, WorkerRole) and starting is not None and not code:
        starting.join(START_SECONDS)
        _say_goodbye(role)
    _exit(code, role)


def _role_or_exit() -> ServerRole | WorkerRole | None:
    try:
        return read_role(os.environ)
    except HeteroPipeError as error:
        sys.exit(f"error: {error}")


def _start(role: ServerRole | WorkerRole | None) -> None:
    if isinstance(role, WorkerRole):
        signal.signal(signal.SIGTERM, _exit_at_once)
    elif isinstance(role, ServerRole):
        code = serve(role.arguments())
        if code:  # perhaps because workers were lost
            _wait_to_be_stopped()
        _exit(code, role)


def _await_sigterm(code: int) -> None:
    """Starts a thread that ends the process with `code` at SIGTERM, until `run` does otherwise.

    In the middle of Paddle's import, its handler replaces Python's, and prints a fatal
    error. A signal that is blocked and waited for reaches no handler.
    """

    def wait() -> None:
        if signal.sigwait(waited) == signal.SIGTERM:
            os._exit(code)

    waited = {signal.SIGTERM, signal.SIGUSR1}  # the latter ends the wait
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)  # which the thread has of this one
    threading.Thread(target=wait, name=AWAIT_SIGTERM, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, {*before, signal.SIGTERM})


def _end_await_sigterm() -> None:
    """Gives SIGTERM back to its handler; one that came in between reaches it now."""
    for thread in threading.enumerate():
        if thread.name == AWAIT_SIGTERM:
            assert thread.ident is not None, "it runs"
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
            thread.join()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _call(
    main: Callable[[list[str]], int | None], role: ServerRole | WorkerRole | None
) -> int | str | None:
    """Returns the exit code of `main`, as `sys.exit` takes it."""
    arguments = role.arguments() if isinstance(role, WorkerRole) else []
    if isinstance(role, WorkerRole) and WorkersPlan(mode=mode_of(sys.argv[1:])).is_elastic:
        # Its servers wait for the goodbye of each worker, and it ends all when one dies.
        return (
            "error: mode elastic needs servers and workers that start and end by themselves, got "
            "Paddle's launcher; use hetero-pipe launch, or start the processes"
        )
    try:
        return main([*sys.argv[1:], *arguments])
    except SystemExit as exiting:
        return exiting.code
    except HeteroPipeError as error:
        cause = error.__cause__
        if type(error) is StageError and cause and not isinstance(cause, HeteroPipeError):
            traceback.print_exception(cause)  # where in a model it was
        print(f"error: {error}", file=sys.stderr, flush=True)
        if not _is_of_another(error):
            return 1
        if role is not None:
            _wait_to_be_stopped()
        return FOLLOWED
    except KeyboardInterrupt as interrupt:
        print(f"interrupted: {interrupt}" if str(interrupt) else "interrupted", file=sys.stderr)
        return INTERRUPTED


def _exit_at_once(*_: Any) -> None:  # a signal and a frame
    os._exit(0)


def _exit(code: int | str | None, role: ServerRole | WorkerRole | None) -> NoReturn:
    if role is not None:
        # That launcher sends SIGTERM up to three times. While Python ends, a signal that had a
        # handler is the end, with another code; one that is ignored stays so.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)


def _wait_to_be_stopped() -> None:
    """Leaves it to Paddle's launcher to stop a process that failed because another did.

    It ends with the first code that is not 0 in its own order of processes, servers
    first. Ours would hide that of the process which failed.
    """
    signal.signal(signal.SIGTERM, _exit_at_once)
    threading.Event().wait(STOPPED_SECONDS)


def _is_of_another(error: BaseException | None) -> bool:
    """Whether an error says that another process of the job is gone, or failed first."""
    while error is not None:
        if isinstance(error, ServerUnavailable):
            return True
        if isinstance(error, HeteroPipeError) and error.is_of_another:
            return True
        error = error.__cause__
    return False


def _watch_start(role: WorkerRole) -> threading.Thread:
    """Returns a thread that ends once every server has listened.

    A script may end before they do. One that does not listen then is still to come, and
    will wait for a goodbye; one that did and no longer does has left.
    """

    def watch() -> None:
        for server in role.servers:
            while not _listens(server):
                time.sleep(WATCH_SECONDS)

    thread = threading.Thread(target=watch, name="watch-start", daemon=True)
    thread.start()
    return thread


def _say_goodbye(role: WorkerRole) -> None:
    """Says it for a script that has left them alone: the servers wait for it.

    That is one that printed its --help, or trained in a mode without servers. One that
    trained on them has said it already: they have left or refuse.
    """
    from hetero_pipe.client import Client  # noqa: PLC0415  # takes long, and `begin` comes first

    if all(_listens(server) for server in role.servers):
        logging.disable()  # that a server is just leaving is no news
        with suppress(HeteroPipeError), Client(role.servers, connect_timeout=5.0) as client:
            client.join(rank=role.rank, num_workers=role.num_workers)
            client.goodbye()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True
