"""How much memory does a table on a host take? As `ps_server` grows it: in pages, slabs and chunks.

Rows of a stripe fill pages, pages slabs, and an index has what finds them; all of it is
cut from chunks, each as large as all before it up to 2 MB, and a sixteenth of them from
there on. The next chunk is faulted in ahead. `ps_server/native/row_list.h`, `index.h`
and `arena.h` are where it is done; what is here is their sum.
"""

import math
from bisect import bisect_left
from statistics import NormalDist, fmean

__all__ = ["arena_bytes", "blocks_bytes"]

STRIPES = 64
META = 8  # of a row: its pushes and its step
ALIGNMENT = 1 << 12  # of a block
PAGE, SLAB = 1 << 12, 1 << 16
FIRST_CHUNK, HUGE_PAGE, LARGEST_CHUNK = 1 << 16, 1 << 21, 1 << 28
SHARE = 16  # of what is mapped, a chunk is one part of so many
BUCKET, ENTRIES = 64, 5  # of an index: bytes, and rows that it has room for
FIRST_BUCKETS, SEGMENT = 4, 512  # buckets
FEWEST, MOST = 154 / 256, 226 / 256  # of a segment's room: each splits at a share between

GAPS = 1 << 13  # of a stripe, between its first blocks, which are shorter than a page
SPREAD = 1.01  # of two tables of as many rows, by what the larger one may have more
QUANTILES = tuple(NormalDist().inv_cdf((i + 0.5) / 9) for i in range(9))


def arena_bytes(blocks: float) -> float:
    """Returns what is resident of an arena that has blocks of so many bytes, at the most."""
    if blocks <= 0:
        return 0.0
    if blocks > MAPPED[-1]:  # each chunk is one of the largest, and so is the next
        more = math.ceil((blocks - MAPPED[-1]) / LARGEST_CHUNK)
        return float(MAPPED[-1] + (more + 1) * LARGEST_CHUNK)
    mapped = MAPPED[bisect_left(MAPPED, blocks)]
    return float(mapped + (_chunk_after(mapped) if mapped >= 2 * HUGE_PAGE else 0))


def _chunk_after(mapped: int) -> int:
    if mapped < HUGE_PAGE:
        return max(mapped, FIRST_CHUNK)
    size = min(max(mapped / SHARE, HUGE_PAGE), LARGEST_CHUNK)
    return math.ceil(size / HUGE_PAGE) * HUGE_PAGE


def _mapped() -> tuple[int, ...]:
    """Returns what is mapped with each chunk more, up to the first of the largest."""
    found = [FIRST_CHUNK]
    while _chunk_after(found[-1]) < LARGEST_CHUNK:
        found.append(found[-1] + _chunk_after(found[-1]))
    return tuple(found)


MAPPED = _mapped()


def blocks_bytes(rows: float, floats: int) -> float:
    """Returns the bytes of so many rows and their index, in blocks of an arena, at the most.

    Args:
        rows: Of the table. Keys are hashed to stripes, so some have more than others.
        floats: Of a row, weights and state.
    """
    mean = rows / STRIPES
    of_stripes = [max(mean + z * math.sqrt(mean), 0.0) for z in QUANTILES]
    held = fmean(_slabs_bytes(each, floats) + _index_bytes(each) for each in of_stripes)
    return STRIPES * (GAPS + SPREAD * held) if rows else 0.0


def _slabs_bytes(rows: float, floats: int) -> float:
    """Returns the bytes of a stripe's rows: its slabs double up to 64 KB, then all have that."""
    page, rows_of_page = _page(_stride(4 * floats) + META)
    pages = math.ceil(rows / rows_of_page)
    of_slab = 1 << max(int(math.log2(SLAB / page)), 0)
    if pages <= of_slab:
        return float(page * (1 << (pages - 1).bit_length() if pages else 0))
    slab = math.ceil(page * of_slab / ALIGNMENT) * ALIGNMENT
    return float(slab * math.ceil(pages / of_slab))


def _index_bytes(rows: float) -> float:
    """Returns the bytes of a stripe's index: it doubles up to a segment, then segments split.

    What was doubled stays. Segments split one after the other, as each has a limit of
    its own; so up to all of the last doubling are there already.
    """
    buckets = FIRST_BUCKETS
    while (split := (rows / buckets / ENTRIES - FEWEST) / (MOST - FEWEST)) >= 1:
        buckets *= 2
    split = max(split, 0.0)
    if buckets < SEGMENT:
        return BUCKET * (2 * buckets * (1 + split) - FIRST_BUCKETS)
    return BUCKET * (SEGMENT - FIRST_BUCKETS + buckets * (1 + split))


def _stride(size: int) -> int:
    if size > 64:
        return math.ceil(size / 32) * 32
    return 1 << max(math.ceil(math.log2(size)), 2)


def _page(row: int) -> tuple[int, int]:
    """Returns the bytes of a page and its rows: the smallest that is nearly full."""
    size = PAGE
    while size <= SLAB:
        if size % row <= size / 32:
            return size, size // row
        size *= 2
    return math.ceil(row / 64) * 64, 1
