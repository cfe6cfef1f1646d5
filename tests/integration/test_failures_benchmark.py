"""The clusters of benchmarks/failures against formulas, where there are any."""

import math
import random
import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "failures"))

from cluster import After, Job, Way, run, shared_out

RATE = 0.01  # failures of a host in an hour


def alone(way, seed, *, hosts=4, length=20.0):
    job = Job(hosts, length, 0.0)
    run([job], hosts=hosts, rate=RATE, way=way, until=math.inf, rng=random.Random(seed))
    return job


def test_share_of_jobs_that_fail_is_exponential():
    failed = [alone(Way(After.END), seed).has_failed for seed in range(4000)]
    expected = 1 - math.exp(-RATE * 4 * 20.0)
    error = math.sqrt(expected * (1 - expected) / len(failed))
    assert statistics.mean(failed) == pytest.approx(expected, abs=4 * error)


@pytest.mark.parametrize("every", [2.0, 10.0])
def test_time_with_checkpoints_is_dalys(every):
    """Daly 2006: M exp(R / M) (exp(t / M) - 1) for each t hours between two checkpoints."""
    mean, pause = 1 / (RATE * 4), 0.5
    way = Way(After.RESTART, pause=pause, checkpoint_every=every)
    times = [alone(way, seed).ends for seed in range(2000)]
    expected = 20 / every * mean * math.exp(pause / mean) * math.expm1(every / mean)
    error = statistics.stdev(times) / math.sqrt(len(times))
    assert statistics.mean(times) == pytest.approx(expected, abs=4 * error)


def test_job_that_rides_through_loses_pauses_alone():
    job = alone(Way(After.RIDE, pause=0.125), seed=3, length=200.0)
    assert job.num_failures > 2
    assert job.ends == pytest.approx(200.0 + 0.125 * job.num_failures)  # no two overlap
    assert job.host_hours == pytest.approx(4 * job.ends)


def test_elastic_jobs_give_up_hosts_for_one_that_comes():
    jobs = [Job(4, 1.0, 0.0), Job(4, 1.0, 0.0), Job(2, 1.0, 0.0)]
    elastic = Way(After.END, least=0.5)
    assert shared_out(jobs[:1], 4, elastic) == [4]
    jobs[0].held = 4
    assert shared_out(jobs[:2], 4, elastic) == [2, 2]
    assert shared_out(jobs, 4, elastic) == [2, 2, 0]
    assert shared_out(jobs, 4, Way(After.END)) == [4, 0, 0]
