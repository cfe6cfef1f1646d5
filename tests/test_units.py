import pytest

from hetero_pipe.units import (
    GiB,
    MiB,
    format_bytes,
    format_flops,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_flops,
    parse_rate,
    parse_seconds,
)


def test_bytes_are_shown_in_the_largest_unit_that_fits():
    assert format_bytes(0) == "0 B"
    assert format_bytes(1023) == "1023 B"
    assert format_bytes(1024) == "1 KiB"
    assert format_bytes(1.25 * MiB) == "1.25 MiB"
    assert format_bytes(64 * GiB) == "64 GiB"
    assert format_bytes(3000 * 2**40) == "3000 TiB"


def test_seconds_are_shown_in_the_largest_unit_that_fits():
    assert format_seconds(0) == "0 s"
    assert format_seconds(90) == "90 s"
    assert format_seconds(0.001) == "1 ms"
    assert format_seconds(2.5e-7) == "0.25 us"


@pytest.mark.parametrize("text", ["64GiB", "64 GiB", " 64  GiB "])
def test_bytes_parse_with_and_without_a_space(text):
    assert parse_bytes(text) == 64 * GiB


def test_a_rate_in_bits_is_an_eighth_in_bytes():
    assert parse_rate("8Gbit/s") == parse_rate("1 GB/s") == 1e9


@pytest.mark.parametrize("text", ["", "GiB", "12", "12 parsecs", "-1GiB", "1e3B"])
def test_a_wrong_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"a quantity is a number and one of B, .*'16GiB'"):
        parse_bytes(text)


def test_a_rate_without_its_second_is_refused():
    with pytest.raises(ValueError, match=r"ends in '/s', got '25Gbit'; write it like '25Gbit/s'"):
        parse_rate("25Gbit")


def test_rates_are_shown_in_decimal_units():
    assert format_rate(0) == "0 B/s"
    assert format_rate(999) == "999 B/s"
    assert format_rate(2.039e12) == "2.039 TB/s"
    assert format_flops(5e5) == "500000 FLOP/s"
    assert format_flops(1.979e15) == "1.979 PFLOP/s"


def test_a_time_is_the_number_nearest_to_its_text():
    assert [parse_seconds(text) for text in ("7us", "3 ms", "20ns", "2s")] == [7e-6, 3e-3, 2e-8, 2]


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_seconds, "5", "a quantity is a number and one of s, ms, us, ns, got '5'"),
        (parse_seconds, "5min", r"write it like '5us'"),
        (parse_flops, "19.5TFLOP", r"ends in '/s', got '19.5TFLOP'; write it like '312TFLOP/s'"),
        (parse_flops, "19.5TB/s", "one of FLOP, MFLOP, GFLOP, TFLOP, PFLOP, got '19.5TB'"),
    ],
)
def test_a_wrong_time_or_speed_is_refused_with_an_example(parse, text, said):
    with pytest.raises(ValueError, match=said):
        parse(text)
