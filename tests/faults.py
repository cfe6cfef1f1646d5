"""Faults of a network, between a client and a server: those of benchmarks/chaos."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks" / "chaos"))

from proxy import Proxy

__all__ = ["Proxy"]
