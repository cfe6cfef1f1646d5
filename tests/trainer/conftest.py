"""Small files to train on, and real servers."""

from contextlib import ExitStack

import numpy as np
import pytest

from ps_server.server import Server
from tests.toy import read, samples, write_parquet

collect_ignore = ["conftest.py"]  # not for doctests: pytest wants names of modules unique


@pytest.fixture(scope="session")
def path(tmp_path_factory):
    return write_parquet(tmp_path_factory.mktemp("toy") / "toy.parquet", samples(640))


@pytest.fixture
def reader(path):
    """20 batches of 32, shuffled."""
    return read(path, shuffle=200)


@pytest.fixture
def serve():
    """Starts so many servers; returns their addresses, None for none."""
    with ExitStack() as running:

        def start(number):
            if number == 0:
                return None
            return [running.enter_context(Server("127.0.0.1:0")).address for _ in range(number)]

        yield start


@pytest.fixture
def unseen(tmp_path):
    """A reader of users and items that are in no other file."""
    table = samples(64, seed=5)
    for name in ("user", "item"):
        i = table.column_names.index(name)
        table = table.set_column(i, name, [np.asarray(table[name]) + 10_000_000])
    return read(write_parquet(tmp_path / "unseen.parquet", table))
