"""How fast is the simulator, and does it tell what the executor does?

(1) 100 workers of 1,000 steps are simulated, on one core. (2) The configurations of
benchmarks/overlap with a sleeping device: each stage is measured alone, a run is
simulated from that, and run; throughput and bottleneck are compared.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "overlap"))

from compare import Result, compare
from runs import QUIET

from hetero_pipe.cluster import Cluster, Device, Host, Link, Switch
from hetero_pipe.plan import (
    Breakdown,
    Part,
    Plan,
    Prediction,
    ProcessPlan,
    StagePlan,
    StagePrediction,
)
from hetero_pipe.simulate import Simulation, simulate

NUM_WORKERS = 100
MACHINES = 25  # with 4 workers each, and as many servers' machines

# Milliseconds and resources, as CostModel has them of a GPU worker and its servers.
REQUEST = (
    ("message", 1.0, "worker"),
    ("message", 0.2, "server"),
    ("table", 0.2, "server"),
    ("network", 1.0, "network"),
    ("latency", 0.1, "wait"),
    ("call", 0.2, "worker"),
    ("call", 0.2, "server"),
    ("call", 0.2, "wait"),
)
STAGES = {
    "read": (("read", 1.0, "worker"),),
    "route": (("route", 2.0, "worker"),),
    "pull": (*REQUEST, ("upload", 0.2, "network")),
    "dense": (("launch", 1.0, "worker"), ("matmul", 4.0, "device"), ("step", 0.3, "worker")),
    "push": REQUEST,
}


def many_workers(num_steps: int, *, is_recorded: bool) -> tuple[Simulation, float]:
    """Returns a simulated run of 100 workers, and the seconds of a core that it took."""
    hosts = (
        Host("trainer", (Device("cpu", memory=1 << 36, cores=48),), count=MACHINES),
        Host("server", (Device("cpu", memory=1 << 36, cores=48),), count=MACHINES),
    )
    links = tuple(Link((host.name, "leaf"), "NIC", 12.5e9, 5e-6) for host in hosts)
    capacities = {"read": 4, "route": 2, "pull": 3, "dense": 1, "push": 16}
    plan = Plan(
        stages=tuple(StagePlan(name, "cpu", capacity) for name, capacity in capacities.items()),
        tables=(),
        staleness=2,
        processes=(
            ProcessPlan("server", "server", "cpu", MACHINES),
            ProcessPlan("whole", "trainer", "cpu", MACHINES, NUM_WORKERS // MACHINES),
        ),
    )
    stages = []
    for name, parts in STAGES.items():
        cost = Breakdown(tuple(Part(label, ms / 1e3, on) for label, ms, on in parts))
        stages.append(StagePrediction(name, "whole", cost, cost.total))
    prediction = Prediction(6e-3, 4096.0 * NUM_WORKERS, tuple(stages), (), (Part("dense", 6e-3),))
    start = time.process_time()
    found = simulate(
        plan,
        cluster=Cluster(hosts, links, (Switch("leaf"),)),
        num_steps=num_steps,
        prediction=prediction,
        is_recorded=is_recorded,
    )
    return found, time.process_time() - start


def speed(num_steps: int) -> dict:
    """Returns what so many workers take to simulate, with and without spans."""
    found = {}
    for name, is_recorded in (("without spans", False), ("with spans", True)):
        run, seconds = many_workers(num_steps, is_recorded=is_recorded)
        assert run.is_whole
        found[name] = seconds
    num_parts = NUM_WORKERS * num_steps * sum(map(len, STAGES.values()))
    return found | {"num_steps": num_steps, "num_workers": NUM_WORKERS, "num_parts": num_parts}


def show(result: Result) -> None:
    """Prints a configuration as a line."""
    measured, simulated = result.bottleneck
    same = "same" if measured == simulated else "tie" if result.is_near_tie else "OTHER"
    print(
        f"{result.tables:10}{result.device_ms:4} ms{result.staleness:4}"
        f"{result.measured:10.2f} [{result.spread[0]:.2f}, {result.spread[1]:.2f}]"
        f"{result.simulated:10.2f}{result.error:+8.1%}{result.plain:9.2f}"
        f"   {measured} {simulated} ({same}){result.others:8.2f}",
        flush=True,
    )


def _load(path: Path | None) -> list[Result]:
    if path is None or not path.exists():
        return []
    return [Result.from_dict(each) for each in json.loads(path.read_text())]


def _save(path: Path | None, results: Sequence[Result]) -> None:
    if path is not None:
        path.write_text(json.dumps([result.to_dict() for result in results]))


def main() -> None:
    """Measures the speed, then compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 steps; one device")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument("--rounds", type=int, default=4, help="default: 4")
    parser.add_argument("--tables", choices=("embedded", "ps-server"), help="these alone")
    parser.add_argument("--devices", type=int, nargs="+", metavar="MS", help="default: 2 5 10")
    parser.add_argument("--speed", action="store_true", help="the first part alone")
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="goes on with what it has, and adds to it"
    )
    flags = parser.parse_args()
    fast = speed(100 if flags.quick else 1000)
    print(
        f"{fast['num_workers']} workers, {fast['num_steps']} steps, {fast['num_parts']:,} parts: "
        f"{fast['without spans']:.1f} s on a core, {fast['with spans']:.1f} s with spans"
    )
    results = _load(flags.state)
    tables = [flags.tables] if flags.tables else ["embedded", "ps-server"]
    devices = flags.devices or ([5] if flags.quick else [2, 5, 10])
    if not flags.speed:
        print(
            "\ntables      device   k  measured, ms a step      simulated   error   stages "
            "alone   busiest, measured and simulated   others' cores"
        )
        for result in results:
            show(result)
        done = {(result.tables, result.device_ms) for result in results}
        which = [(name, ms) for name in tables for ms in devices if (name, ms) not in done]
        for result in compare(which, rounds=flags.rounds):
            results.append(result)
            show(result)
            _save(flags.state, results)
        errors = [abs(result.error) for result in results]
        within = sum(error <= 0.1 for error in errors)
        right = sum(len(set(r.bottleneck)) == 1 or r.is_near_tie for r in results)
        print(
            f"throughput within 10% in {within} of {len(results)}, median error "
            f"{statistics.median(errors):.1%}, worst {max(errors):.1%}; bottleneck the same, or "
            f"as busy to a tenth, in {right}"
        )
        if any(result.others > QUIET for result in results):
            print("others held cores meanwhile: what is measured is too slow, see the last column")
    if flags.json:
        print(json.dumps({"speed": fast, "results": [result.to_dict() for result in results]}))


if __name__ == "__main__":
    main()
