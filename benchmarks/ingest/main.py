"""How fast are samples read? Our readers beside pyarrow's own scans of the same files.

A scan decodes the same columns to text and numbers and throws them away; a
reader also hashes 26 keys a row and cuts batches. Both run in turn, again and
again, and a ratio is of two runs that follow each other.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet

import hetero_pipe as hp

DENSE = [f"I{i}" for i in range(1, 14)]
SLOTS = [f"C{i}" for i in range(1, 27)]
NAMES = ["label", *DENSE, *SLOTS]
TYPES = {name: pa.string() if name in SLOTS else pa.float64() for name in NAMES}
FILES = ("criteo.txt", "criteo.txt.gz", "criteo.csv", "criteo.parquet")
NUM_BAD = 100
MIB = 2**20


def write_files(folder: Path, num_rows: int) -> None:
    """Writes the same synthetic rows in every format."""
    hp.synthetic_criteo(num_samples=num_rows).write_criteo(folder / "criteo.txt")
    with (
        (folder / "criteo.txt").open("rb") as text,
        pa.output_stream(str(folder / "criteo.txt.gz"), compression="gzip") as packed,
    ):
        while block := text.read(MIB):
            packed.write(block)
    lines = (folder / "criteo.txt").read_bytes().split(b"\n")
    for i in range(NUM_BAD):  # one every so many lines: several a block, or one
        lines[i * (num_rows // NUM_BAD)] = b"cut short"
    (folder / "bad_lines.txt").write_bytes(b"\n".join(lines))
    integers = {name: pa.int64() for name in NAMES if name not in SLOTS}
    table = pa.csv.read_csv(
        folder / "criteo.txt",
        pa.csv.ReadOptions(column_names=NAMES),
        pa.csv.ParseOptions(delimiter="\t"),
        pa.csv.ConvertOptions(column_types={**TYPES, **integers}),
    )
    pa.csv.write_csv(table, folder / "criteo.csv", pa.csv.WriteOptions(quoting_style="none"))
    pa.parquet.write_table(table, folder / "criteo.parquet")


def is_text(path: Path) -> bool:
    """Whether a file is Criteo's text, which has no header."""
    return ".txt" in path.name


def csv_options(path: Path) -> tuple:
    """Returns pyarrow's options to read, parse and convert a file."""
    return (
        pa.csv.ReadOptions(column_names=NAMES if is_text(path) else None),
        pa.csv.ParseOptions(delimiter="\t" if is_text(path) else ","),
        pa.csv.ConvertOptions(column_types=TYPES, strings_can_be_null=False),
    )


def stream(path: Path) -> Iterator[int]:
    """Yields the rows of each batch of pyarrow's streaming reader."""
    if path.suffix == ".parquet":
        with pa.parquet.ParquetFile(path) as file:
            yield from (batch.num_rows for batch in file.iter_batches(columns=NAMES))
    else:
        with pa.csv.open_csv(path, *csv_options(path)) as batches:
            yield from (batch.num_rows for batch in batches)


def dataset(path: Path) -> Iterator[int]:
    """Yields the rows of each batch of pyarrow's dataset scan."""
    if path.suffix == ".parquet":
        scanned = pa.dataset.dataset(path)
    else:
        reading, parsing, converting = csv_options(path)
        kind = pa.dataset.CsvFileFormat(
            read_options=reading, parse_options=parsing, convert_options=converting
        )
        scanned = pa.dataset.dataset(path, format=kind)
    yield from (batch.num_rows for batch in scanned.to_batches(columns=NAMES))


def reader_of(path: Path) -> hp.Reader:
    """Returns our reader of a file."""
    if is_text(path):
        return hp.read_criteo(path)
    read = hp.read_parquet if path.suffix == ".parquet" else hp.read_csv
    return read(path, slots=SLOTS, dense=DENSE, log_dense=True)


def ours(path: Path) -> Iterator[int]:
    """Yields the rows of each batch of our reader."""
    yield from (batch.size for batch in reader_of(path).batches(0))


def tolerant(path: Path) -> Iterator[int]:
    """Yields those of our reader of the file's twin that has bad lines."""
    twin, side_file = path.with_name("bad_lines.txt"), path.with_name("bad_lines.tsv")
    yield from (batch.size for batch in hp.read_criteo(twin, bad_lines=side_file).batches(0))


WAYS: dict[str, Callable[[Path], Iterator[int]]] = {
    "ours": ours,
    "stream": stream,
    "dataset": dataset,
    "tolerant": tolerant,
}
"""How a file is read. The last is for Criteo's text alone."""


