"""Page faults of blocks that come and go, and heaps, as the system has them, in own processes."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, threading
from ps_server.memory import keep_freed_memory

def churn():
    # What a request holds at once: each block is freed when the next is there.
    for _ in range(30):
        blocks = [bytes(range(256)) * (1 << 12) for _ in range(4)]  # 1 MiB each

kept = sys.argv[1] == "keep" and keep_freed_memory()
for run in range(2):  # the first makes the heap
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=churn)
    thread.start()
    thread.join()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

HEAPS = """
import sys, threading
from ps_server.memory import share_one_heap

shared = sys.argv[1] == "share" and share_one_heap()
met, held = threading.Barrier(5), []

def hold():
    # No block is large enough for a mapping of its own; each thread is there to the end.
    met.wait()
    held.append([bytes(64 << 10) for _ in range(100)])
    met.wait()
    met.wait()

threads = [threading.Thread(target=hold) for _ in range(4)]
for thread in threads:
    thread.start()
met.wait()
met.wait()
# A heap of a thread begins at a multiple of 64 MiB.
starts = [int(line.split("-")[0], 16) for line in open("/proc/self/maps")]
num_heaps = sum(start % (64 << 20) == 0 for start in starts)
met.wait()
for thread in threads:
    thread.join()
print(shared, num_heaps)
"""


# Arrow's own pool asks posix_memalign for each buffer, as Paddle does for each tensor.
REUSE = """
import sys
from pathlib import Path
import pyarrow as pa
from ps_server.memory import bytes_of_reused_blocks, reuse_blocks

before = pa.allocate_buffer(1 << 20)
reused = sys.argv[1] == "reuse" and reuse_blocks(Path(pa.__file__).parent)
del before  # of the heap, and back to it
addresses = set()
for _ in range(50):
    first, second = pa.allocate_buffer(1 << 20), pa.allocate_buffer(900_000)
    addresses |= {first.address, second.address}
    held = pa.allocate_buffer(40_000)  # what would lie between two of them
print(reused, len(addresses) if reused else bytes_of_reused_blocks())
"""

FORK = """
import os, sys
from pathlib import Path
import pyarrow as pa
from ps_server.memory import reuse_blocks

reused = reuse_blocks(Path(pa.__file__).parent)
held = pa.allocate_buffer(1 << 20)
if os.fork() == 0:
    del held
    os._exit(pa.allocate_buffer(1 << 20).size != 1 << 20)
print(reused, os.wait()[1])
"""


def churn(mode, **environment):
    return run(SCRIPT, mode, **environment)


def run(script, mode, **environment):
    done = subprocess.run(
        [sys.executable, "-c", script, mode],
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    is_set, number = done.stdout.split()
    return is_set == "True", int(number)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_memory_that_is_kept_is_not_asked_for_again():
    _, faults_before = churn("leave")
    kept, faults = churn("keep")
    assert kept
    assert faults < faults_before / 4


def test_whoever_sets_the_variables_of_glibc_has_decided():
    kept, _ = churn("keep", MALLOC_TRIM_THRESHOLD_="131072")
    assert not kept


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_threads_that_share_a_heap_have_none_of_their_own():
    _, before = run(HEAPS, "leave")
    shared, heaps = run(HEAPS, "share")
    assert shared
    assert heaps < before / 2  # some other mapping may begin there, too


def test_whoever_says_how_many_heaps_there_are_has_decided():
    shared, _ = run(HEAPS, "share", MALLOC_ARENA_MAX="3")
    assert not shared


@pytest.mark.skipif(sys.platform != "linux", reason="an import table of ELF")
def test_blocks_of_one_size_are_the_same_again():
    reused, num_addresses = run(REUSE, "reuse", ARROW_DEFAULT_MEMORY_POOL="system")
    assert reused
    assert num_addresses == 4  # the old ones of a turn are freed when its new ones are there


@pytest.mark.parametrize("name", ["LD_PRELOAD", "MALLOC_MMAP_THRESHOLD_"])
def test_whoever_has_chosen_another_allocator_has_decided(name):
    value = "" if name == "LD_PRELOAD" else "131072"
    reused, size = run(REUSE, "reuse", ARROW_DEFAULT_MEMORY_POOL="system", **{name: value})
    assert not reused
    assert size == 0


@pytest.mark.skipif(sys.platform != "linux", reason="an import table of ELF")
def test_a_forked_process_has_its_blocks():
    reused, status = run(FORK, "", ARROW_DEFAULT_MEMORY_POOL="system")
    assert reused
    assert status == 0
