"""One worker of a configuration, in a process of its own; tells as JSON what it measured.

Its memory counts from when the libraries are loaded and warm and the batches are there, so
that what is added is of tables, dense part, and batches under way.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "overlap"))

import hetero_pipe as hp

if __name__ == "__main__":
    hp.launch.begin()

import numpy as np
import paddle
from config import Config
from example import model_of, optimizer_of
from memory import peak_bytes, reset_peak, resident_bytes
from repeated import Repeated
from samples import Samples

SECONDS = 2.0  # of a timed run, if that is from 16 to 600 steps
LEAST_STEPS, MOST_STEPS = 16, 600
NUM_PARTS = 8  # of a timed run
NUM_DRAINING = 2  # steps at the end that have more of the machine than the others


class StepTimes:
    """Notes when each step was done."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step(self, report: Any) -> None:
        """Is called after each step."""
        self.times.append(time.perf_counter())

    def on_epoch(self, epoch: int, evaluation: Any) -> None:
        """Is called after each epoch."""

    def steady(self, num_filling: int) -> float:
        """Returns the seconds between two steps, without the first ones and the last.

        They are the mean of a part of the run, and of all parts the median: what disturbs
        the machine for a moment is in few of them.
        """
        times = self.times[num_filling:-NUM_DRAINING]
        ends = np.linspace(0, len(times) - 1, min(NUM_PARTS, len(times) - 1) + 1).astype(int)
        parts = [(times[b] - times[a]) / (b - a) for a, b in pairwise(ends)]
        return statistics.median(parts)


def trained_model(config: Config, stage: str, **sizes: object) -> tuple[Any, Any]:
    """Returns the model that a worker of a stage trains, and its optimizer."""
    model = model_of(config, **sizes)
    if not config.is_emulated:
        return model, optimizer_of(model)
    from stated import Stated  # noqa: PLC0415  # asks for the device

    return Stated(model, config.device_ms / 1e3, is_pooled=stage != "whole"), None


def warm_up_libraries(config: Config, stage: str) -> None:
    """Trains two steps of a tiny model, which loads what Paddle loads when it is first used."""
    if stage == "sparse":  # the device is the dense worker's
        config = replace(config, device="cpu")
    tiny = replace(config, batch_size=8, rows=4 * config.slots, dim=4, device_ms=0.0)
    model, optimizer = trained_model(tiny, "whole", hidden=(8,))
    with hp.Trainer(model, optimizer=optimizer) as trainer:
        trainer.fit(Repeated(Samples.of(tiny).steady, 2), callbacks=[])


def main(arguments: Sequence[str]) -> None:
    """Fills the tables, warms up, measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=json.loads, required=True)
    hp.launch.add_arguments(parser)
    flags = parser.parse_args(arguments)
    config = Config(**flags.config)
    worker = hp.launch.worker(flags)
    paddle.seed(0)
    if config.is_emulated and worker.stage != "sparse":
        paddle.set_device("emulated:0")
    warm_up_libraries(config, worker.stage)
    samples = Samples.of(config)
    tell({"ready": True})
    if worker.stage != "dense":
        sys.stdin.readline()  # memory of the servers is noted meanwhile
    before = resident_bytes()
    reset_peak()
    model, optimizer = trained_model(config, worker.stage)
    plan = hp.default_plan(
        model,
        servers=flags.servers,
        staleness=config.staleness,
        workers=hp.launch.workers_plan(flags),
    )
    with hp.Trainer(model, optimizer=optimizer, plan=plan, worker=worker) as trainer:
        trainer.fit(Repeated(samples.fill, len(samples.fill)), callbacks=[])
        trainer.fit(Repeated(samples.steady, len(samples.steady)), callbacks=[])
        warm = trainer.fit(Repeated(samples.steady, len(samples.steady)), callbacks=[])
        step = warm.seconds / len(samples.steady)
        num_steps = min(max(int(SECONDS / step), LEAST_STEPS), MOST_STEPS)
        speeds = [core_speed()] if worker.stage != "dense" else []
        tell({"begins": True})
        times, cpu = StepTimes(), time.process_time()
        result = trainer.fit(Repeated(samples.steady, num_steps), callbacks=[times])
        cpu = time.process_time() - cpu
        num_steps = result.num_steps  # of a dense worker, those of who reads
        speeds += [core_speed()] if worker.stage != "dense" else []
        num_rows = trainer.num_rows() if worker.stage != "dense" else {}
    found = {
        "cpu": cpu / num_steps,
        "num_steps": num_steps,
        "num_rows": num_rows,
        "peak_bytes": peak_bytes() - before,
        "stages": {
            stage.name: {"busy": stage.busy / num_steps, "cpu": stage.cpu / num_steps}
            for stage in result.timeline.stages
        },
    }
    if worker.stage != "dense":
        found["core_speed"] = statistics.mean(speeds)
        found["step"] = times.steady(4 + config.staleness)
    tell(found)


def core_speed() -> float:
    """Returns the FLOP/s of a core right now, by matmuls that its caches hold."""
    one = paddle.to_tensor(np.ones((256, 256), np.float32), place=paddle.CPUPlace())
    times = []
    for _ in range(20):
        start = time.perf_counter()
        paddle.matmul(one, one)
        times.append(time.perf_counter() - start)
    return 2 * 256**3 / statistics.median(times)


def tell(found: dict[str, Any]) -> None:
    """Prints a line for who started this."""
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    hp.launch.run(main)
