"""Sizes are bytes and times are seconds everywhere; this is how text shows and states them."""

import re
from collections.abc import Mapping

__all__ = [
    "GiB",
    "KiB",
    "MiB",
    "format_bytes",
    "format_flops",
    "format_rate",
    "format_seconds",
    "ms",
    "ns",
    "parse_bytes",
    "parse_flops",
    "parse_rate",
    "parse_seconds",
    "us",
]

KiB = 2**10
MiB = 2**20
GiB = 2**30

ms = 1e-3
us = 1e-6
ns = 1e-9

_BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": KiB,
    "MiB": MiB,
    "GiB": GiB,
    "TiB": 2**40,
}
_BITS = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9, "Tbit": 10**12}
_SECONDS = {"s": 1, "ms": ms, "us": us, "ns": ns}
_FLOPS = {"FLOP": 1, "MFLOP": 10**6, "GFLOP": 10**9, "TFLOP": 10**12, "PFLOP": 10**15}

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def format_bytes(size: float) -> str:
    """Returns a size in the largest binary unit that keeps it at 1 or more.

    >>> format_bytes(1536), format_bytes(512), format_bytes(3 * GiB)
    ('1.5 KiB', '512 B', '3 GiB')
    """
    for name in ("TiB", "GiB", "MiB", "KiB"):
        if abs(size) >= _BYTES[name]:
            return f"{_short(size / _BYTES[name])} {name}"
    return f"{_short(size)} B"


def format_rate(rate: float) -> str:
    """Returns bytes per second in the largest decimal unit that keeps them at 1 or more.

    >>> format_rate(3.125e9), format_rate(12)
    ('3.125 GB/s', '12 B/s')
    """
    return _format_decimal(rate, {name: _BYTES[name] for name in ("TB", "GB", "MB", "kB")}, "B")


def format_flops(rate: float) -> str:
    """Returns FLOP per second in the largest decimal unit that keeps them at 1 or more.

    >>> format_flops(19.5e12), format_flops(97.4e9)
    ('19.5 TFLOP/s', '97.4 GFLOP/s')
    """
    return _format_decimal(rate, dict(reversed(_FLOPS.items())), "FLOP")


def format_seconds(seconds: float) -> str:
    """Returns a time in s, ms or us, whichever keeps it at 1 or more.

    >>> format_seconds(2), format_seconds(0.0375), format_seconds(4e-6)
    ('2 s', '37.5 ms', '4 us')
    """
    if abs(seconds) >= 1 or seconds == 0:
        return f"{_short(seconds)} s"
    if abs(seconds) >= ms:
        return f"{_short(seconds / ms)} ms"
    return f"{_short(seconds / us)} us"


def parse_bytes(text: str) -> int:
    """Returns the bytes of a size such as `16GiB` or `1.5 MB`.

    Raises:
        ValueError: `text` is no number with a unit of bytes.

    >>> parse_bytes("2KiB"), parse_bytes("1.5 kB")
    (2048, 1500)
    """
    number, factor = _parse(text, _BYTES, example="16GiB")
    return round(number * factor)


def parse_rate(text: str) -> float:
    """Returns the bytes per second of a rate such as `25Gbit/s` or `8GB/s`.

    Raises:
        ValueError: `text` is no number with a unit of bytes or bits per second.

    >>> parse_rate("25Gbit/s"), parse_rate("8 GB/s")
    (3125000000.0, 8000000000.0)
    """
    units = _BYTES | {name: bits / 8 for name, bits in _BITS.items()}
    return _parse_per_second(text, units, example="25Gbit/s")


def parse_flops(text: str) -> float:
    """Returns the FLOP per second of a rate such as `312TFLOP/s`.

    Raises:
        ValueError: `text` is no number with a unit of FLOP per second.

    >>> parse_flops("19.5TFLOP/s")
    19500000000000.0
    """
    return _parse_per_second(text, _FLOPS, example="312TFLOP/s")


def parse_seconds(text: str) -> float:
    """Returns the seconds of a time such as `5us` or `1.5 ms`.

    Raises:
        ValueError: `text` is no number with a unit of time.

    >>> parse_seconds("5us"), parse_seconds("0.25 s")
    (5e-06, 0.25)
    """
    # By the digits that are written: 7 * 1e-6 is not the 7e-06 nearest to 7us.
    number, factor = _parse(text, _SECONDS, example="5us")
    return number / round(1 / factor)


def _parse_per_second(text: str, units: Mapping[str, float], *, example: str) -> float:
    amount, slash, second = text.strip().rpartition("/")
    if not slash or second.strip() != "s":
        raise ValueError(f"a rate ends in '/s', got {text!r}; write it like {example!r}")
    number, factor = _parse(amount, units, example=example)
    return number * factor


def _parse(text: str, units: Mapping[str, float], *, example: str) -> tuple[float, float]:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError(
            f"a quantity is a number and one of {', '.join(units)}, got {text!r}; "
            f"write it like {example!r}"
        )
    return float(match[1]), units[match[2]]


def _format_decimal(rate: float, units: Mapping[str, float], smallest: str) -> str:
    for name, factor in units.items():
        if abs(rate) >= factor:
            return f"{_short(rate / factor)} {name}/s"
    return f"{_short(rate)} {smallest}/s"


def _short(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
