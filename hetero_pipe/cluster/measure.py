"""Measures what a host does without Paddle and without servers: memory, processes, disk."""

import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hetero_pipe.cluster import echo
from hetero_pipe.cluster.rate import Rate, Spread
from hetero_pipe.cluster.sample import Sampling, sample_times
from hetero_pipe.errors import ConfigError
from hetero_pipe.units import MiB

__all__ = ["profile_disk", "profile_memory", "profile_shared_memory"]


def _rates(times: Sequence[float], amount: float) -> Spread:
    return Spread.of([amount / seconds for seconds in times])


def profile_memory(host: str, sampling: Sampling) -> Iterator[Rate]:
    """Yields rates `copy`: bytes copied a second by one thread, of blocks of some sizes."""
    for size in (MiB, 64 * MiB):
        source = np.ones(size, np.uint8)
        target = np.empty_like(source)
        times = sample_times(partial(np.copyto, target, source), sampling)
        yield Rate("copy", host, _rates(times, size), size=size)


def profile_shared_memory(host: str, sampling: Sampling) -> Iterator[Rate]:
    """Yields `shm_call` and `shm_byte`: what a message through shared memory costs.

    A call is a word to another process over a pipe and one back. A byte is
    copied into memory that both see, and out of it.
    """
    size = 8 * MiB
    source = np.ones(size, np.uint8)
    descriptor = os.memfd_create("hetero-pipe-profile")
    try:
        os.ftruncate(descriptor, size)
        with mmap.mmap(descriptor, size) as memory:
            command = [sys.executable, "-IS", echo.__file__, str(descriptor), str(size)]
            with subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
                start_new_session=True,  # a Ctrl-C is ours: the child ends with its stdin
                bufsize=0,
            ) as child:
                assert child.stdin is not None
                assert child.stdout is not None
                words, answers = child.stdin, child.stdout

                def call(num_bytes: int) -> None:
                    memory[:num_bytes] = source[:num_bytes].data
                    words.write(num_bytes.to_bytes(8, "little"))
                    if not answers.read(1):
                        raise ConfigError("the process that shares memory has ended")

                calls = sample_times(partial(call, 0), sampling)
                full = sample_times(partial(call, size), sampling)
                words.close()
    finally:
        os.close(descriptor)
    yield Rate("shm_call", host, Spread.of(calls))
    base = Spread.of(calls).median
    per_byte = [max(seconds - base, 1e-9) / size for seconds in full]
    yield Rate("shm_byte", host, Spread.of(per_byte), size=size)


def profile_disk(host: str, folder: Path, sampling: Sampling) -> Iterator[Rate]:
    """Yields `disk_write`, to the disk itself, and `disk_read`, not from memory, of one file.

    Reading asks the kernel to forget the file first. Where it does not (a
    filesystem in memory, a container's overlay) the rate is that of memory.

    Raises:
        ConfigError: Nothing can be written to the folder.
    """
    size = (16 if sampling.is_quick else 256) * MiB
    block = np.random.default_rng(0).bytes(MiB)
    few = Sampling(min(sampling.num_samples, 5), 1e-9)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".hetero-pipe-") as file:
            descriptor = file.fileno()

            def write() -> None:
                os.lseek(descriptor, 0, os.SEEK_SET)
                for _ in range(size // MiB):
                    os.write(descriptor, block)
                os.fsync(descriptor)

            def read() -> None:
                os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_DONTNEED)
                os.lseek(descriptor, 0, os.SEEK_SET)
                while os.read(descriptor, MiB):
                    pass

            yield Rate("disk_write", host, _rates(sample_times(write, few), size), size=size)
            yield Rate("disk_read", host, _rates(sample_times(read, few), size), size=size)
    except OSError as error:
        raise ConfigError(
            f"the disk is measured by a file of {size // MiB} MiB in {folder}, got {error}; name "
            "another folder (--folder DIR)"
        ) from error
