"""Do copies and kernels of a device overlap with the rest? On a device that is emulated.

Stages one after another, then overlapped in one process, then in several. All ways
take turns in each round; README.md beside this file tells what is measured.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict

import emulated

if "CUSTOM_DEVICE_ROOT" not in os.environ:  # Paddle looks there when it is imported
    device = emulated.environment(emulated.build(), memory=4 << 30)
    os.execve(sys.executable, [sys.executable, *sys.argv], {**device, **os.environ})

import paddle
from job import JOBS, run_job
from one_process import WAYS, OneProcess
from run import HEADER, Run, row
from stated import BATCH, NAME

import hetero_pipe as hp

NUM_BATCHES, WARM_STEPS = 8, 16


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="5 ms alone, one round of 30 batches")
    add("--json", action="store_true", help="last line is one JSON object")
    add("--rounds", type=int, help="default: 3")
    add("--batches", type=int, help="of a run; default: 100")
    add("--ms", type=float, nargs="+", help="of a batch's kernels; default: 10 5 2")
    add("--ways", choices=["process", "jobs"], help="one process, or several; default: both")
    add("--verbose", action="store_true", help="show what the processes of a job say")
    flags = parser.parse_args()
    rounds = flags.rounds or (1 if flags.quick else 3)
    num_steps = flags.batches or (30 if flags.quick else 100)
    paddle.set_device(NAME)
    batches = list(hp.synthetic_criteo(num_samples=NUM_BATCHES * BATCH, batch_size=BATCH, seed=1))
    found: dict[tuple[float, str], list[Run]] = {}
    print(HEADER)
    for milliseconds in flags.ms or ([5.0] if flags.quick else [10.0, 5.0, 2.0]):
        runs: dict[str, list[Run]] = {}
        with OneProcess(batches, milliseconds / 1e3) as process:
            ways = () if flags.ways == "jobs" else WAYS
            for way in ways:
                process.run(way, WARM_STEPS)  # makes rows and buffers
            for _ in range(rounds):
                for way in ways:
                    runs.setdefault(way, []).append(process.run(way, num_steps))
                for job in () if flags.ways == "process" else JOBS:
                    run = run_job(
                        job, milliseconds=milliseconds, num_steps=num_steps, verbose=flags.verbose
                    )
                    runs.setdefault(str(job), []).append(run)
        for way, of_way in runs.items():
            found[milliseconds, way] = of_way
            print(row(milliseconds, way, of_way), flush=True)
    if flags.json:
        told = [
            {"is_emulated": True, "ms": milliseconds, "way": way, "share": run.share, **asdict(run)}
            for (milliseconds, way), of_way in found.items()
            for run in of_way
        ]
        print(json.dumps({"cores": os.cpu_count(), "runs": told}))


if __name__ == "__main__":
    main()
