"""Samples: what is counted, and what is not."""

import pytest

from hetero_pipe.cluster import Sampling, profile_disk, profile_link, sample_times
from hetero_pipe.errors import ConfigError


class Work:
    """A call of which takes seconds of a clock of its own: long at first, as compiling is."""

    def __init__(self, seconds):
        self.now = 0.0
        self.num_calls = 0
        self.seconds = seconds

    def __call__(self):
        self.num_calls += 1
        self.now += 100.0 if self.num_calls == 1 else self.seconds

    def clock(self):
        return self.now


def test_a_sample_repeats_what_is_short_and_leaves_out_the_first_call():
    work = Work(0.25)
    times = sample_times(work, Sampling(num_samples=3, min_seconds=1.0), clock=work.clock)
    assert times == [0.25] * 3
    assert work.num_calls == 2 + 3 * 4


def test_what_is_long_is_done_once_a_sample():
    work = Work(2.0)
    assert sample_times(work, Sampling(2, 1.0), clock=work.clock) == [2.0, 2.0]
    assert work.num_calls == 4


def test_what_takes_no_time_at_all_takes_some():
    work = Work(0.0)
    assert sample_times(work, Sampling(1, 1e-8), clock=work.clock) == [1e-10]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Sampling(0), "num_samples of at least 1"),
        (lambda: Sampling(1, 0.0), "min_seconds above 0"),
    ],
)
def test_an_effort_of_nothing_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"a file of 256 MiB in .*none.*\(--folder DIR\)"):
        list(profile_disk("a", tmp_path / "none", Sampling()))


def test_a_peer_that_is_not_there_is_told(free_address):
    with pytest.raises(
        ConfigError, match=f"start there: hetero-pipe profile --listen {free_address}"
    ):
        list(profile_link("a", free_address, Sampling()))
