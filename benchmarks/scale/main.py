"""What does a worker see while its job goes from two servers to three, and back?

A supervised job with real servers: one worker pulls and pushes without a pause, and every step's
end is noted. `hetero-pipe scale` is called as a user would.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from worker import SAMPLES

import hetero_pipe as hp
from hetero_pipe.client.transport.grpc import GrpcTransport

WORKER = Path(__file__).with_name("worker.py")
TOML = """\
dir = {folder}
[servers]
number = 2
[workers]
number = 1
script = {script}
arguments = ["--rows", "{rows}", "--dir", {notes}]
"""
FILL_SECONDS = 600.0


@dataclass(frozen=True)
class Window:
    """What a worker saw in a while.

    Attributes:
        name: Of the while.
        seconds: How long that was.
        steps: That ended in it.
        samples_per_second: Trained.
        median_step: Seconds.
        longest_step: Seconds: the longest that a worker went without a step's end.
    """

    name: str
    seconds: float
    steps: int
    samples_per_second: float
    median_step: float
    longest_step: float

    @property
    def longest_pause(self) -> float:
        """Seconds by which the longest step was longer than the median one."""
        return self.longest_step - self.median_step


@dataclass(frozen=True)
class Scaled:
    """What `hetero-pipe scale` said.

    Attributes:
        servers: That there were then.
        buckets: That moved.
        seconds: Until all had.
        longest_hold_seconds: For which pushes waited.
        failures: Moves that began again.
        rows: Of the table on each server, after it.
    """

    servers: int
    buckets: int
    seconds: float
    longest_hold_seconds: float
    failures: int
    rows: list[int]


def main(arguments: Sequence[str]) -> int:
    """Measures, prints, and returns 1 if rows were lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--rows", metavar="N", type=int, default=1_000_000, help="of the table; default: 1000000")
    add("--seconds", metavar="S", type=float, default=10.0, help="before and after; default: 10")
    add("--quick", action="store_true", help="100,000 rows, 2 seconds")
    add("--json", action="store_true", help="the last line is a JSON object")
    flags = parser.parse_args(arguments)
    if flags.quick:
        flags.rows, flags.seconds = 100_000, 2.0
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        windows, scaled = measure(Path(folder), rows=flags.rows, seconds=flags.seconds)
    for window in windows:
        say(
            f"{window.name:14} {window.samples_per_second:9,.0f} samples/s, step "
            f"{1e3 * window.median_step:6.1f} ms, longest {1e3 * window.longest_step:6.1f} ms"
        )
    for each in scaled:
        say(
            f"to {each.servers} servers: {each.buckets} buckets in {each.seconds:.2f} s, held "
            f"{1e3 * each.longest_hold_seconds:.1f} ms at most; rows {each.rows}"
        )
    is_whole = all(sum(each.rows) == flags.rows for each in scaled)
    say("every row is on one server" if is_whole else "ROWS ARE LOST OR TWICE")
    if flags.json:
        described = {"rows": flags.rows, "is_whole": is_whole}
        described |= {"windows": [asdict(each) for each in windows]}
        described |= {"scaled": [asdict(each) for each in scaled]}
        print(json.dumps(described))
    return 0 if is_whole else 1


def measure(folder: Path, *, rows: int, seconds: float) -> tuple[list[Window], list[Scaled]]:
    """Runs the job, and scales it out and in."""
    job, toml = folder / "job", folder / "job.toml"
    described = {"folder": job, "script": WORKER, "notes": folder}
    quoted = {name: json.dumps(str(path)) for name, path in described.items()}
    toml.write_text(TOML.format(**quoted, rows=rows))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "hetero_pipe", "launch", str(toml)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        wait_for(folder / "filled", process)
        marks, scaled = [("2 servers", time.monotonic())], []
        time.sleep(seconds)
        for name, number in (("3 servers", 3), ("2 servers again", 2)):
            marks.append((f"to {number}", time.monotonic()))
            done = scale(job, number)
            marks.append((name, time.monotonic()))
            time.sleep(seconds)
            scaled.append(Scaled(**done, rows=rows_of(job)))
        marks.append(("", time.monotonic()))
        (folder / "stop").touch()
        if process.wait(60):
            raise SystemExit(f"the job failed:\n{(folder / 'log').read_text()}")
    finally:
        process.terminate()
        process.wait()
    ends = np.frombuffer((folder / "steps").read_bytes())
    return [window(name, ends, start, end) for (name, start), (_, end) in pairwise(marks)], scaled


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Waits for a file of the worker."""
    deadline = time.monotonic() + FILL_SECONDS
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(
                f"the job never filled its table:\n{(path.parent / 'log').read_text()}"
            )
        time.sleep(0.1)


def scale(job: Path, number: int) -> dict[str, float]:
    """Returns what the command prints."""
    command = ["scale", "--servers", str(number), "--json", str(job)]
    run = subprocess.run(
        [sys.executable, "-m", "hetero_pipe", *command],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return json.loads(run.stdout)


def rows_of(job: Path) -> list[int]:
    """Returns how many rows each server has."""
    found = []
    for process in hp.launch.job_status(job).processes:
        if process.address is not None:
            transport = GrpcTransport(process.address)
            found.append(sum(t.num_rows for t in transport.stats().result().tables.values()))
            transport.close()
    return found


def window(name: str, ends: np.ndarray, start: float, end: float) -> Window:
    """Returns what ended between two moments; a step belongs to where it ended."""
    inside = (ends >= start) & (ends < end)
    lengths = np.diff(ends, prepend=ends[:1])[inside]
    return Window(
        name,
        end - start,
        len(lengths),
        len(lengths) * SAMPLES / (end - start),
        float(np.median(lengths)),
        float(lengths.max()),
    )


def say(line: str) -> None:
    """Prints a line for who waits."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
