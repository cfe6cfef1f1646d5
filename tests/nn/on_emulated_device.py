"""What `test_emulated_device.py` runs in a process that has `emulated:0`.

It has 64 MiB, and a copy of a megabyte takes 50 ms, which is read when they are
over. A kernel of a stated time is far longer than what is shown to run beside
it: what is asserted is an order, not a time.
"""

import threading

import emulated
import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812  # as everybody writes it
import pytest
from paddle import nn

import hetero_pipe as hp
from hetero_pipe.nn import (
    Device,
    DeviceTable,
    dense_state,
    load_random_state,
    random_state,
)
from ps_server.spec import TableSpec
from tests.toy import DeepFM, build, read, samples, write_parquet

NAME = "emulated:0"
MEGABYTE = (512, 512)  # of float32


def filled(value, shape=MEGABYTE):
    return np.full(shape, value, np.float32)


def values_of(device, tensors):
    """The values of the tensors, as kernels that are launched now would read them."""
    with device.launching():
        download = device.download(tensors)
    return [array.copy() for array in download.wait()]


def kernel(device, seconds):
    """Launches a kernel and returns the event that it has ended."""
    with device.launching():
        stream = paddle.device.current_stream(NAME)
        emulated.compute(stream, seconds)
        return stream.record_event()


def warm(device, *shapes):
    """Takes memory for an upload of these shapes; the next one then waits for no kernel."""
    upload = device.upload([filled(0, shape) for shape in shapes])
    with device.launching():
        upload.join()
    values_of(device, [])
    upload.give_back()


@pytest.fixture
def device():
    yield Device(NAME)
    paddle.set_device("cpu")


# ------------------------------------------------------------------ arrays there and back


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (1, 1), (0, 4)])
def test_an_array_goes_there_and_comes_back(device, dtype, shape):
    array = (np.arange(np.prod(shape)) % 3).astype(dtype).reshape(shape)
    upload = device.upload([array])
    with device.launching():
        upload.join()
        copies = [upload.to_tensor(array), device.to_tensor(array)]
        assert {str(copy.place) for copy in copies} == {f"Place({NAME})"}
        assert all(copy.stop_gradient for copy in copies)
        np.testing.assert_array_equal(device.to_array(copies[1]), array)
    for found in values_of(device, copies):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype


def test_rows_come_first_and_their_number_is_rounded_up(device):
    shapes = set()
    for number in range(1010, 1040):
        rows = np.random.default_rng(number).normal(size=(number, 4)).astype(np.float32)
        upload = device.upload([], rows=[rows])
        with device.launching():
            upload.join()
            tensor = upload.to_tensor(rows)
        (found,) = values_of(device, [tensor])
        np.testing.assert_array_equal(found[:number], rows)
        shapes.add(found.shape)
        upload.give_back()
    assert shapes == {(1024, 4), (1152, 4)}


def test_an_array_of_no_upload_is_copied_when_it_is_asked_for(device):
    upload, other = device.upload([filled(1, (2, 2))]), filled(2, (3, 3))
    with device.launching():
        tensor = upload.to_tensor(other)
    assert (values_of(device, [tensor])[0] == 2).all()


# ------------------------------------------------------------------ order


def test_a_host_buffer_is_used_again_when_its_copy_has_ended(device):
    """A third upload into two buffers: without the wait, the first one's copy takes its values."""
    warm(device, MEGABYTE)
    arrays = [filled(value) for value in (1, 2, 3)]
    uploads = [device.upload([array]) for array in arrays]
    with device.launching():
        for upload in uploads:
            upload.join()
        tensors = [u.to_tensor(array) for u, array in zip(uploads, arrays, strict=True)]
    for value, found in zip((1, 2, 3), values_of(device, tensors), strict=True):
        np.testing.assert_array_equal(found, filled(value))


def test_an_array_may_be_written_to_once_it_is_uploaded(device):
    array = filled(1)
    upload = device.upload([array])
    array[...] = 2
    with device.launching():
        upload.join()
        tensor = upload.to_tensor(array)
    assert (values_of(device, [tensor])[0] == 1).all()


def test_device_memory_is_another_batchs_once_it_is_given_back(device):
    arrays = [filled(value) for value in (1, 2, 3)]
    first, second = (device.upload([array]) for array in arrays[:2])
    with device.launching():
        first.join()
        second.join()
    assert [
        found.flat[0]
        for found in values_of(device, [first.to_tensor(arrays[0]), second.to_tensor(arrays[1])])
    ] == [1, 2]
    place = first.to_tensor(arrays[0]).data_ptr()
    first.give_back()
    third = device.upload([arrays[2]])
    assert third.to_tensor(arrays[2]).data_ptr() == place
    assert second.to_tensor(arrays[1]).data_ptr() != place


