"""Rates of cuts: each wire, over a real stream."""

from hetero_pipe.cluster import Sampling
from hetero_pipe.pipeline import profile_cuts


def test_a_byte_of_each_wire_is_measured():
    sampling = Sampling(num_samples=2, min_seconds=1e-4, is_quick=True)
    rates = list(profile_cuts("here", sampling))
    assert [rate.dtype for rate in rates] == ["float32", "float16", "bfloat16"]
    assert {rate.size for rate in rates} == {4 * 512 * 416}
    assert all(rate.value.samples == 2 for rate in rates)
