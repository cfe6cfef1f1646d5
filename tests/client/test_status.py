"""Every gRPC status becomes an error of ours."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from hetero_pipe.client import ERROR_OF
from hetero_pipe.client.status import translate_status, translate_store_error
from hetero_pipe.errors import HeteroPipeError, ServerUnavailable
from ps_server import store
from ps_server.status import STATUS_OF

FAILURES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


class _Failing(grpc.GenericRpcHandler):
    """Answers a call of `/fails/CODE` with that code: what no server of ours can be made to do."""

    def service(self, details):
        code = grpc.StatusCode[details.method.rpartition("/")[2]]
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: context.abort(code, "the details")
        )


@pytest.fixture
def channel():
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads, handlers=[_Failing()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
        server.stop(None).wait()


def test_every_status_code_is_mapped():
    assert set(ERROR_OF) == set(grpc.StatusCode)
    assert all(issubclass(kind, HeteroPipeError) for kind in ERROR_OF.values())


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code.name)
def test_a_failed_call_names_server_and_details(channel, code):
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(f"/fails/{code.name}")(b"")
    error = translate_status(raised.value, "host:7000")
    assert type(error) is ERROR_OF[code]
    assert "host:7000" in str(error)
    assert "the details" in str(error)
    assert ("ps-server --listen host:7000" in str(error)) == (type(error) is ServerUnavailable)


@pytest.mark.parametrize(
    "kind",
    [
        store.TableNotFound,
        store.SpecMismatch,
        store.RouteMismatch,
        store.SnapshotError,
        store.WorkerLost,
        store.Stopping,
        store.FreezeError,
    ],
)
def test_a_store_in_this_process_and_one_behind_grpc_fail_alike(kind):
    assert type(translate_store_error(kind("x"), "embedded")) is ERROR_OF[STATUS_OF[kind]]
