"""How a file becomes record batches, one module a format. It knows nothing of keys or batches."""

from hetero_pipe.data.formats.bad_lines import BadLines
from hetero_pipe.data.formats.criteo import write_criteo
from hetero_pipe.data.formats.csv import CsvSource
from hetero_pipe.data.formats.parquet import ParquetSource

__all__ = ["BadLines", "CsvSource", "ParquetSource", "write_criteo"]
