"""TensorBatch: a dict of tensors."""

import numpy as np
import pytest

import hetero_pipe as hp


@pytest.fixture
def batch(hand):
    samples = hand.batch_of(
        {"a": [[1], [2]]}, label=[0, 1], dense=[[1, 2], [3, 4]], dense_names=["x", "y"]
    )
    return hand.inputs(hp.Embedding(["a"], 2), samples)


def test_dense_columns_come_together_and_alone(batch):
    assert batch["dense"].tolist() == [[1, 2], [3, 4]]
    assert batch["x"].tolist() == [1, 3]
    assert batch["y"].tolist() == [2, 4]
    assert batch["label"].tolist() == [0, 1]


def test_it_is_a_mapping(batch):
    assert list(batch) == ["dense", "label", "x", "y"]
    assert len(batch) == 4
    assert "x" in batch
    assert "a" not in batch
    assert {name: tensor.shape for name, tensor in batch.items()} == {
        "dense": [2, 2],
        "label": [2],
        "x": [2],
        "y": [2],
    }
    assert batch.get("x").tolist() == [1, 3]
    assert batch.get("nothing") is None
    assert batch.get("nothing", 7) == 7


def test_a_name_that_is_not_there_is_told_with_those_that_are(batch):
    with pytest.raises(hp.ConfigError, match="dense, label, x, y, got 'z'"):
        batch["z"]


def test_a_slot_is_told_how_it_is_read(batch):
    with pytest.raises(hp.ConfigError, match=r"got 'a'; read a slot through hp.Embedding"):
        batch["a"]


def test_without_dense_columns_and_labels_there_is_nothing(hand):
    batch = hand.inputs(hp.Embedding(["a"], 2), hand.batch_of({"a": [[1]]}))
    assert list(batch) == []
    with pytest.raises(hp.ConfigError, match="no dense column, got 'dense'"):
        batch["dense"]


def test_the_tensors_share_the_arrays_memory(hand):
    samples = hand.batch_of({"a": [[1]]}, label=[1], dense=[[5]], dense_names=["x"])
    batch = hand.inputs(hp.Embedding(["a"], 2), samples)
    assert batch["dense"].data_ptr() == samples.dense.ctypes.data
    assert batch["label"].data_ptr() == samples.label.ctypes.data
    assert np.shares_memory(np.from_dlpack(batch["dense"]), samples.dense)
