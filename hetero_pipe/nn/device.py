"""All that differs between devices: settings, copies in, copies out."""

import logging
import os
import sys
import zlib
from pathlib import Path
from typing import Any

# Before Paddle is imported: two OpenMP threads beside busy pipeline threads spin against each
# other, 3 to 15 times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.errors import ConfigError

__all__ = ["Device", "current_device", "say_settings"]

logger = logging.getLogger(__name__)

MKL_FLAG = "MKL_DEBUG_CPU_TYPE"


def _speed_up_amd() -> bool:
    """Turns on MKL's fast path on AMD CPUs and returns whether it did.

    The MKL in Paddle's wheel takes a slow path on CPUs that are not Intel's
    (PaddlePaddle/Paddle#75760): 36 against 97 GFLOP/s a core. The flag is read
    at the first matmul; whoever sets it in the environment has decided.
    """
    if MKL_FLAG in os.environ:
        return False
    try:
        is_amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        is_amd = False
    if is_amd:
        os.environ[MKL_FLAG] = "5"
    return is_amd


_SPED_UP = _speed_up_amd()


def _check_import_order() -> None:
    """Refuses a process in which the next decompression would crash.

    The library of Paddle 2.6 exports a zlib of its own, for the whole process.
    A system's zlib that is loaded after it is bound to parts of that one and
    reads foreign memory; grpcio decompresses when it is imported. `hetero_pipe`
    imports zlib, so it comes first. A zlib without a file is within Python.
    """
    order = list(sys.modules)
    is_exporting = paddle.__version__.startswith("2.") and hasattr(zlib, "__file__")
    if is_exporting and order.index("paddle.base.libpaddle") < order.index("zlib"):
        raise ConfigError(
            f"PaddlePaddle {paddle.__version__} must be imported after hetero_pipe, got it before, "
            "which would crash zlib; write `import hetero_pipe as hp` above `import paddle`"
        )


_check_import_order()


def say_settings() -> None:
    """Logs what this module changed in the process's settings."""
    if _SPED_UP:
        logger.info("AMD CPU: set %s=5, twice the speed; set it to 0 yourself to be off", MKL_FLAG)


class Device:
    """Where dense work runs, and how arrays get there and back.

    Args:
        name: As Paddle names it: `cpu`, `gpu:0`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._is_cpu = name == "cpu"

    def enter(self) -> None:
        """Makes this the device of the calling thread."""
        paddle.set_device(self.name)

    def to_tensor(self, array: NDArray[Any]) -> paddle.Tensor:
        """Returns a tensor of an array, without gradient.

        On the CPU it shares the array's memory: nobody may write to the array
        while the tensor lives. The array should start at a multiple of 64
        bytes, or Paddle's matmul changes by bits.
        """
        if not self._is_cpu:
            return paddle.to_tensor(array, place=self.name)
        # Paddle 2.6 has no `from_dlpack`; this takes as long and both versions have it.
        tensor = paddle.Tensor(value=array, place=paddle.CPUPlace(), zero_copy=True)
        tensor.stop_gradient = True
        return tensor

    def to_array(self, tensor: paddle.Tensor) -> NDArray[Any]:
        """Returns the elements of a tensor; on the CPU they share the tensor's memory."""
        if not self._is_cpu or not hasattr(tensor, "__dlpack_device__"):
            return np.asarray(tensor.detach().numpy())
        return np.from_dlpack(tensor.detach())


def current_device() -> str:
    """Returns the device that Paddle would use now."""
    name: str = paddle.get_device()
    return name
