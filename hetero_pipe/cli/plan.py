"""`hetero-pipe plan`: which plan is best for a model on a cluster, and why."""

import argparse
import json
import math
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hetero_pipe.cli.model import load_model
from hetero_pipe.cli.plan_layers import NO_PLAN, check_layers, run_layers
from hetero_pipe.cli.this_host import few_words, this_host
from hetero_pipe.cluster import Cluster, load_cluster
from hetero_pipe.codec import encode
from hetero_pipe.cost import CostModel, Workload, load_corrections, workload_of
from hetero_pipe.data import Reader, measure_statistics, read_csv, read_parquet
from hetero_pipe.errors import ConfigError, PlanError
from hetero_pipe.plan import WIRES
from hetero_pipe.planner import (
    AIMS,
    PLANNED_MODES,
    Aim,
    Progress,
    Proposal,
    Space,
    explain,
    propose,
)

__all__ = ["add_to"]

DESCRIPTION = """\
Chooses where the tables and the layers of a model run on a cluster, how many
servers and workers there are, the batch and the staleness, and says why: what
each stage and each memory is made of, what bounds the step, what it costs, and
the best plan of each other kind. Nothing is trained.
"""

EPILOG = """\
examples:
  hetero-pipe plan --model examples/ctr/models/deepfm.py:DeepFM
                                        on this host, with the bundled data
  hetero-pipe plan --model examples/ctr/models/deepfm.py:DeepFM \\
      --cluster examples/ctr/cluster.toml --rows embedding=1e9 --rows first_order=1e9
  hetero-pipe plan --model model.py:Model --cluster cluster.toml \\
      --data 'day_*.parquet' --dense age,price --objective money --throughput 1e6 --json
  hetero-pipe plan --model examples/ctr/models/deepfm.py:DeepFM \\
      --cluster examples/ctr/cluster.toml --layers --objective money --throughput 1e6
                                        which layers run on servers, CPUs and GPUs, on
                                        how many cores and GPUs, whatever a Trainer can do

Where nothing fits, it says which table or stage, by how much, and the cheapest
changes with which a plan would; it then exits with 3, as it does if no plan was
found in time. A search of over five seconds tells on stderr how far it is.
"""

BATCHES = (256, 512, 1024, 2048, 4096, 8192)
SAMPLE = Path("data/movielens/movielens.parquet")
STOPPED = 130  # as a shell tells of a process that Ctrl-C has ended
TOLD_EVERY = 5.0  # seconds
CACHES = (0, 100_000, 1_000_000)


