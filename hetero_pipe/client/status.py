"""What a server's refusal is called on this side: where foreign errors are translated, once."""

import grpc

from hetero_pipe.errors import (
    CheckpointError,
    HeteroPipeError,
    RouteMismatch,
    ServerError,
    ServerUnavailable,
    SpecMismatch,
    TableNotFound,
    WorkerLost,
)
from ps_server import store

ERROR_OF: dict[grpc.StatusCode, type[HeteroPipeError]] = {
    grpc.StatusCode.OK: ServerError,
    grpc.StatusCode.CANCELLED: ServerUnavailable,
    grpc.StatusCode.UNKNOWN: ServerError,
    grpc.StatusCode.INVALID_ARGUMENT: ServerError,
    grpc.StatusCode.DEADLINE_EXCEEDED: ServerUnavailable,
    grpc.StatusCode.NOT_FOUND: TableNotFound,
    grpc.StatusCode.ALREADY_EXISTS: SpecMismatch,
    grpc.StatusCode.PERMISSION_DENIED: ServerError,
    grpc.StatusCode.UNAUTHENTICATED: ServerError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ServerError,
    grpc.StatusCode.FAILED_PRECONDITION: RouteMismatch,
    grpc.StatusCode.ABORTED: WorkerLost,
    grpc.StatusCode.OUT_OF_RANGE: ServerError,
    grpc.StatusCode.UNIMPLEMENTED: ServerError,
    grpc.StatusCode.INTERNAL: ServerError,
    grpc.StatusCode.UNAVAILABLE: ServerUnavailable,
    grpc.StatusCode.DATA_LOSS: CheckpointError,
}
"""Every status code, by the error that it becomes."""

_ERROR_OF_STORE: dict[type[Exception], type[HeteroPipeError]] = {
    store.TableNotFound: TableNotFound,
    store.SpecMismatch: SpecMismatch,
    store.RouteMismatch: RouteMismatch,
    store.SnapshotError: CheckpointError,
    store.WorkerLost: WorkerLost,
    store.Stopping: ServerUnavailable,
}


def translate_status(error: grpc.RpcError, address: str) -> HeteroPipeError:
    """Returns our error for a failed call to the server at `address`."""
    code, details = error.code(), error.details() or ""
    kind = ERROR_OF[code]
    if kind is ServerUnavailable:
        return kind(
            f"server {address} must be reachable, got {code.name}: {details}; start it with: "
            f"ps-server --listen {address}; if it was lost, so are its rows: go on from a "
            "checkpoint, with fresh=True (--fresh) and load (--load)"
        )
    if kind is ServerError:
        return kind(f"server {address} failed with {code.name}: {details}")
    return kind(f"{details} (server {address})")


def is_passing(error: HeteroPipeError) -> bool:
    """Whether the same call may succeed later: the server is away, or has no room just now."""
    return isinstance(error, ServerUnavailable) or is_full(error)


def is_full(error: HeteroPipeError) -> bool:
    """Whether a server is there but has no room, on its disk or in its memory."""
    return _code(error) is grpc.StatusCode.RESOURCE_EXHAUSTED


def reason_of(error: HeteroPipeError) -> str:
    """Returns what a call failed of, without what to do about it: `CODE: details`."""
    code, cause = _code(error), error.__cause__
    if code is None or not isinstance(cause, grpc.RpcError):
        return str(error)
    return f"{code.name}: {cause.details() or 'no details'}"


def _code(error: HeteroPipeError) -> grpc.StatusCode | None:
    cause = error.__cause__
    return cause.code() if isinstance(cause, grpc.RpcError) else None


def translate_store_error(error: Exception, address: str) -> HeteroPipeError:
    """Returns our error for what a store in this process raised."""
    return _ERROR_OF_STORE.get(type(error), ServerError)(f"{error} (server {address})")
