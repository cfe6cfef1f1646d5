"""Failure: why a worker cannot go on, as it reaches the others."""

import os
import socket
import traceback
from dataclasses import dataclass

from hetero_pipe import errors
from hetero_pipe.errors import HeteroPipeError, StageError, WorkerLost
from hetero_pipe.pipeline.wire import stage_pb2

__all__ = ["Failure", "worker_name"]


def worker_name(stage: str, rank: int) -> str:
    """Returns what messages call this process: stage, rank, host and process id."""
    return f"{stage} worker {rank} ({socket.gethostname()}:{os.getpid()})"


class _Elsewhere(Exception):
    """The cause of an error that another worker had; prints that worker's traceback."""

    def __init__(self, failure: "Failure") -> None:
        super().__init__(f"in {failure.worker}:\n\n{failure.traceback}")
        self.failure = failure


@dataclass(frozen=True)
class Failure:
    """Why a worker cannot go on.

    Attributes:
        worker: Whose failure it is, as `worker_name` has it.
        stage: Where it was.
        step: It was at, of that worker.
        error: Name of the exception's class.
        message: Of the exception.
        traceback: As Python prints it.
    """

    worker: str
    stage: str
    step: int
    error: str
    message: str
    traceback: str

    @staticmethod
    def of(error: BaseException, *, worker: str, stage: str, step: int) -> "Failure":
        """Returns the failure of an exception; of one that came from elsewhere, that one's."""
        if isinstance(error.__cause__, _Elsewhere):
            return error.__cause__.failure
        text = "".join(traceback.format_exception(error))
        return Failure(worker, stage, step, type(error).__name__, str(error), text)

    def to_error(self) -> HeteroPipeError:
        """Returns what is raised where it arrives.

        It is of the class that it has where it happened, if that is one of
        ours. The traceback of that place is its cause.
        """
        where = f"{self.worker} failed in stage {self.stage} at step {self.step}"
        kind = getattr(errors, self.error, None)
        found: HeteroPipeError
        if self.error == "KeyboardInterrupt":
            found = WorkerLost(f"{self.worker} was interrupted at step {self.step}")
        elif self.error == "WorkerLost":
            found = WorkerLost(self.message)
        elif self.error == "StageError":  # whose message says where
            found = StageError(f"{self.worker} failed: {self.message}")
        elif isinstance(kind, type) and issubclass(kind, HeteroPipeError):
            found = kind(f"{where}: {self.message or self.error}")
        else:
            found = StageError(f"{where}: {self.error}: {self.message}")
        found.__cause__ = _Elsewhere(self)
        found.is_of_another = True
        return found

    def to_message(self) -> stage_pb2.Failure:
        """Returns its message."""
        return stage_pb2.Failure(**vars(self))

    @staticmethod
    def from_message(message: stage_pb2.Failure) -> "Failure":
        """Returns the failure of a message."""
        return Failure(
            message.worker,
            message.stage,
            message.step,
            message.error,
            message.message,
            message.traceback,
        )