def speed(way: str, path: Path) -> tuple[float, float]:
    """Returns the rows a second of one pass, and the seconds of CPU of all threads a row."""
    start, start_cpu = time.perf_counter(), time.process_time()
    num_rows = sum(WAYS[way](path))
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    return num_rows / seconds, cpu / num_rows


def peak() -> int:
    """Returns the most bytes of memory that this process has held."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def peak_growth(way: str, path: Path) -> int:
    """Returns by how many bytes one pass raises the peak of this process."""
    before = peak()
    sum(WAYS[way](path))
    return peak() - before


def measure(path: Path, num_runs: int) -> dict:
    """Returns rates and ratios of one file, over paired runs."""
    ways = [way for way in WAYS if way != "tolerant" or path.name == "criteo.txt"]
    rates: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways:
        speed(way, path)  # the file is in memory, and code has been loaded
    for run in range(num_runs):
        for way in ways[run % len(ways) :] + ways[: run % len(ways)]:
            for found, value in zip((rates[way], cpu[way]), speed(way, path), strict=True):
                found.append(value)
    ratios = {
        way: [mine / other for mine, other in zip(rates["ours"], rates[way], strict=True)]
        for way in ways[1:]
    }
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        growth = {way: pool.apply(peak_growth, (way, path)) for way in ways}
    return {
        "file": path.name,
        "rates": rates,
        "cpu": cpu,
        "ratios": ratios,
        "peak_growth": growth,
    }


def show(found: dict) -> None:
    """Prints a row of the table for each way."""
    for way, rates in found["rates"].items():
        line = (
            f"{found['file']:16} {way:8} {statistics.median(rates):11,.0f} {min(rates):11,.0f} "
            f"{max(rates):11,.0f} {statistics.median(found['cpu'][way]) * 1e9:9,.0f} "
            f"{found['peak_growth'][way] / MIB:9.0f}"
        )
        if way in found["ratios"]:
            ratios = found["ratios"][way]
            line += f" {statistics.median(ratios):7.2f} {min(ratios):6.2f} {max(ratios):6.2f}"
        print(line, flush=True)


def resident() -> int:
    """Returns the bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def stream_rows(folder: Path, num_rows: int) -> list[dict]:
    """Streams so many rows, of a file of up to 5 M that is read over and over."""
    num_file = min(num_rows, 5_000_000)
    num_files = -(-num_rows // num_file)
    path = folder / "long.txt"
    start = time.perf_counter()
    hp.synthetic_criteo(num_samples=num_file).write_criteo(path)
    seconds = time.perf_counter() - start
    print(f"wrote {num_file:,} rows, {path.stat().st_size / 1e9:.2f} GB, in {seconds:.0f} s")
    print(f"{'rows':>12} {'rows/s':>10} {'RSS MiB':>8}")
    found = [{"rows": 0, "resident": resident()}]
    print(f"{0:12,} {'':>10} {found[0]['resident'] / MIB:8.0f}")
    every = max(1, min(5_000_000, num_rows // 10))
    num_read, start = 0, time.perf_counter()
    for batch in hp.read_criteo([path] * num_files).batches(0):
        before, num_read = num_read, num_read + batch.size
        if num_read // every > before // every:
            seconds = time.perf_counter() - start
            found.append({"rows": num_read, "seconds": seconds, "resident": resident()})
            print(f"{num_read:12,} {num_read / seconds:10,.0f} {resident() / MIB:8.0f}", flush=True)
    assert num_read == num_file * num_files
    return found


def main() -> None:
    """Reads every format every way and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="30,000 rows, 3 runs")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument("--runs", type=int, default=5, help="default: 5")
    parser.add_argument("--rows", type=int, help="stream so many rows of Criteo's text instead")
    flags = parser.parse_args()
    results: dict = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if flags.rows:
            results["streamed"] = stream_rows(folder, flags.rows)
        else:
            write_files(folder, 30_000 if flags.quick else 400_000)
            print(
                f"{'file':16} {'way':8} {'rows/s':>11} {'min':>11} {'max':>11} {'CPU ns':>9} "
                f"{'peak MiB':>9} "
                f"{'ratio':>7} {'min':>6} {'max':>6}"
            )
            results["files"] = []
            for file in FILES:
                results["files"].append(measure(folder / file, 3 if flags.quick else flags.runs))
                show(results["files"][-1])
    if flags.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
