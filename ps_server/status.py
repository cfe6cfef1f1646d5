"""Statuses: what a caller is told of an exception of a server."""

import functools
import logging
from collections.abc import Callable
from typing import TypeVar

import grpc

from ps_server.moves import MoveError
from ps_server.store import (
    FreezeError,
    NotLogged,
    RouteMismatch,
    SnapshotError,
    SpecMismatch,
    Stopping,
    TableNotFound,
    WorkerLost,
)

__all__ = ["STATUS_OF", "abort", "unary"]

logger = logging.getLogger(__name__)

# Bytes. A status travels in an HTTP/2 header; one that outgrows the peer's limit loses its code.
MAX_DETAILS = 2000

STATUS_OF: dict[type[Exception], grpc.StatusCode] = {
    TableNotFound: grpc.StatusCode.NOT_FOUND,
    SpecMismatch: grpc.StatusCode.ALREADY_EXISTS,
    RouteMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    SnapshotError: grpc.StatusCode.DATA_LOSS,
    ValueError: grpc.StatusCode.INVALID_ARGUMENT,
    MemoryError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NotLogged: grpc.StatusCode.RESOURCE_EXHAUSTED,
    WorkerLost: grpc.StatusCode.ABORTED,
    MoveError: grpc.StatusCode.OUT_OF_RANGE,
    FreezeError: grpc.StatusCode.OUT_OF_RANGE,
    Stopping: grpc.StatusCode.UNAVAILABLE,
}
"""What a worker is told of an exception; any other is INTERNAL and logged here."""

Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Reply = TypeVar("Reply")


def abort(context: grpc.ServicerContext, error: Exception) -> None:
    """Ends a call by the status of an exception."""
    code = next((code for kind, code in STATUS_OF.items() if isinstance(error, kind)), None)
    if code is None:
        code = grpc.StatusCode.INTERNAL
        if context.is_active():
            logger.exception("a request failed")
        else:  # its caller gave up or died, or this server stops: nobody hears the status
            logger.info("a request was given up")
    details = (str(error) or type(error).__name__).encode()[:MAX_DETAILS]
    context.abort(code, details.decode(errors="ignore"))


def unary(
    method: Callable[[Servicer, Request], Reply],
) -> Callable[[Servicer, Request, grpc.ServicerContext], Reply]:
    """Turns the exceptions of a method into gRPC statuses."""

    @functools.wraps(method)
    def call(self: Servicer, request: Request, context: grpc.ServicerContext) -> Reply:
        try:
            return method(self, request)
        except Exception as error:  # the boundary: each becomes a status
            abort(context, error)
            raise

    return call
