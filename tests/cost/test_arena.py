"""Memory of a table against its pages, slabs and chunks, cut one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.client import Client
from hetero_pipe.cost.arena import arena_bytes, blocks_bytes
from ps_server.spec import Adagrad, TableSpec

MB = 1 << 20


def chunks(blocks):
    """Returns the chunks of an arena of so many bytes, and the one that is mapped ahead."""
    found = []
    while sum(found) < blocks:
        found.append(max(sum(found), 1 << 16) if sum(found) < 64 * MB else next_large(found))
    ahead = 0
    if found and found[-1] >= 2 * MB:
        ahead = sum(found) if sum(found) < 64 * MB else next_large(found)
    return found, ahead


def next_large(found):
    size = min(max(sum(found) // 8, 64 * MB), 256 * MB)
    return -(-size // (2 * MB)) * 2 * MB


@given(st.integers(0, 16384 * MB))
def test_an_arena_is_its_chunks_and_the_next(blocks):
    found, ahead = chunks(blocks)
    assert arena_bytes(blocks) == pytest.approx(sum(found) + ahead, rel=0.01)
    assert arena_bytes(blocks) >= blocks


def test_an_arena_by_hand():
    assert arena_bytes(0) == 0
    assert arena_bytes(1) == 1 << 16
    assert arena_bytes(MB) == MB  # 64, 64, 128, 256, 512 KB: no huge page yet
    assert arena_bytes(3 * MB) == (4 + 4) * MB
    assert arena_bytes(65 * MB) == (64 + 64 + 64) * MB
    assert arena_bytes(1e18) == pytest.approx(1e18, rel=1e-6)  # and at once


@given(st.integers(1, 10**7), st.integers(1, 10**6), st.integers(1, 200))
def test_more_rows_are_never_less(rows, more, floats):
    few = blocks_bytes(rows, floats, index_row=46.0)
    assert few <= blocks_bytes(rows + more, floats, index_row=46.0)
    assert few >= rows * (4 * floats + 8)


@pytest.mark.parametrize(("dim", "rows"), [(1, 200_000), (16, 100_000), (33, 50_000)])
def test_blocks_are_those_of_a_table(dim, rows):
    keys = np.random.default_rng(0).permutation(rows).astype(np.uint64)
    with Client(None) as client:
        client.attach([TableSpec("t", dim, Adagrad(0.01))])
        client.pull({"t": client.route(keys)}, insert=True)
        (connection,) = client._connections
        held = connection.control.stats().result().tables["t"].memory_bytes
    assert blocks_bytes(rows, 2 * dim, index_row=46.0) == pytest.approx(held, rel=0.1)