def test_what_is_launched_after_a_join_finds_what_was_uploaded(device):
    """The small array is copied after the large one; read without the join, it is not there."""
    warm(device, MEGABYTE, (8,))
    arrays = [filled(5), filled(6, (8,))]
    upload = device.upload(arrays)
    with device.launching():
        upload.join()
        small = upload.to_tensor(arrays[1])
    assert (values_of(device, [small])[0] == 6).all()


def test_an_upload_goes_in_while_a_kernel_runs(device):
    warm(device, MEGABYTE)
    has_computed = kernel(device, 2.0)
    uploads = [device.upload([filled(value)]) for value in (1, 2, 3)]  # the third waits for one
    assert not has_computed.query()
    values_of(device, [])
    assert len(uploads) == 3
    assert has_computed.query()


def test_new_device_memory_is_written_to_when_kernels_have_ended(device):
    """A kernel that is still to run may read what Paddle gives again."""
    has_computed = kernel(device, 0.3)
    shape = (3, 17)  # of no other test
    uploads = [device.upload([filled(value, shape)]) for value in (1, 2, 3)]
    assert has_computed.query(), "the third upload waits for the first, that for the kernel"
    assert len(uploads) == 3


def test_a_download_comes_after_the_kernels_before_it(device):
    with device.launching():
        tensor = device.to_tensor(filled(1, (4,)))
    has_computed = kernel(device, 0.3)
    with device.launching():
        download = device.download([tensor])
        assert not has_computed.query()
    assert (download.wait()[0] == 1).all()
    assert has_computed.query()


def test_other_threads_run_while_one_waits_for_the_device(device):
    has_computed = kernel(device, 1.0)
    with device.launching():
        download = device.download([])
    began = threading.Event()

    def wait():
        began.set()
        download.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    assert began.wait(10)
    for _ in range(1000):  # Python code of this thread, and turns that it takes
        with device.launching():
            pass
    assert not has_computed.query()
    thread.join()
    assert has_computed.query()


def test_an_upload_takes_turns_with_who_launches(device):
    """Paddle's current stream is the device's: a kernel would go into the stream of copies."""
    upload = threading.Thread(target=device.upload, args=([filled(1)],))
    with device.launching():
        upload.start()
        upload.join(0.2)
        assert upload.is_alive()
    upload.join()
    values_of(device, [])


# ------------------------------------------------------------------ kernels


def numbers(*shape, of=np.float32):
    rng = np.random.default_rng(len(shape))
    return (rng.normal(size=shape) * 8).astype(of)


def with_holes(of):
    array = numbers(7, 5, of=of)
    array[1, 2], array[3, 0], array[4, 4] = np.nan, np.inf, -np.inf
    return array


def entropy_and_gradient(logits, labels):
    """The default loss with all that its backward gives."""
    leaf = logits.detach()
    leaf.stop_gradient = False
    loss = F.binary_cross_entropy_with_logits(leaf, labels)
    loss.backward()
    return [loss.detach(), leaf.grad]


FLOATS, WHOLE, TRUTH = (np.float32, np.float64), (np.int32, np.int64), numbers(6, 4) > 0
KERNELS = [
    ("isfinite", paddle.isfinite, [[with_holes(of)] for of in FLOATS]),
    ("all", paddle.all, [[TRUTH], [TRUTH | True], [TRUTH[:0]]]),
    ("all of an axis", lambda x: paddle.all(x, axis=1, keepdim=True), [[TRUTH | TRUTH[:1]]]),
    ("stack", lambda *x: paddle.stack(list(x)), [[numbers(3), numbers(3) + 1], [TRUTH, ~TRUTH]]),
    ("stack at an axis", lambda *x: paddle.stack(list(x), 1), [[numbers(2, 3), numbers(2, 3)]]),
    ("sigmoid", F.sigmoid, [[numbers(9, of=of)] for of in FLOATS]),
    ("full", lambda: paddle.full([3, 2], 1e-4), [[]]),
    ("zeros", lambda: paddle.zeros([5], "int64"), [[]]),
    ("full_like", lambda x: paddle.full_like(x, 3), [[numbers(4, of=of)] for of in FLOATS + WHOLE]),
    ("assign", lambda x: x.clone(), [[numbers(3, 4, of=of)] for of in FLOATS + WHOLE] + [[TRUTH]]),
    ("cast", lambda x: x.astype("float32"), [[numbers(6, of=of)] for of in (np.float64, *WHOLE)]),
    ("cast to bool", lambda x: x.astype("bool"), [[np.array([0.0, 2.0], np.float32)]]),
    ("scale", lambda x: paddle.scale(x, 3.0, 1.0), [[numbers(6, of=of)] for of in FLOATS + WHOLE]),
    ("entropy", entropy_and_gradient, [[numbers(31), (numbers(31) > 0).astype(np.float32)]]),
]


