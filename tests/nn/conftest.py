"""Batches made by hand, and the rows of their keys."""

import numpy as np
import pytest

from hetero_pipe.data import Bags, Batch, Lookup, occurrences
from hetero_pipe.nn import Device, PulledRows, TableRows, TensorBatch, find_embeddings

# The first is not for doctests: pytest wants names of modules unique. The second is for another
# process, which names it.
collect_ignore = ["conftest.py", "on_emulated_device.py", "on_emulated_devices.py"]


def bags_of(lists):
    """`[[1], [2, 3]]` as keys and offsets; without offsets where every bag has one key."""
    keys = np.array([key for bag in lists for key in bag], np.uint64)
    return Bags.of_lengths(keys, np.array([len(bag) for bag in lists])).compact()


def batch_of(bags, *, label=None, dense=None, dense_names=()):
    size = len(next(iter(bags.values())))
    return Batch(
        bags={slot: bags_of(lists) for slot, lists in bags.items()},
        dense=np.zeros((size, 0), np.float32) if dense is None else np.array(dense, np.float32),
        label=None if label is None else np.array(label, np.float32),
        dense_names=tuple(dense_names),
    )


class Hand:
    """Pulls by hand: the row of key k of a table of dim d is random, a function of (k, d)."""

    device = Device("cpu")

    @staticmethod
    def row(key, dim):
        return np.random.default_rng([int(key), dim]).normal(size=dim).astype(np.float32)

    def pull(self, model, batch):
        tables = {}
        for name, layer in find_embeddings(model).items():
            keys, inverse = np.unique(occurrences(batch, layer.slots), return_inverse=True)
            rows = np.zeros((len(keys), layer.dim), np.float32)
            for i, key in enumerate(keys):
                rows[i] = self.row(key, layer.dim)
            tables[name] = TableRows(rows, Lookup.of(batch, layer.slots, inverse.reshape(-1)))
        return tables

    def inputs(self, model, batch):
        pulled = {}
        for name, table in self.pull(model, batch).items():
            rows = self.device.to_tensor(table.rows)
            rows.stop_gradient = False
            pulled[name] = PulledRows(rows, table.lookup)
        return TensorBatch(batch, pulled, self.device)

    batch_of = staticmethod(batch_of)


@pytest.fixture
def hand():
    return Hand()
