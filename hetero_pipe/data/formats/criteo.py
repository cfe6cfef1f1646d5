"""Criteo's text: a label, 13 integers and 26 categories a line, separated by tabs, no header."""

from collections.abc import Iterable
from os import PathLike, fspath

import pyarrow as pa
import pyarrow.csv

from hetero_pipe.data.criteo import CRITEO_DENSE, CRITEO_SLOTS

__all__ = ["write_criteo"]


def write_criteo(path: str | PathLike[str], rows: Iterable[pa.RecordBatch]) -> int:
    """Writes record batches that hold `label`, I1..I13 and C1..C26, and returns their rows.

    Args:
        path: A file, which is replaced; packed as its suffix says.
        rows: Integers, or null for an empty field, and text without tabs,
            quotes and newlines.
    """
    names = ["label", *CRITEO_DENSE, *CRITEO_SLOTS]
    options = pa.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    num_rows = 0
    with pa.output_stream(fspath(path), compression="detect") as stream:
        for batch in rows:
            pa.csv.write_csv(batch.select(names), stream, options)
            num_rows += batch.num_rows
    return num_rows
