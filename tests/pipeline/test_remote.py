"""A sparse and a dense worker's streams: batches go, results come, and nobody waits for ever."""

import threading
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from hetero_pipe.data import Batch, Cut
from hetero_pipe.errors import (
    ConfigError,
    DataError,
    NonFiniteError,
    PlanError,
    StageError,
    WorkerLost,
)
from hetero_pipe.pipeline import Closed, CutBatch, CutResult, Failure, StageHost, StageLink

JOB = {"mode": "bounded", "table rows": "dim 3"}


def host_of(*, num_sparse=1, capacity=2, job=JOB, listen="127.0.0.1:0", wire="float32"):
    return StageHost(
        listen,
        worker="dense worker 0 (there:7)",
        job=job,
        num_sparse=num_sparse,
        capacity=capacity,
        wire=wire,
    )


def link_to(address, *, rank=0, job=JOB, connect_timeout=10.0, wire="float32"):
    return StageLink(
        address,
        dense_rank=0,
        rank=rank,
        worker=f"sparse worker {rank} (here:{rank})",
        job=job,
        wire=wire,
        connect_timeout=connect_timeout,
    )


@contextmanager
def connected(number=1, **options):
    """Yields a host and `number` links to it."""
    with ExitStack() as stack:
        host = stack.enter_context(host_of(num_sparse=number, **options))
        links = [stack.enter_context(link_to(host.address, rank=rank)) for rank in range(number)]
        host.wait_for_all(10)
        yield host, links


def batch_of(step, *, size=3, is_training=True, label=True):
    rng = np.random.default_rng(step)
    samples = Batch(
        bags={},
        dense=rng.normal(size=(size, 2)).astype(np.float32),
        label=rng.integers(0, 2, size).astype(np.float32) if label else None,
        dense_names=("price", "age"),
    )
    offsets = np.arange(size + 1)
    cuts = {
        "rows": Cut(rng.normal(size=(size, 2, 4)).astype(np.float32)),
        "rows.unpooled(seen)": Cut(rng.normal(size=(size, 4)).astype(np.float32), offsets),
    }
    return CutBatch(step, is_training, samples, cuts)


class TooShort(CutBatch):
    """Its dense columns lack their last value on the wire."""

    def write(self, message, wire):
        super().write(message, wire)
        message.dense = message.dense[:-4]


def result_of(batch, *, loss=0.5):
    gradients = {name: 2 * cut.values for name, cut in batch.cuts.items()}
    return CutResult(batch.step, loss, batch.samples.dense[:, 0], gradients)


def failure(error="NonFiniteError", message="a gradient is NaN"):
    return Failure("dense worker 0 (there:7)", "dense", 4, error, message, "Traceback: line 1\n")


def test_a_batch_goes_and_its_result_comes_back_bit_for_bit():
    with connected() as (host, [link]):
        sent = batch_of(7)
        link.send(sent)
        rank, got = host.take()
        assert (rank, got.step, got.is_training) == (0, 7, True)
        np.testing.assert_array_equal(got.samples.dense, sent.samples.dense)
        np.testing.assert_array_equal(got.samples.label, sent.samples.label)
        assert got.samples.dense_names == ("price", "age")
        assert got.cuts.keys() == sent.cuts.keys()
        for name, cut in sent.cuts.items():
            np.testing.assert_array_equal(got.cuts[name].values, cut.values)
            assert (got.cuts[name].offsets is None) == (cut.offsets is None)
            assert got.cuts[name].values.ctypes.data % 64 == 0
        host.answer(rank, result_of(got, loss=0.1))
        result = link.receive(7)
        assert result.loss == 0.1
        np.testing.assert_array_equal(result.probabilities, sent.samples.dense[:, 0])
        np.testing.assert_array_equal(result.gradients["rows"], 2 * sent.cuts["rows"].values)
        assert result.gradients["rows"].ctypes.data % 64 == 0


def test_a_batch_without_labels_stays_so():
    with connected() as (host, [link]):
        link.send(batch_of(0, is_training=False, label=False))
        _, got = host.take()
        assert got.samples.label is None
        assert not got.is_training


def test_a_sender_waits_until_its_batch_is_taken():
    with connected(capacity=2) as (host, [link]):
        sent = []

        def send():
            for step in range(5):
                link.send(batch_of(step))
                sent.append(step)

        thread = threading.Thread(target=send)
        thread.start()
        for step in range(5):
            _, got = host.take()
            assert got.step == step
            # Two wait here, and one more credit was given for each that was taken.
            assert len(sent) <= 2 + step + 1
        thread.join(10)
        assert sent == [0, 1, 2, 3, 4]