def add_to(commands: Any) -> None:  # argparse's sub-parsers, whose class is private
    """Adds the sub-command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "plan",
        help="choose what runs where for a model on a cluster",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", metavar="FILE:CLASS", required=True, help="made without arguments")
    add("--cluster", metavar="FILE", type=Path, help="TOML or JSON; default: discover this host")
    data = parser.add_argument_group("data")
    add = data.add_argument
    add("--data", metavar="FILE", help="Parquet or CSV; default: the sample beside the model")
    add("--dense", metavar="COLUMNS", type=_names, default=[], help="numeric, comma-separated")
    add(
        "--shared-keys",
        metavar="SLOT=OTHER",
        action="append",
        type=_pair,
        default=[],
        help="slots whose values have the rows of another's, as history=movie",
    )
    add("--label", metavar="COLUMN", default="label", help="default: %(default)s")
    add(
        "--rows",
        metavar="TABLE=N",
        action="append",
        type=_rows,
        default=[],
        help="that a table will hold; default: as many as the data have",
    )
    add("--samples", metavar="N", type=_number, help="of an epoch; default: those of the data")
    choice = parser.add_argument_group("what may be chosen")
    add = choice.add_argument
    add("--batch-size", metavar="N[,N]", type=_counts, default=BATCHES, help="of a worker's step")
    add("--max-staleness", metavar="K", type=int, default=2, help="default: %(default)s")
    add("--staleness", metavar="K", type=int, help="exactly so much, in mode bounded")
    add("--mode", choices=PLANNED_MODES, help="default: bounded, cpu_only or gpu_only")
    add("--wire", choices=WIRES, default="float32", help="default: %(default)s")
    add("--wide", action="store_true", help="also what no trainer runs yet: homes by table, caches")
    add(
        "--layers",
        action="store_true",
        help="layer by layer instead: which host's cores or GPUs run it, and how many of them; "
        "the optimum, what other schedulers find, and whether a Trainer runs that cut",
    )
    aim = parser.add_argument_group("what shall be best")
    add = aim.add_argument
    add("--objective", choices=AIMS, default="throughput", help="default: %(default)s")
    add("--throughput", metavar="N", type=float, default=0.0, help="samples/s, at the least")
    add(
        "--profile",
        metavar="FILE",
        type=Path,
        help="of what runs here have shown, as hp.auto_plan(profile=) keeps it; "
        "default: ~/.cache/hetero_pipe/profile-HOST.json",
    )
    add("--seconds", metavar="S", type=float, default=40.0, help="to search; default: %(default)s")
    output = parser.add_argument_group("output")
    add = output.add_argument
    add("--json", action="store_true", help="print plan, runners-up and proof as JSON")
    add("--out", metavar="FILE", type=Path, help="write the plan, for hp.Plan.from_json")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, _: Sequence[str]) -> int:
    try:
        return _plan(options)
    except KeyboardInterrupt:
        print("hetero-pipe: stopped, without a plan", file=sys.stderr)
        return STOPPED


def _plan(options: argparse.Namespace) -> int:
    if options.layers:
        check_layers(options)
    aim = Aim(options.objective, options.throughput)
    space = _space(options)
    cluster = _cluster(options.cluster)
    with few_words():
        workload = _workload(options)
    model = CostModel(cluster, workload, corrections=load_corrections(_profile(options.profile)))
    if options.layers:
        return run_layers(options, model, aim)
    try:
        proposal = propose(model, space, aim, seconds=options.seconds, told=teller())
    except PlanError as error:
        print(f"hetero-pipe: error: {error}", file=sys.stderr)
        return NO_PLAN
    if options.out is not None:
        _write(options.out, proposal)
    if options.json:
        print(json.dumps(_told(proposal), indent=2))
    else:
        print(explain(proposal, samples=workload.samples))
    return 0


def teller(clock: Callable[[], float] = time.monotonic) -> Callable[[Progress], None]:
    """Returns what prints on stderr how far a search has come, every few seconds."""
    start = last = clock()

    def tell(progress: Progress) -> None:
        nonlocal last
        now = clock()
        if now - last < TOLD_EVERY:
            return
        last = now
        found = "no plan yet"
        if progress.loss < math.inf:
            gap = max(1 - progress.bound / progress.loss, 0.0) if progress.loss else 0.0
            found = f"the best so far is at most {gap:.0%} from the best"
        print(
            f"hetero-pipe: {now - start:.0f} s, {progress.num_predicted:,} predictions, "
            f"{progress.what}: {found}",
            file=sys.stderr,
            flush=True,
        )

    return tell


def _space(options: argparse.Namespace) -> Space:
    most = options.max_staleness if options.staleness is None else options.staleness
    space = Space(
        options.batch_size,
        most,
        wires=(options.wire,),
        min_staleness=0 if options.staleness is None else options.staleness,
    )
    if options.wide:
        space = replace(
            space,
            modes=(*space.modes, "sync"),
            homes=("host", "device", "sharded"),
            cached_rows=CACHES,
        )
    return space if options.mode is None else replace(space, modes=(options.mode,))


def _cluster(path: Path | None) -> Cluster:
    return Cluster((this_host(),)) if path is None else load_cluster(path)


def _profile(path: Path | None) -> Path:
    name = f"profile-{socket.gethostname()}.json"
    return path or Path.home() / ".cache" / "hetero_pipe" / name


def _workload(options: argparse.Namespace) -> Workload:
    from hetero_pipe.nn import find_embeddings, trace  # noqa: PLC0415  # Paddle is slow to load

    model = load_model(
        options.model, **({"num_dense": len(options.dense)} if options.dense else {})
    )
    embeddings = find_embeddings(model)
    if not embeddings:
        raise ConfigError(f"a plan is of a model with an hp.Embedding, got none in {options.model}")
    slots = list(dict.fromkeys(slot for each in embeddings.values() for slot in each.slots))
    path = options.data or str(_sample(options.model))
    reader, samples = _reader(path, slots, options)
    batch = next(reader.batches(0), None)
    if batch is None:
        raise ConfigError(f"statistics need data, got no sample in {path}")
    tables = {name: each.slots for name, each in embeddings.items()}
    statistics = measure_statistics(reader.batches(0), tables)
    return workload_of(
        trace(model, batch),
        statistics,
        rows=_checked(dict(options.rows), tables),
        samples=options.samples or samples,
        num_dense=len(options.dense),
    )


def _checked(rows: Mapping[str, float], tables: Mapping[str, Any]) -> Mapping[str, float]:
    strays = [name for name in rows if name not in tables]
    if strays:
        raise ConfigError(
            f"--rows is of one of the tables {', '.join(tables)}, got {', '.join(strays)}"
        )
    return rows


def _sample(model: str) -> Path:
    """Returns the bundled data: in a folder above the model's file."""
    folders = Path(model.rpartition(":")[0]).resolve().parents
    for folder in folders:
        if (folder / SAMPLE).is_file():
            return folder / SAMPLE
    raise ConfigError(
        f"a plan needs to know the data, got no {SAMPLE} in a folder above {model}; name a file "
        "(--data FILE)"
    )


