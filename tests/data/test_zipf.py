"""Ranks follow the law that is written down, whatever its exponent and size."""

import numpy as np
import pytest
from scipy import stats

from hetero_pipe.data.zipf import BoundedZipf
from hetero_pipe.errors import ConfigError


def probabilities(law):
    weights = np.arange(1, law.num_ranks + 1) ** -float(law.exponent)
    return weights / weights.sum()


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.98, 1.0, 1.03, 1.5, 2.39, 4.0])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 24, 1000])
def test_ranks_follow_the_law(num_ranks, exponent):
    law = BoundedZipf(num_ranks, exponent)
    size = 200_000
    ranks = law.sample(size, np.random.default_rng(0))
    assert ranks.min() >= 0
    assert ranks.max() < num_ranks
    found, expected = np.bincount(ranks, minlength=num_ranks), size * probabilities(law)
    # Rare ranks are counted together: the chi-square law needs some of each.
    is_rare = expected < 10
    rare = [is_rare] if expected[is_rare].sum() >= 10 else []
    observed = [*found[~is_rare], *(found[each].sum() for each in rare)]
    share = np.array([*expected[~is_rare], *(expected[each].sum() for each in rare)])
    if len(observed) > 1:
        # 40 laws at one seed: the least of so many p-values is about 1/40.
        share *= np.sum(observed) / share.sum()
        assert stats.chisquare(observed, share).pvalue > 1e-4


@pytest.mark.parametrize("exponent", [0.92, 1.0, 1.03, 1.5])
def test_the_tail_of_ten_million_ranks_follows_the_law(exponent):
    law = BoundedZipf(10_131_227, exponent)
    size = 200_000
    ranks = law.sample(size, np.random.default_rng(1))
    assert ranks.max() < law.num_ranks
    edges = np.array([0, 1, 2, 10, 100, 10**4, 10**5, 10**6, 4 * 10**6, law.num_ranks])
    found, _ = np.histogram(ranks, edges)
    expected = size * np.add.reduceat(probabilities(law), edges[:-1])
    assert stats.chisquare(found, expected).pvalue > 1e-4


def test_another_exponent_is_told_apart():
    # The test above would see an exponent that is off by 0.02.
    found = np.bincount(BoundedZipf(24, 1.05).sample(200_000, np.random.default_rng(0)))
    expected = 200_000 * probabilities(BoundedZipf(24, 1.03))
    assert stats.chisquare(found, expected).pvalue < 1e-4


@pytest.mark.parametrize(("num_ranks", "exponent"), [(0, 1.0), (5, -0.1), (5, float("nan"))])
def test_a_law_out_of_range_is_refused(num_ranks, exponent):
    with pytest.raises(ConfigError, match="a bounded Zipf law has num_ranks"):
        BoundedZipf(num_ranks, exponent)
