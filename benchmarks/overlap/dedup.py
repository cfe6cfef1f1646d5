"""Distinct keys of a batch and where each key went: ours beside numpy's and Arrow's."""

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

import hetero_pipe as hp
from hetero_pipe.data import occurrences
from ps_server.keys import dedup
from ps_server.spec import NUM_BUCKETS

OWNERS = {n: (np.arange(NUM_BUCKETS) * n // NUM_BUCKETS).astype(np.uint16) for n in (1, 8)}

WAYS: dict[str, Callable[[np.ndarray], object]] = {
    "dedup, 1 server": lambda keys: dedup(keys, OWNERS[1], num_owners=1),
    "dedup, 8 servers": lambda keys: dedup(keys, OWNERS[8], num_owners=8),
    "pyarrow dictionary_encode": lambda keys: pa.array(keys).dictionary_encode(),
    "np.unique": lambda keys: np.unique(keys, return_inverse=True),
}


def measure(batches: Sequence[hp.Batch], num_rounds: int) -> list[dict]:
    """Returns the CPU milliseconds of a batch, ways taking turns."""
    slots = tuple(batches[0].bags)
    rng = np.random.default_rng(0)
    size = len(occurrences(batches[0], slots))
    inputs = {
        "criteo": [occurrences(batch, slots) for batch in batches[:8]],
        "all distinct": [rng.integers(0, 2**64, size, np.uint64) for _ in range(8)],
    }
    found = []
    for name, keys in inputs.items():
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for round_ in range(num_rounds + 1):
            for each in keys:
                for way, run in WAYS.items():
                    start = time.thread_time()
                    run(each)
                    if round_ > 0:  # the first warms
                        times[way].append(1e3 * (time.thread_time() - start))
        num_unique = statistics.median(len(np.unique(each)) for each in keys)
        for way, values in times.items():
            found.append(
                {
                    "keys": name,
                    "num_keys": size,
                    "num_unique": num_unique,
                    "way": way,
                    "cpu_ms": statistics.median(values),
                    "min": min(values),
                    "max": max(values),
                }
            )
    return found
