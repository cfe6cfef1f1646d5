"""The formula of benchmarks/recovery against jobs whose failures are drawn."""

import math
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "recovery"))

from goodput import Costs, goodput

COSTS = Costs(ride=3.0, restart=12.0, write=15.0, save=4.0, journal_share=0.02)


def drawn(costs, *, mtbf, servers, interval, num_failures=40_000):
    """The share of its time that a job trains what is kept, failure by failure."""
    rng = random.Random(6)
    kept = lost_in_pauses = trained = 0.0  # trained: since the checkpoint that was loaded last
    for _ in range(num_failures):
        trained += rng.expovariate(1 / mtbf)
        if rng.random() < servers:
            lost_in_pauses += costs.ride
            continue
        num_whole = max(math.floor((trained - costs.write) / interval), 0)
        kept += num_whole * interval
        lost_in_pauses += costs.restart + trained - num_whole * interval
        trained = 0.0
    kept += trained
    share = kept / (kept + lost_in_pauses)
    return share * (1 - costs.save / interval)


@pytest.mark.parametrize("servers", [0.0, 0.5, 1.0])
def test_goodput_is_that_of_failures_that_are_drawn(servers):
    found = goodput(COSTS, mtbf=3600.0, servers=servers)
    share = drawn(COSTS, mtbf=3600.0, servers=servers, interval=min(found.interval, 1e9))
    assert found.share == pytest.approx(share, abs=0.003)
    assert found.with_journal == pytest.approx(0.98 * share, abs=0.003)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_another_interval_gives_less(factor):
    best = goodput(COSTS, mtbf=3600.0, servers=0.0)
    other = drawn(COSTS, mtbf=3600.0, servers=0.0, interval=best.interval * factor)
    assert other < drawn(COSTS, mtbf=3600.0, servers=0.0, interval=best.interval)


def test_failures_that_come_faster_than_a_restart_leave_nothing():
    assert goodput(COSTS, mtbf=10.0, servers=0.0).share == 0.0
