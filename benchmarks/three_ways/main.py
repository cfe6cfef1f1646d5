"""Heterogeneous over CPU-only and over GPU-only: where does it pay?

Three ways to train one model on the machines of cluster.toml here, each by the plan
that the planner takes of it: CPU hosts alone, GPU hosts alone, both together. What each
does is predicted by CostModel, and simulated, as batch, width of the dense part and
rows of the tables vary. Then the planner chooses of all of them. Nothing is trained.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "ctr"))

import numpy as np  # noqa: E402
from models import DeepFM  # noqa: E402
from picture import draw  # noqa: E402
from ways import WAYS, Found, Point, Way, best, described  # noqa: E402

import hetero_pipe as hp  # noqa: E402
from hetero_pipe.cluster import Cluster, load_cluster  # noqa: E402
from hetero_pipe.cost import CostModel, Workload  # noqa: E402
from hetero_pipe.data import occurrences  # noqa: E402
from hetero_pipe.nn import BatchSpec, trace  # noqa: E402

NUM_DENSE = 13
BATCHES = (512, 4096, 32768)
WIDTHS = (64, 256, 1024, 4096, 8192)
# Rows of each table, and cores of a GPU host: the preset has 48 for its 8 GPUs.
COLUMNS = ((1e9, 48), (1e9, 8), (4e9, 8), (7e9, 48))
QUICK = ((4096,), (256, 4096), ((4e9, 8), (7e9, 48)))


def sample_of_distinct(sizes: Sequence[int] = (1024, 16384)) -> list[tuple[int, float]]:
    """Returns how many distinct keys batches of Criteo's form have."""
    batch = next(iter(hp.synthetic_criteo(num_samples=sizes[-1], batch_size=sizes[-1], seed=1)))
    keys = occurrences(batch, tuple(batch.bags))
    num_slots = len(keys) // sizes[-1]
    by_slot = keys.reshape(num_slots, sizes[-1])  # slot after slot, one key a sample
    return [(size, float(len(np.unique(by_slot[:, :size])))) for size in sizes]


def models(widths: Sequence[int]) -> Iterator[tuple[int, object]]:
    """Yields the graph of a DeepFM with three hidden layers of each width."""
    slots = tuple(f"C{i}" for i in range(1, 27))
    for width in widths:
        layer = DeepFM(slots, NUM_DENSE, hidden=(width, width, width))
        yield width, trace(layer, BatchSpec(keys=dict.fromkeys(slots, 1.0), dense=NUM_DENSE))


def points(
    batches: Sequence[int], widths: Sequence[int], columns: Sequence[tuple[float, int]]
) -> Iterator[Point]:
    """Yields every point: each way at its best, and the best of all."""
    stated = load_cluster(Path(__file__).parent / "cluster.toml")
    distinct = sample_of_distinct()
    no_room: set[tuple[float, int, Way]] = set()  # nor for a larger batch or width
    for width, graph in models(widths):
        names = [table.name for table in graph.tables]
        for rows, cores in columns:
            workload = Workload(
                graph,
                rows=dict.fromkeys(names, rows),
                distinct=dict.fromkeys(names, distinct),
                num_dense=NUM_DENSE,
                skew=1.05,
            )
            model = CostModel(with_cores(stated, cores), workload)
            for batch in batches:
                found = {}
                for way in WAYS:
                    is_hopeless = (rows, cores, way) in no_room
                    found[way] = Found(None) if is_hopeless else best(way, model, batch)
                    if found[way].plan is None:
                        no_room.add((rows, cores, way))
                chosen = best(None, model, batch)
                yield Point(batch, width, rows, cores, found, chosen)


def with_cores(cluster: Cluster, cores: int) -> Cluster:
    """Returns the cluster with so many cores in a GPU host."""
    hosts = []
    for host in cluster.hosts:
        devices = tuple(
            replace(each, cores=cores) if (host.name, each.kind) == ("trainer", "cpu") else each
            for each in host.devices
        )
        hosts.append(replace(host, devices=devices))
    return replace(cluster, hosts=tuple(hosts))


def show(point: Point) -> None:
    """Prints a point as a line."""
    cells = []
    for found in (*point.found.values(), point.chosen):
        if found.plan is None:
            cells.append(f"{'does not fit':>23}")
            continue
        cells.append(f"{found.predicted:11,.0f}{found.simulated:12,.0f}")
    ratios = [point.over(Way.CPU_ONLY), point.over(Way.GPU_ONLY)]
    said = "".join("       -" if ratio is None else f"{ratio:8.2f}" for ratio in ratios)
    head = f"{point.rows:8.0e}{point.cores:6}{point.batch:7}{point.width:6}"
    won = "" if point.is_won else "not won: "
    print(f"{head}{''.join(cells)}{said}  {won}{described(point.chosen.plan)}", flush=True)


def main() -> None:
    """Computes every point, prints a table, draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four points")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument("--picture", metavar="FILE", type=Path, help="write an SVG")
    flags = parser.parse_args()
    grid = QUICK if flags.quick else (BATCHES, WIDTHS, COLUMNS)
    print("samples/s, predicted and simulated; heterogeneous over CPU-only and over GPU-only")
    print(
        f"{'rows':>8}{'cores':>6}{'batch':>7}{'width':>6}"
        + "".join(f"{name:>23}" for name in (*(way.value for way in WAYS), "chosen of all"))
        + f"{'/CPU':>8}{'/GPU':>8}  what was chosen"
    )
    found = []
    for point in points(*grid):
        found.append(point)
        show(point)
    num_won = sum(point.is_won for point in found)
    least = min(point.simulated_share for point in found)
    print(f"the planner chose the winner at {num_won} of {len(found)} points", end="; ")
    print(f"simulated, its choice is at least {least:.2f} of the best of the three")
    if flags.picture is not None:
        flags.picture.write_text(draw(found))
    if flags.json:
        print(json.dumps({"points": [point.to_dict() for point in found], "num_won": num_won}))


if __name__ == "__main__":
    main()
