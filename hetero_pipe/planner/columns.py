"""Columns: tables of text that are as wide as they must be."""

from collections.abc import Iterator, Sequence

__all__ = ["columns", "percent"]


def percent(share: float) -> str:
    """Returns a share of 1 in few digits."""
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.2%}"


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields lines with columns that are as wide as they must be."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for number, row in enumerate((header, *rows)):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("  " if number else "") + ("  ".join(cells) if number else _header(row, widths))


def _header(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return "  ".join([first + "  ", *rest])
