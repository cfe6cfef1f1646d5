"""The batches of a configuration, made ahead: a few that are repeated, and one of each row."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from config import Config

import hetero_pipe as hp
from hetero_pipe.data import Bags
from ps_server.keys import hash_integers, slot_seed

NUM_DENSE = 13
NUM_BATCHES = 16
EXPONENT = 1.05  # of the Zipf law of a slot's values, near those of Criteo's large slots
HISTORY = 20  # keys of a history, at most; 0 to this many, each as often


@dataclass(frozen=True)
class Samples:
    """The batches of a configuration.

    Attributes:
        steady: `NUM_BATCHES` that are trained over and over.
        fill: Batches that have each value of each slot in one of them. They are as large
            as the steady ones and have as many distinct keys: what training takes is told
            by batches as they come, not by the way its tables got full.
    """

    steady: Sequence[hp.Batch]
    fill: Sequence[hp.Batch]

    @staticmethod
    def of(config: Config) -> "Samples":
        """Draws them, equal ones for equal configurations."""
        rng = np.random.default_rng(0)
        shares = np.cumsum(np.arange(1, config.values + 1) ** -EXPONENT)
        shares /= shares[-1]
        # Together they would be hot in all slots; of one slot, it makes no difference.
        order = rng.permutation(config.values)

        def draw(size: int) -> np.ndarray:
            return order[np.searchsorted(shares, rng.random(size)).clip(max=config.values - 1)]

        size = config.batch_size
        steady = []
        for _ in range(NUM_BATCHES):
            columns = [draw(size) for _ in slots_of(config)]
            lengths = rng.integers(0, HISTORY + 1, size)
            if config.history:
                columns[-1] = draw(int(lengths.sum()))
            steady.append(_batch(config, columns, lengths, rng))
        fill = []
        few = _distinct(steady[0])
        for first in range(0, config.values, few):
            values = np.arange(first, first + few) % config.values
            lengths = rng.integers(0, HISTORY + 1, size)
            columns = [np.resize(values, size) for _ in slots_of(config)]
            if config.history:
                columns[-1] = np.resize(values, lengths.sum())
            fill.append(_batch(config, columns, lengths, rng))
        return Samples(steady, fill)


def slots_of(config: Config) -> tuple[str, ...]:
    """Returns the names of the slots; a history is the last, its target the one before."""
    return tuple(f"slot{i}" for i in range(config.slots))


def _distinct(batch: hp.Batch) -> int:
    """Returns how many keys of a slot are distinct, in the mean of the slots."""
    return round(np.mean([len(np.unique(bags.keys)) for bags in batch.bags.values()]))


def _batch(
    config: Config,
    columns: Sequence[np.ndarray],
    lengths: np.ndarray,
    rng: np.random.Generator,
) -> hp.Batch:
    names = slots_of(config)
    bags = {}
    for i, (name, values) in enumerate(zip(names, columns, strict=True)):
        is_history = config.history and i == len(names) - 1
        seed = slot_seed(names[-2] if is_history else name)  # keys of a history are its target's
        keys = hash_integers(np.ascontiguousarray(values, np.int64), seed)
        bags[name] = Bags.of_lengths(keys, lengths) if is_history else Bags(keys)
    size = config.batch_size
    return hp.Batch(
        bags,
        rng.standard_normal((size, NUM_DENSE), np.float32),
        (rng.random(size) < 0.25).astype(np.float32),
        tuple(f"dense{i}" for i in range(NUM_DENSE)),
    )
