"""Arrays become tensors and back without a copy; MKL's flag is set where it helps."""

import gc
import os
import subprocess
import sys
import weakref

import numpy as np
import paddle
import pytest

from hetero_pipe.data import aligned_empty
from hetero_pipe.nn import Device, current_device

CPU = Device("cpu")


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float64, np.int32])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (1, 1), (2, 3, 4)])
def test_a_tensor_is_the_arrays_memory(dtype, shape):
    array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    tensor = CPU.to_tensor(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.shape == list(shape)
    assert tensor.stop_gradient
    np.testing.assert_array_equal(tensor.numpy(), array)
    array[...] = 9  # shared, not copied
    assert (tensor.numpy() == 9).all()


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
def test_an_array_without_elements_becomes_a_tensor_without(shape):
    assert CPU.to_tensor(np.empty(shape, np.float32)).shape == list(shape)


def test_a_read_only_array_is_taken():
    array = np.frombuffer(np.arange(4, dtype=np.float32).tobytes(), np.float32)
    assert not array.flags.writeable
    assert CPU.to_tensor(array).tolist() == [0, 1, 2, 3]


def test_a_strided_array_keeps_its_values():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert CPU.to_tensor(array[:, ::2]).tolist() == array[:, ::2].tolist()
    assert CPU.to_tensor(array.T).tolist() == array.T.tolist()


def test_a_tensor_keeps_its_array_alive():
    array = np.full(1 << 16, 3, np.float32)
    alive = weakref.ref(array)
    tensor = CPU.to_tensor(array)
    pointer = tensor.data_ptr()
    del array
    gc.collect()
    assert alive() is not None
    others = [np.full(1 << 16, 7, np.float32) for _ in range(8)]  # would take freed memory
    assert tensor.data_ptr() == pointer
    assert (tensor.numpy() == 3).all()
    assert len(others) == 8
    del tensor
    gc.collect()
    assert alive() is None


def test_a_view_of_an_array_is_kept_alive_too():
    tensor = CPU.to_tensor(np.full((64, 1024), 3, np.float32)[8:16])
    gc.collect()
    others = [np.full((64, 1024), 7, np.float32) for _ in range(8)]
    assert (tensor.numpy() == 3).all()
    assert len(others) == 8


def test_an_array_is_the_tensors_memory_and_outlives_it():
    tensor = paddle.full([1 << 16], 3.0)
    tensor.stop_gradient = False
    array = CPU.to_array(tensor)
    assert array.ctypes.data == tensor.data_ptr()
    del tensor
    gc.collect()
    others = [paddle.full([1 << 16], 7.0) for _ in range(8)]
    assert (array == 3).all()
    assert len(others) == 8


def test_a_gradient_outlives_the_leaf_and_its_array():
    rows = aligned_empty((4, 2), np.float32)
    rows[...] = 1
    leaf = CPU.to_tensor(rows)
    leaf.stop_gradient = False
    (leaf * 5).sum().backward()
    gradient = CPU.to_array(leaf.grad)
    assert gradient.ctypes.data == leaf.grad.data_ptr()
    del leaf, rows
    gc.collect()
    assert (gradient == 5).all()


def test_an_aligned_array_gives_the_bits_of_paddles_own():
    """The reason for 64 bytes: a matmul of an array elsewhere may differ in the last bit."""
    rng = np.random.default_rng(0)
    weight = paddle.to_tensor(rng.normal(size=(37, 19)).astype(np.float32))
    array = aligned_empty((53, 37), np.float32)
    array[...] = rng.normal(size=array.shape)
    assert array.ctypes.data % 64 == 0
    mine, paddles = CPU.to_tensor(array) @ weight, paddle.to_tensor(array) @ weight
    np.testing.assert_array_equal(mine.numpy(), paddles.numpy())


def test_the_current_device_is_a_name_of_paddles():
    assert current_device() == paddle.get_device() == "cpu"


def test_enter_sets_the_device_of_the_thread():
    CPU.enter()
    assert paddle.get_device() == "cpu"


# ------------------------------------------------------------------ settings of the process

SHOW = """
import logging, os, pathlib, sys
read = pathlib.Path.read_text
def cpuinfo(self, *arguments, **options):
    if str(self) != "/proc/cpuinfo":
        return read(self, *arguments, **options)
    if not sys.argv[1]:
        raise OSError("no /proc here")
    return f"vendor_id : {sys.argv[1]}"
pathlib.Path.read_text = cpuinfo
logging.basicConfig(level=logging.INFO, format="%(message)s", force=True, stream=sys.stdout)
from hetero_pipe.nn import say_settings
logging.basicConfig(level=logging.INFO, format="%(message)s", force=True, stream=sys.stdout)
say_settings()
print(os.environ.get("MKL_DEBUG_CPU_TYPE"), os.environ.get("OMP_NUM_THREADS"))
"""


def settings(*arguments, **environment):
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("MKL_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", SHOW, *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


SAID = "AMD CPU: set MKL_DEBUG_CPU_TYPE=5, twice the speed; set it to 0 yourself to be off"


def test_on_an_amd_cpu_mkl_takes_its_fast_path_and_says_so():
    assert settings("AuthenticAMD") == [SAID, "5 1"]


def test_on_another_cpu_nothing_is_set_and_a_number_of_openmp_threads_stays():
    assert settings("GenuineIntel", OMP_NUM_THREADS="2") == ["None 2"]


def test_whoever_sets_the_flag_has_decided():
    assert settings("AuthenticAMD", MKL_DEBUG_CPU_TYPE="0") == ["0 1"]


@pytest.mark.slow
def test_without_proc_nothing_is_set():
    assert settings("") == ["None 1"]
