"""How large is the job that is killed, and what are its keys?"""

import numpy as np

SLOTS = tuple(f"slot{i}" for i in range(26))
NUM_DENSE, DIM, BATCH = 13, 16, 1024
HIDDEN = (400, 400, 400)  # of DeepFM on Criteo (Guo et al., IJCAI 2017)
FILL = 250_000  # keys of a push that fills the table
FILL_BYTES = int(1.02 * 2**30)  # of a journal: a little more than the limit of `ps-server`


def step_bytes() -> int:
    """Returns what a step adds to a journal: key and gradient of each row, nearly all different."""
    return BATCH * len(SLOTS) * (8 + 4 * DIM)


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Returns the keys of rows, different and spread over 64 bits."""
    return (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
