"""Do the stages overlap? Pipelined training beside the serial loop and the dense step alone.

One process trains; its tables are in it, or in one ps-server on this machine.
The three ways, and every staleness, take turns in each round, so that what else
the machine does hits all of them; figures are medians over rounds of ratios
within a round.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "ctr"))

import paddle  # noqa: E402
from dedup import measure as measure_dedup  # noqa: E402
from device import SleepingDevice, SmallModel  # noqa: E402
from models import DeepFM  # noqa: E402
from repeated import Repeated  # noqa: E402
from serial import Cost, DenseLoop, Meter, SerialLoop  # noqa: E402

import hetero_pipe as hp  # noqa: E402  # before Paddle

STALENESS = (0, 1, 2, 4)
NUM_CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Case:
    """A dense part to be kept busy.

    Attributes:
        name: For the tables.
        build: Returns the model and the optimizer of its dense part.
        num_steps: Of a run.
    """

    name: str
    build: Callable[[], tuple]
    num_steps: int


@contextmanager
def daemon() -> Iterator[tuple[str, int]]:
    """Starts a ps-server on a free port; gives its address and process id."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "ps_server", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process.pid
    finally:
        process.terminate()
        process.wait()


def cases(batches: Sequence[hp.Batch], *, quick: bool) -> list[Case]:
    """Returns the dense parts to measure."""
    slots, num_dense = tuple(batches[0].bags), batches[0].dense.shape[1]
    num_keys = batches[0].size * len(slots)

    def sleeping(seconds: float) -> tuple:
        return SleepingDevice(slots, num_keys, seconds), None

    def small(seconds: float) -> tuple:
        model = SmallModel(slots, seconds)
        return model, paddle.optimizer.Adam(parameters=model.parameters())

    def deepfm() -> tuple:
        model = DeepFM(slots, num_dense)
        return model, paddle.optimizer.Adam(parameters=model.parameters())

    sleeps = [5] if quick else [2, 5, 10]
    found = [
        Case(f"device {ms} ms", lambda ms=ms: sleeping(ms / 1e3), 40 if quick else 80)
        for ms in sleeps
    ]
    found.append(Case("small model + 5 ms", lambda: small(5e-3), 20 if quick else 60))
    if not quick:
        found.append(Case("DeepFM on the CPU", deepfm, 8))
    return found


def bound(dense: Cost, serial: Cost, staleness: int) -> tuple[float, str]:
    """Returns the batches a second that cannot be exceeded, and what does not allow more.

    Stage times are those of the serial run, the dense step's that of the dense
    loop::

        min(1 / dense, 1 / longest stage, (1 + k) / (pull + dense + push), cores / CPU)
    """
    device = dense.wall / dense.num_steps
    stage = {name: seconds / serial.num_steps for name, seconds in serial.stages.items()}
    cpu = (serial.cpu + serial.server_cpu) / serial.num_steps
    slowest = max(("route", "pull", "push"), key=lambda name: stage[name])
    rates = {
        "dense": 1 / device,
        slowest: 1 / stage[slowest],
        "gate": (1 + staleness) / (stage["pull"] + device + stage["push"]),
        "cores": NUM_CORES / cpu,
    }
    limit = min(rates, key=lambda name: rates[name])
    return rates[limit], limit


def measure(case: Case, batches: Sequence[hp.Batch], *, server: tuple | None, rounds: int) -> dict:
    """Returns the rounds of one case, tables embedded or on a server."""
    servers, pid = (None, None) if server is None else ([server[0]], server[1])
    reader = Repeated(batches, case.num_steps)
    sequence = list(reader)
    found: dict = {"case": case.name, "tables": "embedded" if server is None else "ps-server"}
    runs: dict[str, list[dict]] = {}
    timelines: dict[str, hp.Timeline] = {}
    with ExitStack() as stack:
        dense_loop = DenseLoop(*case.build(), batches)
        serial_loop = SerialLoop(*case.build(), servers)
        stack.callback(serial_loop.close)
        trainers = {}
        for staleness in STALENESS:
            model, optimizer = case.build()
            trainer = hp.Trainer(model, optimizer=optimizer, servers=servers, staleness=staleness)
            trainers[staleness] = stack.enter_context(trainer)
        for round_ in range(rounds + 1):  # the first makes the rows and warms the caches
            dense = dense_loop.run(case.num_steps)
            serial = serial_loop.run(sequence, pid)
            rate = dense.num_steps / dense.wall
            entries = {"dense only": entry(dense, rate), "serial": entry(serial, rate)}
            for staleness, trainer in trainers.items():
                with Meter(pid) as cost:
                    result = trainer.fit(reader, callbacks=[])
                cost.num_steps = result.num_steps
                limit, why = bound(dense, serial, staleness)
                name = f"k={staleness}"
                entries[name] = entry(cost, rate) | {
                    "of_bound": cost.num_steps / cost.wall / limit,
                    "bound": limit / rate,
                    "limit": why,
                    "over_serial": serial.wall / cost.wall,
                    "mean_staleness": result.mean_staleness,
                }
                found["advice"] = f"{name}: {result.summary.advice}"
                if round_ > 0:
                    timelines[name] = timelines.get(name, hp.Timeline()).plus(result.timeline)
            if round_ > 0:
                entries["serial"]["stages_ms"] = {
                    name: 1e3 * seconds / serial.num_steps
                    for name, seconds in serial.stages.items()
                }
                for name, each in entries.items():
                    runs.setdefault(name, []).append(each)
    found["runs"], found["timelines"] = runs, timelines
    return found


