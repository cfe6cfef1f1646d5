"""The report of a plan, as people see it."""

from dataclasses import replace

from hetero_pipe.plan import Breakdown, MemoryPrediction, Part, Prediction, StagePrediction
from hetero_pipe.planner import Aim, Proposal, RunnerUp, Strategy, Where, explain
from hetero_pipe.units import GiB, MiB
from tests.planner.problems import graph_of

GRAPH = graph_of([16, 1])
STRATEGY = Strategy(
    (Where("whole", "trainer", "gpu"), Where("server", "ps", "cpu")),
    "bounded",
    4096,
    homes=(("t0", "host"), ("t1", "host")),
)
PULL = Breakdown.sum(
    (
        Breakdown.of("pull", 0.002, "server"),
        Breakdown.of("message", 0.001, "worker"),
        Breakdown.of("network", 0.0005, "network"),
        Breakdown.of("call", 0.0004, "wait"),
    )
)
PREDICTION = Prediction(
    step_seconds=0.004,
    samples=4096.0 * 16,
    stages=(
        StagePrediction("pull", "whole", PULL, 0.0042),
        StagePrediction("dense", "whole", Breakdown.of("matmul", 0.003, "device"), 0.003),
    ),
    memory=(
        MemoryPrediction("whole", "trainer", "gpu", Breakdown.of("activations", 64 * MiB), 9 * GiB),
        MemoryPrediction("server", "ps", "cpu", Breakdown.of("table t0", 40 * GiB), 50 * GiB),
    ),
    bounds=(Part("pull", 0.004), Part("dense", 0.003)),
    price_per_hour=56.5,
    assumed=("the rate of a matmul on trainer/gpu",),
    corrected=("pull on trainer by 1.30, as 5 runs showed",),
)


def proposal(**changes):
    plan = STRATEGY.plan(GRAPH, {"whole": (2, 8), "server": (4, 1)}, staleness=1)
    plan = replace(plan, predicted=PREDICTION)
    fields = {
        "plan": plan,
        "kind": STRATEGY.kind,
        "runners_up": (RunnerUp("whole workers on cpu, tables on servers", None, "too slow"),),
        "aim": Aim(),
        "loss": 1.0,
        "bound": 1.0,
        "num_predicted": 1234,
    } | changes
    return Proposal(**fields)


def test_the_report_is_a_few_tables_and_why():
    assert explain(proposal(), samples=10**9).split("\n") == REPORT.strip("\n").split("\n")


REPORT = """
plan for most samples a second: whole workers on gpu, tables on servers
  mode bounded, staleness 1, batches of 4096

processes    host     device  machines  on each  in all
  whole      trainer  gpu     2         8        16
  server     ps       cpu     4         1        4

tables    dim  home
  t0      16   servers
  t1      1    servers

stages of a step    of     busy    alone, that is
  pull              whole  4.2 ms  pull 2 ms on a server's core, message 1 ms on a core, \
network 500 us on the network, others 400 us
  dense             whole  3 ms    matmul 3 ms on the device

memory of one    peak    of      full   that is
  trainer/gpu    64 MiB  9 GiB   0.69%  activations 64 MiB
  ps/cpu         40 GiB  50 GiB  80%    table t0 40 GiB

throughput: 16,384,000 samples/s, 65,536 in a step of 4 ms
bottleneck: pull 4 ms; then dense 3 ms
money: 56.50 an hour, 0.9579 an epoch of 1,000,000,000 samples
proof: no plan of those to choose from is better, by 1,234 predictions of plans and of bounds
assumed, not measured: the rate of a matmul on trainer/gpu
corrected: pull on trainer by 1.30, as 5 runs showed

runners-up, and why they lost
  whole workers on cpu, tables on servers
    too slow
"""


def test_what_is_not_proven_or_not_known_is_said():
    told = explain(proposal(bound=0.9, runners_up=()))
    assert "no plan of those to choose from is over 10% better" in told
    assert "runners-up" not in told
    assert "an epoch" not in told


def test_homes_are_told_where_they_are():
    strategy = Strategy(
        (Where("whole", "trainer", "gpu"),),
        "sync",
        64,
        homes=(("t0", "sharded"), ("t1", "device")),
    )
    plan = strategy.plan(GRAPH, {"whole": (1, 8)}, staleness=0)
    told = explain(proposal(plan=replace(plan, predicted=PREDICTION), kind=strategy.kind))
    assert "tables shared out over devices and on each device" in told
    assert "  t0      16   shared out over devices" in told
    assert "  t1      1    each device" in told
