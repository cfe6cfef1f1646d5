"""How much memory does a table on a host take? As `ps_server` grows it: in pages, slabs and chunks.

Rows of a stripe fill pages, pages slabs, and an index has what finds them; all of it is
cut from chunks, each as large as all before it, and from 64 MB on an eighth of them.
The next chunk is faulted in ahead, so a table has up to twice of what its rows ask
for, and a large one an eighth more. `ps_server/native/row_list.h` and `arena.h` are
where it is done; what is here is their sum.
"""

import math

__all__ = ["arena_bytes", "blocks_bytes"]

STRIPES = 64
META = 8  # of a row: its pushes and its step
PAGE, SLAB = 1 << 12, 1 << 16
FIRST_CHUNK, HUGE_PAGE, MANY, LARGEST_CHUNK = 1 << 16, 1 << 21, 1 << 26, 1 << 28
FIRST_INDEX = 1 << 15  # of a stripe, as it doubled to its first segment


def arena_bytes(blocks: float) -> float:
    """Returns what is resident of an arena that has blocks of so many bytes, at the most."""
    mapped, chunk = 0.0, 0.0
    while mapped < blocks:
        chunk = _chunk_after(mapped)
        # All after the first of the largest are as large: terabytes are no long way.
        alike = math.ceil((blocks - mapped) / chunk) if chunk == LARGEST_CHUNK else 1
        mapped += alike * chunk
    return mapped + (_chunk_after(mapped) if chunk >= HUGE_PAGE else 0.0)


def _chunk_after(mapped: float) -> float:
    if mapped < MANY:
        return max(mapped, FIRST_CHUNK)
    size = min(max(mapped / 8, MANY), LARGEST_CHUNK)
    return math.ceil(size / HUGE_PAGE) * HUGE_PAGE


def blocks_bytes(rows: float, floats: int, *, index_row: float) -> float:
    """Returns the bytes of so many rows and their index, in blocks of an arena.

    Args:
        rows: Of the table, spread evenly over stripes.
        floats: Of a row, weights and state.
        index_row: Bytes of the index by row.
    """
    page, rows_of_page = _page(_stride(4 * floats) + META)
    pages = rows / STRIPES / rows_of_page
    of_slab = 1 << max(int(math.log2(SLAB / page)), 0)
    # Slabs double up to one of 64 KB; then the last is half full, in the mean of the stripes.
    doubled = 2.0 ** math.ceil(math.log2(max(pages, 1.0)))
    held = doubled if pages <= of_slab else pages + of_slab / 2
    index = min(rows / STRIPES * index_row, FIRST_INDEX)
    return STRIPES * (held * page + index) + rows * index_row


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
