"""Page faults of blocks that come and go, counted by the system, in a process of their own."""

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


def churn(mode, **environment):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, mode],
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    kept, faults = done.stdout.split()
    return kept == "True", int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_memory_that_is_kept_is_not_asked_for_again():
    _, faults_before = churn("leave")
    kept, faults = churn("keep")
    assert kept
    assert faults < faults_before / 4


def test_whoever_sets_the_variables_of_glibc_has_decided():
    kept, _ = churn("keep", MALLOC_TRIM_THRESHOLD_="131072")
    assert not kept