def entry(cost: Cost, rate: float) -> dict:
    """Returns a run as figures; `rate` is that of the dense step alone in the same round."""
    return {
        "batches_per_second": cost.num_steps / cost.wall,
        "of_dense": cost.num_steps / cost.wall / rate,
        "cpu_ms": 1e3 * cost.cpu / cost.num_steps,
        "server_cpu_ms": 1e3 * cost.server_cpu / cost.num_steps,
    }


def middle(runs: Sequence[dict], name: str) -> float:
    """Returns the median of a figure over the rounds."""
    return statistics.median(run[name] for run in runs)


def show(found: dict, batch_size: int) -> None:
    """Prints a case as a table, with its stages below."""
    print(f"\n{found['case']}, tables {found['tables']}")
    print(
        f"{'':12}{'batch/s':>9}{'samples/s':>11}{'of dense':>10}{'min':>6}{'max':>6}"
        f"{'/serial':>9}{'bound':>7}{'/bound':>8}  {'limit':7}"
        f"{'CPU ms':>8}{'server':>8}{'stale':>7}"
    )
    for name, runs in found["runs"].items():
        rate = middle(runs, "batches_per_second")
        shares = [run["of_dense"] for run in runs]
        line = f"{name:12}{rate:9.1f}{rate * batch_size:11,.0f}{statistics.median(shares):10.3f}"
        line += f"{min(shares):6.2f}{max(shares):6.2f}"
        if "bound" in runs[0]:
            limits = [run["limit"] for run in runs]
            line += f"{middle(runs, 'over_serial'):9.2f}{middle(runs, 'bound'):7.2f}"
            line += f"{middle(runs, 'of_bound'):8.2f}  {statistics.mode(limits):7}"
        else:
            line += " " * 33
        line += f"{middle(runs, 'cpu_ms'):8.2f}{middle(runs, 'server_cpu_ms'):8.2f}"
        if "mean_staleness" in runs[0]:
            line += f"{middle(runs, 'mean_staleness'):7.2f}"
        print(line)
    serial = found["runs"]["serial"]
    stages = {name: [run["stages_ms"][name] for run in serial] for name in serial[0]["stages_ms"]}
    medians = (f"{name} {statistics.median(values):.2f}" for name, values in stages.items())
    print(f"serial, ms a stage: {', '.join(medians)}")
    timeline = found["timelines"]["k=2"]
    print(f"k=2, ms a step, busiest: {timeline.bottleneck}\n{timeline}")
    print(found["advice"], flush=True)


def main() -> None:
    """Measures every case and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one sleep, 3 rounds")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--dedup", action="store_true", help="distinct keys alone")
    flags = parser.parse_args()
    rounds = 3 if flags.quick else flags.rounds
    batch_size, num_batches = 4096, 16
    batches = list(hp.synthetic_criteo(num_samples=batch_size * num_batches, seed=1))
    dedups = measure_dedup(batches, rounds)
    print(f"distinct keys of {dedups[0]['num_keys']}, CPU ms a batch")
    for each in dedups:
        print(
            f"{each['keys']:14}{each['num_unique']:9,.0f}  {each['way']:28}{each['cpu_ms']:7.2f} "
            f"[{each['min']:.2f}, {each['max']:.2f}]"
        )
    results = []
    for case in [] if flags.dedup else cases(batches, quick=flags.quick):
        results.append(measure(case, batches, server=None, rounds=rounds))
        show(results[-1], batch_size)
        with daemon() as server:
            results.append(measure(case, batches, server=server, rounds=rounds))
        show(results[-1], batch_size)
    if flags.json:
        for found in results:
            found["timelines"] = {
                name: {stage.name: vars(stage) for stage in timeline.stages}
                for name, timeline in found["timelines"].items()
            }
        print(json.dumps({"cores": NUM_CORES, "dedup": dedups, "cases": results}))


if __name__ == "__main__":
    main()
