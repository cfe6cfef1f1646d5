"""How soon does a job train again after kill -9, what does a journal cost, and what is left?

Servers are processes of their own on this host. One that keeps a journal
(--durability process) and one that keeps none take turns, batch by batch, so
that ratios are of one run. Jobs run under `hetero-pipe launch job.toml`.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from goodput import MTBFS, Costs, goodput
from job import job_recovery, journal_cost
from serving import BATCH, DIM, FILL, durable, keys_of, serving

NUM_KEYS = 1_000_000  # of the table that is pushed
TRAIN = Path(__file__).parents[2] / "examples" / "ctr" / "train.py"


def quartiles(values: list[float]) -> dict[str, float]:
    """Returns the median, and what half of the values lie between."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "low": low, "high": high}


def push_cost(rounds: int) -> dict[str, object]:
    """Pushes, and pulls and pushes, with a journal and without one, in turns."""
    rng = np.random.default_rng(0)
    keys = keys_of(0, NUM_KEYS)
    gradients = rng.normal(scale=1e-2, size=(BATCH, DIM)).astype(np.float32)
    seconds: dict[str, list[float]] = {"none": [], "process": []}
    steps: dict[str, list[float]] = {"none": [], "process": []}
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder, ExitStack() as stack:
        servers = {
            "none": stack.enter_context(serving()),
            "process": stack.enter_context(serving(*durable(Path(folder)))),
        }
        for server in servers.values():
            server.create()
            server.pull(keys)
        for number in range(rounds + 5):
            batch = rng.choice(keys, BATCH, replace=False)
            for name in list(servers)[:: 1 if number % 2 else -1]:
                pull = servers[name].pull(batch)
                push = servers[name].push(batch, gradients)
                if number >= 5:  # the first are warming up
                    seconds[name].append(push)
                    steps[name].append(pull + push)
    return {
        "push_seconds": {name: quartiles(times) for name, times in seconds.items()},
        "push_throughput_of_none": statistics.median(seconds["none"])
        / statistics.median(seconds["process"]),
        "pull_and_push_throughput_of_none": statistics.median(steps["none"])
        / statistics.median(steps["process"]),
    }


def trainer_cost(rounds: int) -> dict[str, object]:
    """Trains the example on a server with a journal and on one without, in turns."""
    rates: dict[str, list[float]] = {"none": [], "process": []}
    for number in range(rounds):
        for name in ("none", "process")[:: 1 if number % 2 else -1]:
            with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
                flags = durable(Path(folder)) if name == "process" else []
                with serving(*flags) as server:
                    command = [sys.executable, str(TRAIN), "--epochs", "1", "--json"]
                    command += ["--servers", server.address]
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
            result = json.loads(done.stdout.splitlines()[-1])
            rates[name].append(result["samples_per_second"])
    return {
        "samples_per_second": rates,
        "samples_per_second_of_none": statistics.median(rates["process"])
        / statistics.median(rates["none"]),
    }


