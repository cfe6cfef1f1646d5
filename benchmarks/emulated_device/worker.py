"""One worker of a job, started by `hetero-pipe worker`; its dense part is on the emulated device.

Trains some batches that fill tables and buffers, says so, trains those that are timed, and
tells as JSON what that took here.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import hetero_pipe as hp

if __name__ == "__main__":
    hp.launch.begin()

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "overlap")]

import paddle  # noqa: E402
from repeated import Repeated  # noqa: E402
from run import busy_shares  # noqa: E402
from stated import BATCH, NAME, StatedTime  # noqa: E402

NUM_BATCHES, WARM_STEPS = 8, 16


def main(arguments: list[str]) -> None:
    """Trains twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ms", type=float, required=True, help="of a batch's kernels")
    parser.add_argument("--steps", type=int, required=True, help="timed, of all readers together")
    hp.launch.add_arguments(parser)
    flags = parser.parse_args(arguments)
    reader = hp.synthetic_criteo(num_samples=NUM_BATCHES * BATCH, batch_size=BATCH, seed=1)
    batches = list(reader.batches(0)) if flags.stage != "dense" else [next(reader.batches(0))]
    if flags.stage != "sparse":
        paddle.set_device(NAME)
    model = StatedTime(reader.slots, flags.ms / 1e3, is_pooled=flags.stage != "whole")
    plan = hp.default_plan(
        model,
        servers=flags.servers,
        staleness=flags.staleness,
        workers=hp.launch.workers_plan(flags),
    )
    with hp.Trainer(model, plan=plan, worker=hp.launch.worker(flags)) as trainer:
        trainer.fit(Repeated(batches, WARM_STEPS), callbacks=[])
        print("begins", flush=True)
        cpu = time.process_time()
        result = trainer.fit(Repeated(batches, flags.steps), callbacks=[])
        cpu = time.process_time() - cpu
        found = {
            "samples": result.num_samples,
            "seconds": result.seconds,
            "cpu": cpu,
            "busy": busy_shares(
                result.timeline,
                result.seconds,
                "" if flags.stage == "whole" else f"{flags.stage} worker's ",
            ),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    hp.launch.run(main)
