"""What a process must have about it before Paddle computes in it; set when this is imported."""

import logging
import os
import sys
import zlib
from pathlib import Path

# Before Paddle is imported: two OpenMP threads beside busy pipeline threads spin against each
# other, 3 to 15 times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import paddle

from hetero_pipe.errors import ConfigError
from ps_server.memory import keep_freed_memory, reuse_blocks, share_one_heap

__all__ = ["say_settings"]

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

# A batch is made, trained and freed again and again: a step takes 3 to 17% longer if the system
# clears its pages anew each time.
keep_freed_memory()
share_one_heap()
reuse_blocks(Path(paddle.__file__).parent)


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
