"""What the C library does with memory that is freed, and where threads take theirs from."""

import ctypes
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ps_server import _native

__all__ = ["bytes_of_reused_blocks", "keep_freed_memory", "reuse_blocks", "share_one_heap"]

logger = logging.getLogger(__name__)

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

# Bytes. The most that glibc takes: a block above it is the system's, and goes back at once.
_LARGEST_KEPT = 32 << 20
# Bytes free at the end of a heap. A thread's heap is 64 MiB at most, so it keeps all.
_KEPT_AT_END = 64 << 20

_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_PRELOAD = "LD_PRELOAD"
_HEAP_SETTINGS = ("MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Makes this process keep blocks up to 32 MiB that it frees, and returns whether it does.

    A request is some megabytes, made and freed in each of its layers. glibc gives
    such blocks back to the system and asks for them anew, and the system clears
    every page of them again: half of the CPU time of a pull and a push of 22,900
    rows. So it is with the batches of a trainer. In turn the process stays as large as
    its requests have made it once. Rows are not concerned, they have memory of their own.

    Whoever sets glibc's own variables has decided. Without glibc nothing changes.
    """
    kept = _set(_SETTINGS, {_M_MMAP_THRESHOLD: _LARGEST_KEPT, _M_TRIM_THRESHOLD: _KEPT_AT_END})
    logger.debug("freed memory is %s", "kept" if kept else "given back")
    return kept


def share_one_heap() -> bool:
    """Makes all threads of this process share one heap, and returns whether they do.

    glibc gives threads heaps of their own, 8 for each core, and each stays as large as
    its threads have made it once. A batch goes through a dozen threads, so that a
    process kept what it uses a dozen times: 275 of the 439 MiB that a DLRM job took, more
    or less by which thread did what when. Threads wait for one heap no longer than
    for many: their blocks are large and few (benchmarks/cost_error, 2 cores).

    It is for threads that start later. Whoever sets glibc's own variables has
    decided. Without glibc nothing changes.
    """
    is_shared = _set(_HEAP_SETTINGS, {_M_ARENA_MAX: 1})
    logger.debug("threads have %s", "one heap" if is_shared else "heaps as the C library has them")
    return is_shared


def reuse_blocks(folder: Path) -> bool:
    """Has a package's libraries keep their large blocks by size, and returns whether they do.

    Paddle asks for a tensor's memory as a block that begins at a page, and frees it when the
    tensor is gone, some hundred times a step. A heap keeps holes between such blocks, more or
    less by which thread did what when: of one job, a worker took 244 to 304 MiB, and
    takes 107 to 109 with blocks that are kept by size, in no more time (benchmarks/cost_error).

    To be called once the package is imported, and before other threads use it. What it keeps is
    twice what was in use at one time, at most. Whoever preloads a library (another
    allocator), or sets variables of glibc's, has decided. Elsewhere than on Linux nothing changes.

    Args:
        folder: Below which the libraries are, loaded already.
    """
    if any(name in os.environ for name in (_PRELOAD, *_SETTINGS)):
        return False
    num_libraries = _native.reuse_blocks(f"{folder}{os.sep}")
    logger.debug("%d libraries of %s keep their blocks by size", num_libraries, folder)
    return num_libraries > 0


def bytes_of_reused_blocks() -> int:
    """Returns the bytes that `reuse_blocks` has of the system's, in use or kept."""
    return _native.bytes_of_reused_blocks()


def _set(names: Sequence[str], options: Mapping[int, int]) -> bool:
    """Sets options of glibc's malloc unless one of its variables is set; returns whether it did."""
    if any(name in os.environ for name in names):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all([mallopt(option, value) for option, value in options.items()])