def test_a_sender_without_credit_gives_up_when_told():
    with connected(capacity=1) as (_, [link]):
        link.send(batch_of(0))
        is_given_up, raised = threading.Event(), []

        def wait(work):
            try:
                work()
            except Closed:
                raised.append(Closed)

        works = [
            lambda: link.send(batch_of(1), is_given_up=is_given_up.is_set),
            lambda: link.receive(0, is_given_up=is_given_up.is_set),
        ]
        threads = [threading.Thread(target=wait, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        is_given_up.set()
        link.wake()
        for thread in threads:
            thread.join(10)
        assert raised == [Closed, Closed]


def test_the_end_of_a_call_is_that_of_every_sparse_worker():
    with connected(2) as (host, links):
        links[0].end("fit")
        links[1].send(batch_of(0))
        links[1].end("fit")
        assert host.take()[0] == 1
        assert host.take() == "fit"


def test_a_script_that_ends_is_the_end_of_a_call_too():
    with connected() as (host, [link]):
        link.__exit__(None, None, None)
        assert host.take() == "its script"


# ------------------------------------------------------------------ who is refused


def test_a_worker_of_another_job_is_refused_and_told_what_differs():
    with (
        host_of() as host,
        pytest.raises(PlanError, match=r"dim 4 there and dim 3 here.*same script") as refused,
        link_to(host.address, job={**JOB, "table rows": "dim 4"}),
    ):
        pass
    assert "mode" not in str(refused.value)


def test_a_rank_is_connected_once_and_one_of_the_plan():
    with connected() as (host, _):
        for rank, said in ((0, "each sparse worker once"), (1, "fed by 1 sparse workers")):
            with pytest.raises(PlanError, match=said), link_to(host.address, rank=rank):
                pass


def test_a_missing_dense_worker_is_named(free_address):
    with (
        pytest.raises(WorkerLost, match=f"dense worker 0 at {free_address}.*--stage dense"),
        link_to(free_address, connect_timeout=0.05),
    ):
        pass


def test_a_missing_sparse_worker_is_named():
    said = r"none of rank 1 within .*--stage sparse --worker 1"
    with (
        host_of(num_sparse=2) as host,
        link_to(host.address, rank=0),
        pytest.raises(WorkerLost, match=said),
    ):
        host.wait_for_all(0.05)


def test_an_address_in_use_is_a_clear_error():
    with (
        host_of() as host,
        pytest.raises(ConfigError, match=f"must listen on {host.address}, which is in use"),
        host_of(listen=host.address),
    ):
        pass


# ------------------------------------------------------------------ failures


def test_a_failure_of_the_dense_worker_reaches_every_sparse_worker_with_its_traceback():
    with connected(2) as (host, links):
        try:
            raise NonFiniteError("a gradient is NaN")
        except NonFiniteError as error:
            host.fail(Failure.of(error, worker="dense worker 0 (there:7)", stage="dense", step=4))
        for link in links:
            with pytest.raises(NonFiniteError) as caught:
                link.receive(0)
            said = "dense worker 0 (there:7) failed in stage dense at step 4: a gradient is NaN"
            assert str(caught.value) == said
            assert "in test_a_failure_of_the_dense" in str(caught.value.__cause__)
            with pytest.raises(NonFiniteError):
                link.send(batch_of(0))


def test_results_before_a_failure_still_come():
    with connected() as (host, [link]):
        link.send(batch_of(0))
        rank, got = host.take()
        host.answer(rank, result_of(got))
        host.fail(failure())
        with pytest.raises(NonFiniteError):
            link.receive(1)
        assert link.receive(0).step == 0


def test_a_failure_of_a_sparse_worker_reaches_the_dense_and_the_other_sparse_ones():
    with connected(2) as (host, links):
        error = DataError("t.csv:7: a bad line")
        links[0].fail(Failure.of(error, worker="sparse worker 0 (a:1)", stage="sparse", step=9))
        said = r"sparse worker 0 \(a:1\) failed in stage sparse at step 9: t.csv:7: a bad line"
        with pytest.raises(DataError, match=said):
            host.take()
        with pytest.raises(DataError, match=said):
            links[1].receive(0)


def test_a_failure_that_is_passed_on_stays_the_first_ones():
    original = failure()
    passed_on = Failure.of(original.to_error(), worker="sparse worker 3", stage="sparse", step=8)
    assert passed_on == original


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        ("ZeroDivisionError", StageError, "at step 4: ZeroDivisionError: a gradient is NaN"),
        ("KeyboardInterrupt", WorkerLost, "was interrupted at step 4"),
        ("WorkerLost", WorkerLost, "^a gradient is NaN$"),
        ("__all__", StageError, "__all__"),
    ],
)
def test_an_error_arrives_as_one_of_ours(error, kind, said):
    with pytest.raises(kind, match=said):
        raise failure(error).to_error()


def test_a_sparse_worker_whose_stream_breaks_is_lost():
    with connected(2) as (host, links):
        links[0]._channel.close()  # no goodbye
        said = r"sparse worker 0 \(here:0\) is gone: its stream to dense worker 0 \(there:7\) broke"
        with pytest.raises(WorkerLost, match=said):
            host.take()
        with pytest.raises(WorkerLost, match=said):
            links[1].receive(0)


def test_a_dense_worker_that_leaves_is_told_from_one_that_is_lost():
    with host_of() as host, link_to(host.address) as link:
        host.__exit__(None, None, None)
        with pytest.raises(WorkerLost, match=r"\(there:7\) has closed its trainer; all workers"):
            link.receive(0)


def test_a_batch_that_does_not_fit_its_sizes_is_everybodys_error():
    with connected() as (host, [link]):
        link.send(TooShort(0, True, batch_of(0).samples, {}))
        with pytest.raises(StageError, match="reshape"):
            host.take()
        with pytest.raises(StageError, match="reshape"):
            link.receive(0)
