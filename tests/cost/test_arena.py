"""Memory of a table against its pages, slabs and chunks, cut one by one."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.cost.arena import arena_bytes, blocks_bytes
from ps_server.spec import Adagrad, TableSpec
from ps_server.table import Table

MB = 1 << 20


def chunks(blocks):
    """Returns the chunks of an arena of so many bytes, and the one that is mapped ahead."""
    found = []
    while sum(found) < blocks:
        found.append(next_chunk(found))
    return found, next_chunk(found) if found and found[-1] >= 2 * MB else 0


def next_chunk(found):
    if sum(found) < 2 * MB:
        return max(sum(found), 1 << 16)
    size = min(max(sum(found) // 16, 2 * MB), 256 * MB)
    return -(-size // (2 * MB)) * 2 * MB


@given(st.integers(0, 16384 * MB))
def test_an_arena_is_its_chunks_and_the_next(blocks):
    found, ahead = chunks(blocks)
    assert arena_bytes(blocks) == sum(found) + ahead


def test_an_arena_by_hand():
    assert arena_bytes(0) == 0
    assert arena_bytes(1) == 1 << 16
    assert arena_bytes(MB) == MB  # 64, 64, 128, 256, 512 KB: no huge page yet
    assert arena_bytes(3 * MB) == (2 + 2 + 2) * MB
    assert arena_bytes(33 * MB) == (32 + 2 + 4) * MB
    assert arena_bytes(1e18) == pytest.approx(1e18, rel=1e-6)  # and at once


@given(st.integers(1, 10**7), st.integers(1, 10**6), st.integers(1, 200))
def test_more_rows_are_never_less(rows, more, floats):
    few = blocks_bytes(rows, floats)
    assert few <= blocks_bytes(rows + more, floats)
    assert few >= rows * (4 * floats + 8 + 16)  # of the index, an entry of 16 bytes


@pytest.mark.parametrize("dim", [1, 16, 33])
def test_blocks_are_no_less_than_those_of_a_table_of_any_size(dim):
    sizes = (1000, 4000, 30_000, 120_000, 250_000, 400_000)
    keys = np.random.default_rng(0).permutation(sizes[-1]).astype(np.uint64)
    table = Table(TableSpec("t", dim, Adagrad(0.01)))
    start, gradients = 0, np.zeros((10_000, dim), np.float32)
    for size in sizes:
        while start < size:
            batch = keys[start : min(start + 10_000, size)]
            table.push(batch, gradients[: len(batch)], step=1)
            start += len(batch)
        held, found = table.memory_bytes, blocks_bytes(size, 2 * dim)
        assert held <= found <= 1.04 * held + 2**19, size


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_table_takes_no_more_memory_than_its_arena_is_predicted_to():
    rows, dim = 150_000, 32
    keys = np.random.default_rng(0).permutation(rows).astype(np.uint64)
    gradients = np.zeros((rows, dim), np.float32)
    warm = Table(TableSpec("warm", dim, Adagrad(0.01)))
    warm.push(keys[:10], gradients[:10], step=1)
    before = resident_bytes()
    table = Table(TableSpec("t", dim, Adagrad(0.01)))
    for start in range(0, rows, 10_000):
        table.push(keys[start : start + 10_000], gradients[start : start + 10_000], step=1)
    found = arena_bytes(blocks_bytes(rows, 2 * dim))
    # What is mapped ahead may not be there yet.
    assert 0.85 * found < resident_bytes() - before < found + 2 * MB


def resident_bytes():
    (line,) = (s for s in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in s)
    return int(line.split()[1]) << 10
