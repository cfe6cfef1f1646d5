"""How much of a wire between two hosts do sparse workers, dense workers and servers use?

Two network namespaces of this machine are the hosts, joined by a wire at full speed
and at 1 Gbit/s. In each run the wire is first measured by one TCP connection, then
the job trains across it; bytes are those that the interfaces have counted. Needs
root and iproute2.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from network import Host, two_hosts, wire_limit

ROOT = Path(__file__).parents[2]
JOB = str(Path(__file__).parent / "job.py")
SERVER_PORT, COORDINATOR_PORT, DENSE_PORT = 7000, 7100, 7200


@dataclass(frozen=True)
class Layout:
    """Which host, 0 or 1, has the server, the sparse worker and the dense worker.

    A whole worker, where `dense` is None, stands where `sparse` says.
    """

    name: str
    server: int
    sparse: int
    dense: int | None
    wire: str = "float32"


LAYOUTS = (
    Layout("server, sparse | dense", 0, 0, 1),
    Layout("server, sparse | dense, bfloat16", 0, 0, 1, "bfloat16"),
    Layout("server | sparse, dense", 0, 1, 1),
    Layout("server | whole", 0, 1, None),
)


@dataclass(frozen=True)
class Run:
    """What one run gave.

    Attributes:
        samples_per_second: Trained.
        bytes_per_sample: That crossed the wire in its busier direction, headers too.
        wire_bytes_per_second: What the wire carries, measured in this run.
        bottleneck: The busiest stage of the worker that reads.
    """

    samples_per_second: float
    bytes_per_sample: float
    wire_bytes_per_second: float
    bottleneck: str

    @property
    def limit(self) -> float:
        """Samples a second that the wire would carry."""
        return self.wire_bytes_per_second / self.bytes_per_sample


@contextlib.contextmanager
def started(host: Host, command: Sequence[str], **options: object) -> Iterator[subprocess.Popen]:
    """Runs a Python command on a host; it is ended with the block."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        host.command([sys.executable, *command]), env=environment, text=True, **options
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def train(
    hosts: Sequence[Host], layout: Layout, *, steps: int, staleness: int, verbose: bool
) -> Run:
    """Trains once across the wire that is there."""
    limits = [wire_limit(hosts[0], hosts[1]), wire_limit(hosts[1], hosts[0])]
    before = [host.bytes_sent() for host in hosts]
    server = f"{hosts[layout.server].address}:{SERVER_PORT}"
    readers_host = hosts[layout.sparse]
    flags = [JOB, "--steps", str(steps), "--servers", server, "--staleness", str(staleness)]
    silent = None if verbose else subprocess.DEVNULL
    with contextlib.ExitStack() as stack:
        serve = ["-m", "ps_server", "--listen", server, "--num-workers", "1"]
        stack.enter_context(started(hosts[layout.server], serve, stdout=silent, stderr=silent))
        reader = flags
        if layout.dense is not None:
            dense = f"{hosts[layout.dense].address}:{DENSE_PORT}"
            meet = f"{readers_host.address}:{COORDINATOR_PORT}"
            flags += ["--dense-workers", dense, "--coordinator", meet, "--wire", layout.wire]
            command = [*flags, "--stage", "dense"]
            stack.enter_context(started(hosts[layout.dense], command, stdout=silent, stderr=silent))
            reader = [*flags, "--stage", "sparse"]
        process = stack.enter_context(
            started(readers_host, reader, stdout=subprocess.PIPE, stderr=silent)
        )
        told, _ = process.communicate(timeout=600)
        if process.returncode != 0:
            sys.exit(f"error: the worker that reads exited with {process.returncode}")
    found = json.loads(told.splitlines()[-1])
    sent = [host.bytes_sent() - start for host, start in zip(hosts, before, strict=True)]
    busier = sent.index(max(sent))
    return Run(
        found["samples_per_second"],
        sent[busier] / found["samples"],
        limits[busier],
        found["bottleneck"],
    )


def main() -> None:
    """Measures every layout on every wire, by turns, and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round of 30 steps")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument("--rounds", type=int, help="default: 3")
    parser.add_argument("--staleness", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--verbose", action="store_true", help="show what the processes say")
    flags = parser.parse_args()
    rounds, steps = flags.rounds or (1 if flags.quick else 3), 30 if flags.quick else 100
    runs: dict[tuple[str, str], list[Run]] = {}
    for _ in range(rounds):
        for wire, megabits in (("full speed", None), ("1 Gbit/s", 1000)):
            for layout in LAYOUTS:
                with two_hosts(megabits=megabits) as hosts:
                    run = train(
                        hosts,
                        layout,
                        steps=steps,
                        staleness=flags.staleness,
                        verbose=flags.verbose,
                    )
                runs.setdefault((wire, layout.name), []).append(run)
                print(f"{wire}, {layout.name}: {run.samples_per_second:,.0f} samples/s", flush=True)
    print(
        f"\n| wire | {'hosts':32} | samples/s | bytes a sample | wire's limit | share | busiest |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (wire, name), found in runs.items():
        shares = [run.samples_per_second / run.limit for run in found]
        print(
            f"| {wire} | {name:32} | {_median(found, 'samples_per_second'):,.0f} "
            f"| {_median(found, 'bytes_per_sample'):,.0f} | {_median(found, 'limit'):,.0f} "
            f"| {statistics.median(shares):.2f} ({min(shares):.2f}, {max(shares):.2f}) "
            f"| {found[-1].bottleneck} |"
        )
    if flags.json:
        rows = [
            {"wire": wire, "hosts": name, "limit": run.limit, **asdict(run)}
            for (wire, name), found in runs.items()
            for run in found
        ]
        print(json.dumps({"runs": rows}))


def _median(runs: Sequence[Run], name: str) -> float:
    return statistics.median(getattr(run, name) for run in runs)


if __name__ == "__main__":
    main()
