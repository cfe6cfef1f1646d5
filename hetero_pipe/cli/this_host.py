"""This host as its kernel and this Paddle show it, and little said meanwhile."""

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from hetero_pipe.cluster import Device, Host, Link, discover

__all__ = ["few_words", "has_paddle", "this_host"]


def this_host(name: str | None = None) -> Host:
    """Returns this host, with the devices that Paddle has here, under its own name or another.

    Raises:
        ConfigError: The kernel does not show what it has.
    """
    devices: tuple[Device, ...] = ()
    if has_paddle():
        with few_words():
            from hetero_pipe.nn import describe_devices  # noqa: PLC0415  # Paddle is slow to load

            devices = describe_devices()
    # What lies between them is measured as uploads and downloads; until then, PCIe 3.0 x16.
    links = [Link((device.name, "cpu"), "PCIe", 16e9, 5.7e-6) for device in devices]
    return discover(devices, links, name=name)


@contextmanager
def few_words() -> Iterator[None]:
    """Keeps to itself that tables are created, and what Paddle warns of when it is imported."""
    disabled = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        logging.disable(disabled)


def has_paddle() -> bool:
    """Returns whether PaddlePaddle is installed."""
    return importlib.util.find_spec("paddle") is not None
