"""Builds the emulated device, and drives what Paddle has no name for.

A process sees the device if its environment has what `environment` returns
when Paddle is imported; `paddle.set_device("emulated:0")` then works.
"""

import ctypes
import functools
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

NAME = "libemulated.so"
FOLDER = Path(__file__).parent


def build(folder: Path = FOLDER / "build") -> Path:
    """Compiles the plugin into a folder, unless what is there is newer than its sources.

    Needs g++ and the headers of the installed Paddle, which is not imported.

    Returns:
        The folder, for CUSTOM_DEVICE_ROOT.

    Raises:
        FileNotFoundError: There is no g++, or no Paddle that has custom devices.
        subprocess.CalledProcessError: The sources do not compile.
    """
    wheel = Path(sysconfig.get_path("purelib")) / "paddle"
    if not (wheel / "include/paddle/phi/backends/device_ext.h").exists():
        raise FileNotFoundError(f"device_ext.h comes with a Paddle wheel, got none in {wheel}")
    library = folder / NAME
    sources = sorted(FOLDER.glob("*.cc"))
    inputs = [*sources, *FOLDER.glob("*.h")]
    if library.exists() and library.stat().st_mtime > max(p.stat().st_mtime for p in inputs):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror"]
    # As Paddle's config.h has them; that cannot be included, it asks for headers of oneDNN which
    # the wheel does not have. No class that is used here has another layout for want of them.
    flags += ["-DPADDLE_WITH_CUSTOM_DEVICE", "-DPADDLE_WITH_CUSTOM_KERNEL"]
    flags += ["-isystem", str(wheel / "include"), f"-L{wheel / 'libs'}"]
    libraries = ["-l:libphi_core.so", "-l:libcommon.so"]  # Paddle has loaded them by then
    made = folder / f"{NAME}.{os.getpid()}"  # others may be building, or loading what is there
    subprocess.run(["g++", *flags, *sources, *libraries, "-o", made], check=True)
    made.replace(library)
    return folder


def environment(
    folder: Path,
    *,
    memory: float = 1 << 30,
    bandwidth: float = 12e9,
    peer_bandwidth: float = 12e9,
    num_devices: int = 1,
) -> dict[str, str]:
    """Returns what the environment of a process has that sees the device.

    Args:
        folder: As `build` returned it.
        memory: Bytes of a device.
        bandwidth: Bytes a second, each way between host and device.
        peer_bandwidth: Bytes a second, each way between a device and those of other processes.
        num_devices: `emulated:0`, `emulated:1`, ...
    """
    return {
        "CUSTOM_DEVICE_ROOT": str(folder),
        "EMULATED_MEMORY": str(memory),
        "EMULATED_BANDWIDTH": str(bandwidth),
        "EMULATED_PEER_BANDWIDTH": str(peer_bandwidth),
        "EMULATED_DEVICES": str(num_devices),
        # A view with strides is made contiguous by a kernel that has no fallback (3.3.1).
        "FLAGS_use_stride_kernel": "0",
    }


def compute(stream: Any, seconds: float, *, folder: Path = FOLDER / "build") -> None:
    """Has a stream of the device, a `paddle.device.Stream`, compute nothing for a stated time.

    Returns at once, as the launch of a kernel does.
    """
    base = stream.stream_base
    _launch(folder)(base.place.get_device_id(), base.raw_stream, seconds)


@functools.cache
def _launch(folder: Path) -> Any:
    launch = ctypes.CDLL(str(folder / NAME)).emulated_compute
    launch.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_double]
    return launch


if __name__ == "__main__":
    print(build(*map(Path, sys.argv[1:])))
