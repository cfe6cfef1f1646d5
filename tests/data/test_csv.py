"""What is said of CSV alone: text as it stands, and the line of every fault."""

import bz2
import gzip

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from hetero_pipe.data import read_csv
from hetero_pipe.errors import DataError

HEADER = "user,price,label\n"


@pytest.fixture
def read(tmp_path):
    """Writes text to a file and reads it in one batch."""

    def read(text, name="t.csv", **options):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        options = {"slots": ["user"], "dense": ["price"], "batch_size": 10**6, **options}
        (batch,) = read_csv(path, **options).batches(0)
        return batch

    return read


def keys(*texts, slot="user"):
    seed = xxhash.xxh64_intdigest(slot.encode(), 0)
    return [xxhash.xxh64_intdigest(text.encode(), seed) for text in texts]


def test_a_slot_is_text_as_it_stands(read):
    texts = ["007", "7", "7.0", " 7", "NA", "null", "true", "2013-01-31", "-"]
    batch = read(HEADER + "".join(f"{text},1,0\n" for text in texts))
    assert batch.bags["user"].keys.tolist() == keys(*texts)


def test_quotes_guard_delimiters_newlines_and_quotes(read):
    batch = read(HEADER + '"a,b",1,0\n"a\nb",2,0\n"a""b",3,0\n')
    assert batch.bags["user"].keys.tolist() == keys("a,b", "a\nb", 'a"b')


