"""Does a job lose anything when everything fails? Kills, stops, cuts, lost replies, full disks.

The same training runs twice: undisturbed, and under faults at random moments, with real processes
and a supervisor. Then the two final checkpoints are compared to the bit.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from compare import differences, newest, read
from faults import Disk, Faults
from job import ChaosJob

WEIGHTS = {
    "kill server": 4.0,
    "kill worker": 1.0,
    "stop server": 2.0,
    "stop worker": 1.0,
    "cut": 4.0,
    "lose replies": 4.0,
    "delay": 2.0,
    "full disk": 1.0,
    "scale": 2.0,
}
DISK_BYTES = 256 << 20


@dataclass(frozen=True)
class Run:
    """What a run under faults gave.

    Attributes:
        seed: Of the faults.
        faults: How many of each kind.
        num_faults: In all.
        steps: Trained.
        rows: Of all tables.
        pushes: Of all rows.
        seconds: From the start of the job to its end.
        undisturbed_seconds: The same without faults.
        num_scaled: Times that scaling came to its end; others were killed in the middle.
        exit_code: Of the job.
        differences: From the undisturbed run.
    """

    seed: int
    faults: dict[str, int]
    num_faults: int
    steps: int
    rows: int
    pushes: int
    seconds: float
    undisturbed_seconds: float
    num_scaled: int
    exit_code: int
    differences: list[str]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--duration", metavar="SECONDS", type=float, default=60.0, help="of faults; default: 60")
    add("--seed", metavar="N", type=int, default=0, help="of the faults; default: 0")
    add("--rate", metavar="FAULTS", type=float, default=1.0, help="a second; default: 1")
    add("--servers", metavar="N", type=int, default=2, help="at first; default: 2")
    add("--most-servers", metavar="N", type=int, default=3, help="that it is scaled to; default: 3")
    add("--workers", metavar="N", type=int, default=1, help="in step, if several; default: 1")
    add("--epochs", metavar="N", type=int, default=12, help="that are trained; default: 12")
    add("--only", metavar="KINDS", help="comma-separated: " + ", ".join(WEIGHTS))
    add("--quick", action="store_true", help="20 seconds, 3 epochs")
    add("--json", action="store_true", help="the last line is a JSON object")
    add("--keep", metavar="DIR", type=Path, help="keep logs and checkpoints there")
    flags = parser.parse_args(arguments)
    if flags.quick:
        flags.duration, flags.epochs = 20.0, 3
    flags.kinds = WEIGHTS
    if flags.only:
        names = [name.strip() for name in flags.only.split(",")]
        if unknown := set(names) - WEIGHTS.keys():
            parser.error(f"a kind of fault is one of {', '.join(WEIGHTS)}, got {unknown}")
        flags.kinds = {name: WEIGHTS[name] for name in names}
    return flags


def main(arguments: Sequence[str]) -> int:
    """Runs both, compares, prints; returns 1 if anything differs."""
    flags = parse(arguments)
    with _folder(flags.keep) as folder:
        say("undisturbed")
        code, undisturbed_seconds, _ = run(flags, folder / "undisturbed", faults=None)
        if code:
            raise SystemExit(f"the undisturbed run ended with exit code {code}")
        expected = read(newest(folder / "undisturbed-saved"))
        say(f"{expected.step} steps in {undisturbed_seconds:.1f} s; now with faults")
        with _small_disk(folder / "disturbed") as disk:
            faults = Faults(
                job=None,  # set when it runs
                wires=(),
                disk=disk,
                rng=random.Random(flags.seed),
                rate=flags.rate,
                weights=flags.kinds,
            )
            code, seconds, num_scaled = run(flags, folder / "disturbed", faults=faults)
        found = read(newest(folder / "disturbed-saved"))
        result = Run(
            seed=flags.seed,
            faults=faults.counts(),
            num_faults=len(faults.done),
            steps=found.step,
            rows=found.num_rows,
            pushes=found.num_pushes,
            seconds=round(seconds, 1),
            undisturbed_seconds=round(undisturbed_seconds, 1),
            num_scaled=num_scaled,
            exit_code=code,
            differences=list(differences(expected, found)),
        )
    report(result)
    if flags.json:
        print(json.dumps(asdict(result)))
    return 1 if result.differences or result.exit_code else 0


def run(
    flags: argparse.Namespace, folder: Path, *, faults: Faults | None
) -> tuple[int, float, int]:
    """Runs the job once; returns its exit code, its seconds, and how often it was scaled."""
    saved = folder.parent / f"{folder.name}-saved"
    arguments = ["--epochs", str(flags.epochs), "--save", str(saved), "--save-every", "50"]
    arguments += ["--resume", "--fresh", "--json"]
    if flags.workers > 1:
        arguments += ["--mode", "sync"]
    with ChaosJob(
        folder,
        servers=flags.servers,
        most_servers=max(flags.servers, flags.most_servers),
        workers=flags.workers,
        arguments=arguments,
    ) as job:
        if faults is not None:
            faults.job, faults.wires = job, job.wires
            job.wait_until_begun()
            thread = threading.Thread(
                target=faults.run, args=[job.over], kwargs={"seconds": flags.duration}
            )
            thread.start()
            code, seconds = job.wait()
            thread.join()
        else:
            code, seconds = job.wait()
        return code, seconds, job.num_scaled


def report(result: Run) -> None:
    """Prints what came of it."""
    for kind, number in result.faults.items():
        say(f"  {kind:14} {number:4}")
    say(f"{result.num_faults} faults, scaled {result.num_scaled} times, {result.seconds:.1f} s")
    say(f"{result.steps} steps, {result.rows} rows, {result.pushes} pushes of rows")
    for difference in result.differences:
        say(f"DIFFERS: {difference}")
    if not result.differences:
        say("tables, dense part and position are equal to the bit")


def say(line: str) -> None:
    """Prints a line for who waits."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        yield Path(folder)


@contextmanager
def _small_disk(folder: Path) -> Iterator[Disk | None]:
    """Makes the folder a file system of its own, to be filled; None if that is not allowed."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        say("no file system can be made here (that is root's): no disk is filled")
        yield None
        return
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