@pytest.mark.parametrize(
    ("launch", "arrays"),
    [
        pytest.param(launch, arrays, id=f"{name}{[str(a.dtype) for a in arrays]}")
        for name, launch, cases in KERNELS
        for arrays in cases
    ],
)
def test_a_kernel_is_launched_and_computes_what_the_cpus_does(device, launch, arrays):
    with device.launching():
        tensors = [device.to_tensor(array) for array in arrays]
    has_computed = kernel(device, 0.3)
    with device.launching():
        found = launch(*tensors)
        assert not has_computed.query(), "it waits for the kernels before it"
    found = found if isinstance(found, list) else [found]
    assert {str(tensor.place) for tensor in found} == {f"Place({NAME})"}
    found = values_of(device, found)
    paddle.set_device("cpu")
    expected = launch(*(paddle.to_tensor(array) for array in arrays))
    expected = expected if isinstance(expected, list) else [expected]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.numpy().dtype
        np.testing.assert_array_equal(one, other.numpy())


def test_memory_is_freed_when_what_may_write_to_it_has_ended(device):
    has_computed = kernel(device, 0.3)
    with device.launching():
        paddle.full([8 << 20], 1.0)  # 32 MiB, which Paddle keeps
        paddle.framework.core.device_empty_cache()
    assert has_computed.query()


# ------------------------------------------------------------------ training


def trained(name, path, *, staleness=0, mode="bounded"):
    """The loss of each step, probabilities and dense state of a DeepFM that was trained there."""
    paddle.set_device(name)
    try:
        losses = []
        model, optimizer = build(DeepFM)
        workers = hp.WorkersPlan(mode=mode)
        plan = hp.default_plan(model, staleness=staleness, workers=workers)
        assert plan.stage("dense").device == name
        with hp.Trainer(model, optimizer=optimizer, plan=plan) as trainer:
            told = Told(losses)
            trainer.fit(read(path), callbacks=[told])
            probabilities = trainer.predict(read(path))
        assert {str(p.place) for p in model.parameters()} == {f"Place({name})"}
        return np.array(losses), probabilities, dense_state(model, optimizer)
    finally:
        paddle.set_device("cpu")


class Told:
    def __init__(self, losses):
        self.losses = losses

    def on_step(self, report):
        self.losses.append(report.loss)

    def on_epoch(self, epoch, evaluation):
        pass


@pytest.fixture
def path(tmp_path):
    return write_parquet(tmp_path / "t.parquet", samples(400))  # the last batch is a smaller one


def test_a_model_trains_as_on_the_cpu(path):
    losses, probabilities, state = trained(NAME, path)
    expected_losses, expected_probabilities, expected = trained("cpu", path)
    assert len(losses) == 13
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_allclose(probabilities, expected_probabilities, rtol=1e-5)
    assert state.keys() == expected.keys()
    for name, array in state.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-7, err_msg=name)


