"""Criteo's click logs: what is distributed, what is synthetic, and that they are read alike."""

import gzip

import numpy as np
import pytest
import xxhash

from hetero_pipe.data import read_criteo, read_csv, synthetic_criteo
from hetero_pipe.errors import ConfigError, DataError

# Two lines in the form of the public sample, one with empty fields and a negative integer.
LINES = [
    "0\t1\t1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2\t68fd1e64\t80e26c9b\tfb936136\t7b4723c4\t25c83c98"
    "\t7e0ccccf\tde7995b8\t1f89b562\ta73ee510\ta8cd5504\tb2cb9c98\t37c9c164\t2824a5f6\t1adce6ef"
    "\t8ba8b39a\t891b62e7\te5ba7672\tf54016b9\t21ddcdc9\tb1252a9d\t07b5194c\t\t3a171ecb\tc5c50484"
    "\te8b83407\t9727dd16",
    "1\t\t-2\t\t\t767\t89\t4\t2\t245\t\t3\t3\t45\t287e684f\t0a519c5c\t02cf9876\tc18be181\t25c83c98"
    "\t7e0ccccf\tc78204a1\t0b153874\ta73ee510\t3b08e48b\t5f5e6091\t8fe001f4\taa655a2f\t07d13a8f"
    "\t6dc710ed\t36103458\t8efede7f\t3412118d\t\t\te587c466\tad3062eb\t3a171ecb\t3b183c5c\t\t",
]
SLOTS = tuple(f"C{i}" for i in range(1, 27))
DENSE = tuple(f"I{i}" for i in range(1, 14))


@pytest.fixture
def write(tmp_path):
    def write(lines, name="train.txt"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return tmp_path / name

    return write


def key(slot, text):
    return xxhash.xxh64_intdigest(text.encode(), xxhash.xxh64_intdigest(slot.encode(), 0))


def bits(batches):
    return [
        (
            None if batch.label is None else batch.label.tobytes(),
            batch.dense.tobytes(),
            [(slot, bags.keys.tobytes()) for slot, bags in batch.bags.items()],
        )
        for batch in batches
    ]


def test_a_line_is_a_label_thirteen_integers_and_twenty_six_categories(write):
    (batch,) = read_criteo(write(LINES), log_dense=False)
    assert batch.label.tolist() == [0, 1]
    assert batch.dense_names == DENSE
    assert batch.dense.tolist() == [
        [1, 1, 5, 0, 1382, 4, 15, 2, 181, 1, 2, 0, 2],
        [0, -2, 0, 0, 767, 89, 4, 2, 245, 0, 3, 3, 45],
    ]
    assert tuple(batch.bags) == SLOTS
    for i, line in enumerate(LINES):
        for slot, text in zip(SLOTS, line.split("\t")[14:], strict=True):
            assert batch.bags[slot].keys[i] == key(slot, text)


def test_integers_are_logarithms_that_keep_their_sign(write):
    raw = read_criteo(write(LINES), log_dense=False)
    (expected,), (batch,) = raw, read_criteo(write(LINES))
    logs = np.sign(expected.dense) * np.log1p(np.abs(expected.dense).astype(np.float64))
    np.testing.assert_allclose(batch.dense, logs, rtol=1e-6)
    assert batch.dense[1, 1] < 0


def test_a_quote_is_a_letter(write):
    line = LINES[0].replace("68fd1e64", '"68fd')
    (batch,) = read_criteo(write([line, LINES[1]]))
    assert batch.bags["C1"].keys[0] == key("C1", '"68fd')
    assert batch.size == 2


def test_it_is_the_same_table_with_a_header_as_csv(write):
    header = "\t".join(["label", *DENSE, *SLOTS])
    path = write([header, *LINES], "t.tsv")
    table = read_csv(path, slots=SLOTS, dense=DENSE, delimiter="\t", log_dense=True)
    assert bits(table) == bits(read_criteo(write(LINES)))


def test_columns_are_chosen_by_name(write):
    (batch,) = read_criteo(write(LINES), slots=["C26", "C1"], dense=["I2"], log_dense=False)
    assert tuple(batch.bags) == ("C26", "C1")
    assert batch.dense.tolist() == [[1], [-2]]
    with pytest.raises(ConfigError, match=r"no column 'C27' in .*train\.txt"):
        read_criteo(write(LINES), slots=["C27"])


def test_a_test_set_has_no_labels(write):
    path = write([line[2:] for line in LINES], "test.txt")
    with pytest.raises(
        ConfigError,
        match=r"no label 'label' in .*test\.txt, whose lines have 39 fields; "
        r"read it with label=None",
    ):
        read_criteo(path)
    (batch,) = read_criteo(path, label=None)
    (labelled,) = read_criteo(write(LINES), label=None)
    assert batch.label is None
    assert bits([batch]) == bits([labelled])
    assert bits([batch])[0][1:] == bits(read_criteo(write(LINES)))[0][1:]


def test_labelled_files_and_others_mix_for_prediction(write):
    paths = [write(LINES), write([line[2:] for line in LINES], "test.txt")]
    assert [batch.size for batch in read_criteo(paths, label=None, batch_size=3)] == [3, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\t2", r"a line has 39 or 40 fields, got 2 at .*train\.txt, line 1; mend the line"),
        (LINES[0] + "\tx", r"a line has 39 or 40 fields, got 41 at .*train\.txt, line 1; mend"),
        (LINES[0].replace("1382", "x"), r"dense column 'I5' needs a number, got 'x' at .*, line 1"),
        (LINES[0][1:], r"label 'label' needs a finite number in every row, got nothing at .*, l"),
    ],
)
def test_a_wrong_line_is_named(write, line, message):
    with pytest.raises(DataError, match=message):
        list(read_criteo(write([line, *LINES])))
    with pytest.raises(DataError, match=message.replace("39 or ", "").replace("line 1", "line 3")):
        list(read_criteo(write([*LINES, line])))