def _reader(
    path: str, slots: Sequence[str], options: argparse.Namespace
) -> tuple[Reader, int | None]:
    """Returns a reader, shuffled, and how many samples there are, if that is told quickly."""
    read = read_csv if ".csv" in path else read_parquet
    reader = read(
        path,
        slots=slots,
        dense=options.dense,
        label=options.label,
        batch_size=8192,
        shuffle=100_000,
        shared_keys=dict(options.shared_keys) or None,
    )
    is_one = read is read_parquet and Path(path).is_file()
    return reader, pq.ParquetFile(path).metadata.num_rows if is_one else None


def _told(proposal: Proposal) -> dict[str, Any]:
    return {
        "plan": encode(proposal.plan),
        "kind": proposal.kind,
        "objective": proposal.aim.what,
        "loss": proposal.loss,
        "bound": proposal.bound,
        "gap": proposal.gap,
        "num_predicted": proposal.num_predicted,
        "runners_up": [
            {
                "kind": each.kind,
                "reason": each.reason,
                "plan": None if each.plan is None else encode(each.plan),
            }
            for each in proposal.runners_up
        ],
    }


def _write(path: Path, proposal: Proposal) -> None:
    try:
        path.write_text(proposal.plan.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"a plan's file must be writable, got {path}: {error}") from error


# ------------------------------------------------------------------ flags


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _number(text: str) -> int:
    try:
        value = float(text)  # 1e9 is a number that people write
    except ValueError:
        value = math.nan
    if not 1 <= value < math.inf or value != int(value):
        raise argparse.ArgumentTypeError(f"a whole number from 1, got {text}")
    return int(value)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_number(each) for each in text.split(","))


def _pair(text: str) -> tuple[str, str]:
    slot, equals, other = text.partition("=")
    if not (slot and equals and other):
        raise argparse.ArgumentTypeError(f"SLOT=OTHER, got {text}")
    return slot, other


def _rows(text: str) -> tuple[str, float]:
    table, equals, number = text.rpartition("=")
    if not equals or not table:
        raise argparse.ArgumentTypeError(f"TABLE=N, got {text}")
    return table, float(_number(number))
