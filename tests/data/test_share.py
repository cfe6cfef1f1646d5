"""The shares of a reader have every batch once."""

import itertools

import pytest

from hetero_pipe.data import share
from tests.toy import read, samples, write_parquet


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    path = write_parquet(tmp_path_factory.mktemp("share") / "s.parquet", samples(32 * 7 + 5))
    return read(path, shuffle=100)


def ids(batches):
    return [batch.bags["user"].keys.tolist() for batch in batches]


@pytest.mark.parametrize("num", [1, 2, 3, 9])
@pytest.mark.parametrize("skip", [0, 1, 2])
def test_batches_go_round_after_those_that_each_has_had(reader, num, skip):
    whole = ids(reader.batches(1))
    shares = [ids(share(reader, rank, num).batches(1, skip=skip)) for rank in range(num)]
    assert [len(each) for each in shares] == [max(len(whole[r::num]) - skip, 0) for r in range(num)]
    dealt = [b for turn in itertools.zip_longest(*shares) for b in turn if b is not None]
    assert dealt == whole[skip * num :]


def test_a_share_in_order_is_the_share_of_the_reader_in_order(reader):
    assert ids(share(reader, 1, 3).in_order().batches(0)) == ids(reader.in_order().batches(0))[1::3]


def test_a_share_has_the_fields_of_its_reader(reader):
    part = share(reader, 1, 3)
    assert (part.slots, part.dense) == (reader.slots, reader.dense)
    assert share(reader, 0, 1) is reader


def test_a_share_that_is_closed_closes_the_reader(reader):
    """A reader parses in a thread, which the fixture of all tests would find left."""
    batches = share(reader, 0, 2).batches(0)
    next(batches)
    batches.close()
