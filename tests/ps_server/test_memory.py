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
    assert heaps == 0 < before


def test_whoever_says_how_many_heaps_there_are_has_decided():
    shared, _ = run(HEAPS, "share", MALLOC_ARENA_MAX="3")
    assert not shared