def test_a_model_trains_while_batches_go_in(path):
    losses, _, _ = trained(NAME, path, staleness=2)
    assert len(losses) == 13
    expected, _, _ = trained("cpu", path, staleness=2)
    np.testing.assert_allclose(losses[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(losses, expected, rtol=0.2)  # what a pull misses differs


class Wide(nn.Layer):
    """Takes the memory of `width` floats a sample."""

    def __init__(self):
        super().__init__()
        self.rows = hp.Embedding(["user"], dim=4)
        self.linear = nn.Linear(4, 1)
        self.width = 1

    def forward(self, batch):
        logits = self.linear(self.rows(batch).flatten(1))
        return logits + paddle.zeros([batch.size, self.width]).sum(axis=1, keepdim=True)


def test_a_step_that_does_not_fit_says_so_and_changes_nothing(path):
    paddle.set_device(NAME)
    try:
        model, optimizer = build(Wide)
        with hp.Trainer(model, optimizer=optimizer) as trainer:
            trainer.fit(read(path), max_steps=2, callbacks=[])
            before = dense_state(model, optimizer)
            model.width = 1 << 20  # 32 samples: 128 MiB
            with pytest.raises(hp.DeviceOutOfMemory, match=f"memory of device {NAME}, got"):
                trainer.fit(read(path), callbacks=[])
            after = dense_state(model, optimizer)
            for name, array in before.items():
                np.testing.assert_array_equal(after[name], array, err_msg=name)
            model.width = 1
            assert trainer.fit(read(path), max_steps=2, callbacks=[]).num_steps == 2
    finally:
        paddle.set_device("cpu")


def test_one_value_that_is_not_finite_is_found(device):
    arrays = [[1, 2], [1, np.nan], [np.inf, 1], [-np.inf, 1]]
    with device.launching():
        tensors = [device.to_tensor(np.array(array, np.float32)) for array in arrays]
        are_finite, of_none = device.are_finite(tensors), device.are_finite([])
    found, none = values_of(device, [are_finite, of_none])
    assert found.tolist() == [True, False, False, False]
    assert none.tolist() == []


def test_a_gradient_that_is_not_finite_is_found_there(path):
    class Exploding(Wide):
        def forward(self, batch):
            logits = super().forward(batch)
            return (
                logits + (self.linear.weight * float("inf")).sum() * 0 if self.width > 1 else logits
            )

    paddle.set_device(NAME)
    try:
        model, optimizer = build(Exploding)
        with hp.Trainer(model, optimizer=optimizer) as trainer:
            trainer.fit(read(path), max_steps=1, callbacks=[])
            before = dense_state(model, optimizer)
            model.width = 2
            with pytest.raises(hp.NonFiniteError, match="nothing of this step was applied"):
                trainer.fit(read(path), callbacks=[])
        after = dense_state(model, optimizer)
        for name, array in before.items():
            np.testing.assert_array_equal(after[name], array, err_msg=name)
    finally:
        paddle.set_device("cpu")


# ------------------------------------------------------------------ tables on the device


@pytest.mark.parametrize("staleness", [0, 2])
def test_gpu_only_trains_as_the_cpu_does(path, staleness):
    losses, probabilities, state = trained(NAME, path, mode="gpu_only", staleness=staleness)
    assert len(losses) == 13
    expected_losses, expected_probabilities, expected = trained("cpu", path)
    rtol = 1e-5 if staleness == 0 else 0.2  # what a pull misses differs
    np.testing.assert_allclose(losses, expected_losses, rtol=rtol)
    if staleness == 0:
        np.testing.assert_allclose(probabilities, expected_probabilities, rtol=1e-4)
        for name, array in state.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-6, err_msg=name)


def test_a_table_on_the_device_is_there(device):
    table = table_on(device, dim=4)
    rows = table.pull(np.arange(10, dtype=np.uint64), insert=True)
    assert str(rows.place) == f"Place({NAME})"
    assert (values_of(device, [rows])[0] == 1).all()


def test_a_table_that_does_not_fit_says_so_and_stays_as_it_was(device):
    """Of 64 MiB, 8192 rows of 4 KiB take 32, beside the old ones and what Paddle keeps."""
    table = table_on(device, dim=1024)
    first = np.arange(3, dtype=np.uint64)
    table.push(first, np.full((3, 1024), 0.25, np.float32), step=1)

    def fill():
        for start in range(0, 1 << 15, 1024):
            table.pull(np.arange(start, start + 1024, dtype=np.uint64), insert=True)

    said = r"table 't' with \d+ rows of 4096 bytes must fit into the memory of device emulated:0, "
    said += r"got .*grows to [\d.]+ MiB for \d+ rows; keep tables on servers"
    with pytest.raises(hp.DeviceOutOfMemory, match=said):
        fill()
    assert table.num_rows % 1024 == 0
    assert table.num_rows >= 1024
    assert (values_of(device, [table.pull(first, insert=True)])[0] == 0.75).all()


def table_on(device, *, dim):
    spec = TableSpec("t", dim, hp.SGD(1.0), hp.Constant(1.0))
    return DeviceTable(
        spec, device, first_weights=lambda keys: np.ones((len(keys), dim), np.float32)
    )


# ------------------------------------------------------------------ the device itself


def test_its_generator_is_saved_and_set(device):
    paddle.seed(4)
    with device.launching():
        state = random_state()
        drawn = [paddle.rand([9]).tolist() for _ in range(2)]
        assert set(state) == {"cpu", NAME}
        load_random_state(state)
        assert [paddle.rand([9]).tolist() for _ in range(2)] == drawn


@pytest.mark.parametrize("name", ["emulated:7", "nothing:0"])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(hp.ConfigError, match=f"got '{name}'.*this Paddle has cpu, emulated"):
        Device(name)
