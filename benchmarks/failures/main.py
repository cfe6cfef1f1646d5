"""How many long jobs fail, and how busy is a cluster, with and without each mechanism?

Clusters are simulated by discrete events, with the failure rates of a published one.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cluster import After, Job, Way, run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent


def ways(recovery: Mapping[str, float]) -> dict[str, Way]:
    """Returns each way to live with failures, with one mechanism more than the one before."""
    saves = 1 - recovery["checkpoint_share"]
    rides = saves - recovery["journal_share"]
    restart = Way(
        After.RESTART,
        pause=recovery["restart_seconds"] / 3600,
        checkpoint_every=recovery["checkpoint_every"],
        speed=saves,
        restarts=recovery["restarts"],
    )
    ride = Way(After.RIDE, pause=recovery["ride_seconds"] / 3600, speed=rides)
    elastic = {"least": recovery["least"], "scale_pause": recovery["scale_seconds"] / 3600}
    return {
        "nothing": Way(After.END),
        "restart from a checkpoint": restart,
        "journal, ride through": ride,
        "elastic alone": Way(After.END, **elastic),
        "all": Way(After.RIDE, pause=ride.pause, speed=rides, **elastic),
    }


def arrivals(stated: Mapping, rng: random.Random) -> Iterator[Job]:
    """Yields jobs as they come, by chance in time and size."""
    kinds, cluster = stated["jobs"], stated["cluster"]
    mean = 1.0
    for name in ("hosts", "length"):
        mean *= sum(value * share for value, share in kinds[name])
    now, until = 0.0, 24.0 * cluster["days"]
    while (now := now + rng.expovariate(kinds["load"] * cluster["hosts"] / mean)) < until:
        hosts, length = (rng.choices(*zip(*kinds[k], strict=True))[0] for k in ("hosts", "length"))
        yield Job(hosts, float(length), now)


def outcome(stated: Mapping, way: Way, seed: int) -> dict[str, float]:
    """Returns what came of one cluster; jobs and seed are the same for each way."""
    cluster, failures = stated["cluster"], stated["failures"]
    rate = failures["interruptions"] / (failures["days"] * 24 * failures["hosts"])
    jobs = list(arrivals(stated, random.Random(seed)))
    until = 24.0 * cluster["days"]
    rng = random.Random(seed + 1_000_000)
    run(jobs, hosts=cluster["hosts"], rate=rate, way=way, until=until, rng=rng)
    late = [job for job in jobs if job.arrives >= 24 * cluster["first_days"]]
    ended = [job for job in late if job.ends is not None and job.length >= stated["jobs"]["long"]]
    useful = sum(job.hosts * job.done for job in jobs if not job.has_failed)
    held = sum(job.host_hours for job in jobs)
    return {
        "long jobs that fail": sum(job.has_failed for job in ended) / len(ended),
        "goodput": useful / held,
        "hosts held": held / (cluster["hosts"] * until),
        "useful": useful / (cluster["hosts"] * until),
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns a mean, and half its interval of 95%, by the normal distribution."""
    return statistics.mean(values), 1.96 * statistics.stdev(values) / len(values) ** 0.5


def main() -> None:
    """Simulates each way with each seed, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 seeds instead of 20")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument("--recovery", metavar="FILE", type=Path, help="TOML: measured [recovery]")
    flags = parser.parse_args()
    stated = tomllib.loads((HERE / "stated.toml").read_text())
    recovery = stated["recovery"]
    if flags.recovery is not None:
        recovery = {**recovery, **tomllib.loads(flags.recovery.read_text())["recovery"]}
    if not recovery["is_measured"]:
        print("recovery times are placeholders, not measured")
    table = {}
    for name, way in ways(recovery).items():
        found = [outcome(stated, way, seed) for seed in range(3 if flags.quick else 20)]
        table[name] = {what: interval([each[what] for each in found]) for what in found[0]}
        cells = (f"{what} {mean:6.3f} +- {half:5.3f}" for what, (mean, half) in table[name].items())
        print(f"{name:28}" + "   ".join(cells), flush=True)
    if flags.json:
        print(json.dumps({"is_measured": recovery["is_measured"], "ways": table}))


if __name__ == "__main__":
    main()