def test_an_empty_file_has_no_rows(write):
    with pytest.raises(DataError, match=r"a reader needs rows, found none in .*train\.txt"):
        read_criteo(write([""]))


# ------------------------------------------------------------------ written from synthetic samples


@pytest.mark.parametrize("name", ["t.txt", "t.tsv", "t.txt.gz", "t.txt.zst"])
def test_synthetic_samples_are_read_as_they_were_made(tmp_path, name):
    reader = synthetic_criteo(num_samples=6000, batch_size=1000, scale=1e-3)
    assert reader.write_criteo(tmp_path / name) == 6000
    again = read_criteo(tmp_path / name, batch_size=1000)
    assert bits(again) == bits(reader)
    for mine, other in zip(again.split(0.3), reader.split(0.3), strict=True):
        assert bits(mine) == bits(other)


def test_a_side_of_a_split_is_written_alone(tmp_path):
    train, evaluation = synthetic_criteo(num_samples=6000, scale=1e-3).split(0.2)
    number = evaluation.write_criteo(tmp_path / "t.txt")
    assert bits(read_criteo(tmp_path / "t.txt")) == bits(evaluation)
    assert number + train.write_criteo(tmp_path / "u.txt") == 6000


def test_a_synthetic_line_is_in_criteos_form(tmp_path):
    synthetic_criteo(num_samples=1000).write_criteo(tmp_path / "t.txt.gz")
    lines = gzip.decompress((tmp_path / "t.txt.gz").read_bytes()).decode().split("\n")
    assert lines.pop() == ""
    assert len(lines) == 1000
    fields = [line.split("\t") for line in lines]
    assert {len(each) for each in fields} == {40}
    assert {each[0] for each in fields} == {"0", "1"}
    assert all(not text or int(text) >= 0 for each in fields for text in each[1:14])
    texts = {text for each in fields for text in each[14:]}
    assert "" in texts
    assert {len(text) for text in texts} == {0, 8}
    assert all(int(text, 16) >= 0 for text in texts if text)