def recovery(num_rows: int, journal_pushes: int) -> dict[str, float]:
    """Fills a table, has a checkpoint written, pushes on, kills, and waits for the first pull."""
    rng = np.random.default_rng(1)
    gradients = rng.normal(scale=1e-2, size=(FILL, DIM)).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        folder = Path(name)
        with serving() as bare:
            start_seconds = bare.start_seconds
        with serving(*durable(folder, "--journal-limit", "1TiB")) as server:
            server.create()
            for first in range(0, num_rows, FILL):
                server.push(keys_of(first, first + FILL), gradients)
            step = server.step
        # It finds its journal too long, and writes a checkpoint of all rows.
        with serving(*durable(folder, "--journal-limit", "16MiB")) as server:
            while (seconds := server.checkpoint_seconds()) is None:
                time.sleep(0.05)
        before = sum(path.stat().st_size for path in folder.rglob("*.log"))
        with serving(*durable(folder, "--journal-limit", "1TiB")) as server:
            server.step = step
            keys = keys_of(0, num_rows)
            for _ in range(journal_pushes):
                server.push(rng.choice(keys, BATCH), gradients[:BATCH])
            killed = time.perf_counter()
            server.end()
            with serving(*durable(folder, "--journal-limit", "1TiB")) as after:
                after.pull(keys[:BATCH])
                back = time.perf_counter() - killed
                said = re.search(
                    r"recovered .* checkpoint \d+ in (\S+) s, (\d+) records in (\S+) s", after.log()
                )
        journal_bytes = sum(path.stat().st_size for path in folder.rglob("*.log")) - before
        assert said is not None, after.log()
    return {
        "rows": num_rows,
        "write_checkpoint_seconds": seconds,
        "journal_bytes": journal_bytes,
        "kill_to_pull_seconds": back,
        "start_of_an_empty_server_seconds": start_seconds,
        "read_checkpoint_seconds": float(said[1]),
        "replay_seconds": float(said[3]),
        "replayed_records": float(said[2]),
    }


PARTS = ("push", "train", "recovery", "job")


def jobs_recovery(sizes: Sequence[int], *, quick: bool) -> dict[str, object]:
    """Kills servers and workers of jobs, and says what share of their time these then train."""
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        turns = 3 if quick else 10
        journal = show("journal", journal_cost(Path(name), rows=1_000_000, turns=turns))
        found = []
        for rows in sizes:
            figures = job_recovery(Path(name, f"{rows}"), rows=rows, kills=1 if quick else 2)
            figures["goodput"] = goodputs(figures, journal)
            found.append(show("job", figures))
    return {"journal": journal, "jobs": found}


def goodputs(job: dict[str, Any], journal: dict[str, Any]) -> list[dict[str, object]]:
    """Returns the goodput by mean time between failures and by who fails."""
    own = job["server_checkpoint"]
    journal_share = 1 - journal["journal alone"]["steps_of_none"]["median"]
    journal_share += own["training lost seconds"] / own["seconds until the next"]
    costs = Costs(
        ride=job["kill_server"]["seconds"],
        restart=job["kill_worker"]["seconds"],
        write=job["save"]["write seconds"],
        save=max(job["save"]["training lost seconds"], 0.0),
        journal_share=max(journal_share, 0.0),
    )
    return [
        {"mtbf": name, "servers": share, **asdict(goodput(costs, mtbf=seconds, servers=share))}
        for name, seconds in MTBFS.items()
        for share in (1.0, 0.5, 0.0)
    ]


def main() -> None:
    """Measures and prints what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, 1 million rows alone")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument("--only", choices=PARTS, help="one part; default: all")
    parser.add_argument("--rows", type=int, nargs="+", help="default: 1 and 10 million")
    flags = parser.parse_args()
    quick, wanted = flags.quick, PARTS if flags.only is None else (flags.only,)
    sizes = flags.rows or ([1_000_000] if quick else [1_000_000, 10_000_000])
    results: dict[str, object] = {"cores": os.cpu_count()}
    if "push" in wanted:
        results["push"] = show("push", push_cost(20 if quick else 100))
    if "train" in wanted:
        results["train"] = show("train", trainer_cost(1 if quick else 3))
    if "recovery" in wanted:
        results["recovery"] = [
            show("recovery", recovery(rows, 20 if quick else 100)) for rows in sizes
        ]
    if "job" in wanted:
        results["job"] = jobs_recovery(sizes, quick=quick)
    if flags.json:
        print(json.dumps(results))


def show(title: str, figures: dict[str, object]) -> dict[str, object]:
    """Prints figures, one a line, and returns them."""
    print(title)
    for name, value in figures.items():
        items = value if isinstance(value, list) else [value]
        for item in items:
            print(f"  {name:36} {item}", flush=True)
    return figures


if __name__ == "__main__":
    main()
