"""What the C library does with memory that is freed."""

import ctypes
import logging
import os

__all__ = ["keep_freed_memory"]

logger = logging.getLogger(__name__)

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

# Bytes. The most that glibc takes: a block above it is the system's, and goes back at once.
_LARGEST_KEPT = 32 << 20
# Bytes free at the end of a heap. A thread's heap is 64 MiB at most, so it keeps all.
_KEPT_AT_END = 64 << 20

_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Makes this process keep blocks up to 32 MiB that it frees, and returns whether it does.

    A request is some megabytes, made and freed in each of its layers. glibc gives
    such blocks back to the system and asks for them anew, and the system clears
    every page of them again: half of the CPU time of a pull and a push of 22,900
    rows. In turn the process stays as large as its requests have made it once.
    Rows are not concerned, they have memory of their own.

    Whoever sets glibc's own variables has decided. Without glibc nothing changes.
    """
    if any(name in os.environ for name in _SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    kept = mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_M_TRIM_THRESHOLD, _KEPT_AT_END)
    logger.debug("freed memory is %s", "kept" if kept else "given back")
    return bool(kept)