@pytest.mark.parametrize("spelled", ["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "-nan"])
def test_a_missing_dense_value_is_zero(read, spelled):
    batch = read(HEADER + f"a,{spelled},0\nb, 2.5 ,1\n")
    assert batch.dense.tolist() == [[0.0], [2.5]]


def test_numbers_round_to_float32_as_doubles_do(read):
    batch = read(HEADER + "a,0.1,0\nb,16777217,0\nc,1e-50,0\n")
    expected = np.array([0.1, 16777217, 1e-50]).astype(np.float32)
    assert batch.dense[:, 0].tobytes() == expected.tobytes()


def zstd(data):
    return pa.Codec("zstd").compress(data, asbytes=True)


def lz4(data):
    return pa.Codec("lz4").compress(data, asbytes=True)


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [("gz", gzip.compress), ("bz2", bz2.compress), ("zst", zstd), ("lz4", lz4)],
)
def test_packed_files_are_read(read, suffix, pack):
    text = HEADER + "a,1,0\nb,2,1\n"
    packed = read(pack(text.encode()), name=f"t.csv.{suffix}")
    assert packed.bags["user"].keys.tolist() == read(text).bags["user"].keys.tolist()


def test_a_byte_order_mark_and_blank_lines_do_not_count(read):
    batch = read("\ufeff" + HEADER + "\n\na,1,0\r\n\r\nb,2,1")
    assert batch.bags["user"].keys.tolist() == keys("a", "b")


def test_an_archive_of_several_parts_is_read_whole(read):
    parts = gzip.compress((HEADER + "a,1,0\n").encode()) + gzip.compress(b"b,2,1\n")
    assert read(parts, name="t.csv.gz").bags["user"].keys.tolist() == keys("a", "b")


def test_ends_of_lines_may_be_returns_alone(read):
    assert read("user,price,label\ra,1,0\rb,2,1").bags["user"].keys.tolist() == keys("a", "b")


def test_another_delimiter(read):
    batch = read("user|price|label\na,b|1|0\n", delimiter="|")
    assert batch.bags["user"].keys.tolist() == keys("a,b")


def test_files_may_order_their_columns_differently(read, tmp_path):
    (tmp_path / "a.csv").write_text(HEADER + "a,1,0\n")
    (tmp_path / "b.csv").write_text("more,label,price,user\nx,1,2,b\n")
    reader = read_csv([tmp_path / "a.csv", tmp_path / "b.csv"], slots=["user"], dense=["price"])
    (batch,) = reader.batches(0)
    assert batch.bags["user"].keys.tolist() == keys("a", "b")
    assert batch.dense.tolist() == [[1], [2]]
    assert batch.label.tolist() == [0, 1]


def test_files_larger_than_a_block_are_read_whole(read):
    lines = [f'"user {i}\n{"x" * 100}",{i},{i % 2}\n' for i in range(30_000)]  # 3.5 MiB
    batch = read(HEADER + "".join(lines))
    assert batch.size == 30_000
    np.testing.assert_array_equal(batch.dense[:, 0], np.arange(30_000))


# --- faults


MANY = "".join(f"user {i},{i},1\n" for i in range(200_000))  # several blocks

FAULTS = [
    pytest.param("a,1\n", r"the header, 3, got 2 at .*t\.csv, line 2; ", id="few"),
    pytest.param("a,1,0,0\n", r"the header, 3, got 4 at .*, line 2; quote .* ','", id="many"),
    pytest.param(
        "a,ten,0\n", "dense column 'price' needs a number, got 'ten' at .*, line 2", id="text"
    ),
    pytest.param("a,1_0,0\n", "needs a number, got '1_0' at .*, line 2", id="underscore"),
    pytest.param("a,1,yes\n", "label 'label' needs a number, got 'yes' at .*, line 2", id="label"),
    pytest.param(
        "a,1,\n", "label 'label' needs a finite number in every row, got nothing", id="no label"
    ),
    pytest.param("a,1,nan\n", "in every row, got nothing at .*, line 2; drop the row", id="nan"),
    pytest.param("a,1,inf\n", "in every row, got inf at .*, line 2", id="infinite label"),
    pytest.param(
        "a,-inf,1\n",
        "dense column 'price' needs values that a float32 holds, got -inf at",
        id="infinite",
    ),
    pytest.param("a,1e39,1\n", r"that a float32 holds, got 1e\+39 at .*, line 2; clip", id="huge"),
    pytest.param(b"a\0,1,1\n", "a line has no null character, got one at .*, line 2", id="null"),
    pytest.param(
        b"\xff,1,1\n", r"slot 'user' needs text in UTF-8, got b'.xff' at .*, line 2", id="bytes"
    ),
]


@pytest.mark.parametrize(("line", "message"), FAULTS)
def test_a_fault_names_file_and_line(read, line, message):
    line = line if isinstance(line, bytes) else line.encode()
    with pytest.raises(DataError, match=message):
        read(HEADER.encode() + line)


@pytest.mark.parametrize(("line", "message"), FAULTS)
def test_the_line_is_counted_through_blank_lines_quotes_and_blocks(read, line, message):
    line = line if isinstance(line, bytes) else line.encode()
    before = '\n"two\nlines",1,1\n\n' + MANY  # lines 2 to 5, then 200,000
    with pytest.raises(DataError, match=message.replace("line 2", "line 200006")):
        read(HEADER.encode() + before.encode() + line + b"z,1,1\n")


def test_a_quote_that_nobody_closes_is_a_fault(read):
    # pyarrow takes the rest of the file for its field.
    with pytest.raises(DataError, match=r"found no closing quote at .*t\.csv, line 3; close the"):
        read(HEADER + 'a,1,0\n"b,1,0\nc,1,0\n')
    with pytest.raises(DataError, match=r"found no closing quote at .*t\.csv, line 3; close the"):
        read(HEADER + 'a,1,0\n"b,1,0\n' + MANY)


def test_the_first_of_several_faults_is_named(read):
    with pytest.raises(DataError, match=r"got 'x' at .*, line 3"):
        read(HEADER + "a,1,0\nb,x,0\nc\nd,y,0\n")


def test_the_faulty_one_of_several_files_is_named(tmp_path):
    (tmp_path / "good.csv").write_text(HEADER + "a,1,0\n")
    (tmp_path / "bad.csv").write_text(HEADER + "a,1,0\nb,2,?\n")
    reader = read_csv([tmp_path / "good.csv", tmp_path / "bad.csv"], slots=["user"])
    with pytest.raises(DataError, match=r"got '\?' at .*bad\.csv, line 3"):
        list(reader.batches(0))


def test_a_fault_in_a_packed_file_is_found(read):
    with pytest.raises(DataError, match=r"got 'x' at .*t\.csv\.gz, line 3"):
        read(gzip.compress((HEADER + "a,1,0\nb,x,0\n").encode()), name="t.csv.gz")


def test_faults_in_columns_that_are_not_read_are_no_faults(read):
    batch = read("user,other,price,label\na,x,1,0\nb,,2,1\n")
    assert batch.size == 2


def test_an_empty_file_is_refused_at_once(read):
    with pytest.raises(DataError, match=r"a CSV file has a header line, found none in .*t\.csv"):
        read("")
    with pytest.raises(DataError, match="a CSV file has a header line"):
        read("\n\n")


def test_files_without_rows_are_refused_at_once_but_one_among_others_is_not(read, tmp_path):
    with pytest.raises(DataError, match=r"a reader needs rows, found none in .*t\.csv"):
        read(HEADER)
    (tmp_path / "full.csv").write_text(HEADER + "a,1,0\n")
    (batch,) = read_csv([tmp_path / "t.csv", tmp_path / "full.csv"], slots=["user"]).batches(0)
    assert batch.size == 1


def test_two_columns_of_one_name_are_refused(read):
    with pytest.raises(DataError, match=r"column 'user' stands 2 times in .*; rename all but one"):
        read("user,user,price,label\na,b,1,0\n")


def test_a_broken_archive_is_refused(read):
    whole = gzip.compress((HEADER + MANY).encode())
    with pytest.raises(
        DataError, match=r"a CSV file must be readable text, could not read .*t\.csv\.gz"
    ):
        read(whole[: len(whole) // 2], name="t.csv.gz")
    with pytest.raises(DataError, match=r"could not read .*t\.csv\.gz"):
        read(HEADER + "a,1,0\n", name="t.csv.gz")


def test_a_file_that_vanishes_after_the_reader_is_made_is_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "a,1,0\n")
    reader = read_csv(path, slots=["user"])
    path.unlink()
    with pytest.raises(DataError, match=r"could not read .*t\.csv: "):
        list(reader.batches(0))


def test_a_parquet_file_is_no_csv(read):
    with pytest.raises(ValueError, match=r"t\.csv"):
        read(b"PAR1\x15\x04\x15\xff" + bytes(100) + b"PAR1")


@pytest.mark.parametrize("delimiter", ["", "ab", "→", "|"])
def test_a_wrong_delimiter_is_refused(read, delimiter):
    with pytest.raises(ValueError, match=r"delimiter is one ASCII character .* got delimiter="):
        read(HEADER + "a,1,0\n", delimiter=delimiter, multi_hot_separator="|")
