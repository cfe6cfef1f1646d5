"""Measures what cuts cost between a sparse and a dense worker of one host."""

import time
from collections.abc import Iterator
from itertools import count

import numpy as np

from hetero_pipe.cluster import Rate, Sampling, Spread, sample_times
from hetero_pipe.data import Batch, Cut
from hetero_pipe.pipeline.remote import CutBatch, CutResult, StageHost, StageLink, worker_name

__all__ = ["profile_cuts"]

WIDTH = 416  # weights of a sample: 26 slots of 16
NUM_DENSE = 13
CONNECT_SECONDS = 10.0


def profile_cuts(host: str, sampling: Sampling) -> Iterator[Rate]:
    """Yields `cut_byte`: seconds on cores of a byte of cuts, as float32, or of their gradients.

    To the other worker or back, on both ends together: made a message of, sent,
    received, and made an array again.
    """
    for dtype in ("float32", "float16", "bfloat16"):
        for size in (512,) if sampling.is_quick else (512, 4096):
            times = _round_trips(dtype, size, sampling)
            num_bytes = 4 * size * WIDTH
            value = Spread.of([seconds / 2 / num_bytes for seconds in times])
            yield Rate("cut_byte", host, value, dtype=dtype, size=num_bytes)


def _round_trips(wire: str, size: int, sampling: Sampling) -> list[float]:
    """Returns the seconds on cores of a batch there and its gradients back, in each sample."""
    rng = np.random.default_rng(0)
    cuts = {"rows": Cut(rng.standard_normal((size, WIDTH), np.float32))}
    names = tuple(f"dense{i}" for i in range(NUM_DENSE))
    label = np.zeros(size, np.float32)
    samples = Batch({}, np.zeros((size, NUM_DENSE), np.float32), label, names)
    steps = count()
    with (
        StageHost(
            "127.0.0.1:0",
            worker=worker_name("dense", 0),
            job={},
            num_sparse=1,
            capacity=1,
            wire=wire,
        ) as dense,
        StageLink(
            dense.address,
            dense_rank=0,
            rank=0,
            worker=worker_name("sparse", 0),
            job={},
            wire=wire,
            connect_timeout=CONNECT_SECONDS,
        ) as sparse,
    ):

        def round_trip() -> None:
            step = next(steps)
            sparse.send(CutBatch(step, True, samples, cuts))
            taken = dense.take()
            assert not isinstance(taken, str), "nobody has ended"
            rank, batch = taken
            gradients = {name: cut.values for name, cut in batch.cuts.items()}
            dense.answer(rank, CutResult(step, 0.0, label, gradients))
            sparse.receive(step)

        return sample_times(round_trip, sampling, clock=time.process_time)
