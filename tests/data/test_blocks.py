"""Blocks are cut where pyarrow ends a record, whatever quotes guard, and count their lines."""

import io

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hetero_pipe.data.formats.blocks import is_closed, read_blocks
from hetero_pipe.errors import DataError

MARK = b"\xef\xbb\xbf"


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    path = tmp_path_factory.mktemp("blocks") / "t.csv"

    def cut(text, size=1 << 20, is_quoted=True):
        path.write_bytes(text)
        return list(read_blocks(path, delimiter=",", is_quoted=is_quoted, size=size))

    return cut


def records_of(text, is_quoted=True):
    """What pyarrow makes of a text: the fields of each record, however many there are."""
    if not text.strip(b"\r\n"):
        return []
    # Wide enough for any line; the handler is given those that are not.
    found = []
    options = pa.csv.ParseOptions(
        quote_char='"' if is_quoted else False,
        newlines_in_values=is_quoted,
        invalid_row_handler=lambda row: found.append(row.text) or "skip",
    )
    table = pa.csv.read_csv(
        pa.BufferReader(text),
        pa.csv.ReadOptions(column_names=["a"], use_threads=False),
        options,
        pa.csv.ConvertOptions(column_types={"a": pa.binary()}, strings_can_be_null=False),
    )
    return sorted(found) + table["a"].to_pylist()


def joined(blocks, is_quoted):
    found = [records_of(block.text, is_quoted) for block in blocks]
    texts = sorted(text for each in found for text in each if isinstance(text, str))
    return texts + [text for each in found for text in each if isinstance(text, bytes)]


TEXTS = st.lists(st.sampled_from([b"a", b",", b'"', b'"', b"\n", b"\r\n", b"\r", b'"\n'])).map(
    b"".join
)


@settings(max_examples=400, deadline=None)
@given(TEXTS, st.integers(1, 40), st.booleans())
@example(b'a,"b""\n"\n', 4, True)
@example(b'a"b,"c\n"\n', 4, True)
@example(b"a\r\na", 2, True)
def test_blocks_parse_as_their_file_does(cut, text, size, is_quoted):
    blocks = cut(text, size, is_quoted)
    assert b"".join(block.text for block in blocks) == text
    if any(block.is_open for block in blocks):  # what pyarrow would run together
        return
    assert joined(blocks, is_quoted) == records_of(text, is_quoted)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.integers(1, 40))
def test_a_block_begins_on_its_line(cut, text, size):
    before = b""
    for block in cut(text, size):
        assert block.line == 1 + len(io.StringIO(before.decode(), newline="").readlines())
        before += block.text


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_an_open_quote_is_found_where_pyarrow_swallows_what_follows(text):
    if not text.strip(b"\r\n"):
        return
    # A row after the text is one of its own unless a quote is open.
    whole = text if text.endswith(b"\n") else text + b"\n"
    swallows = len(records_of(whole + b"mark\n")) == len(records_of(whole))
    assert is_closed(text, ",", True) == (not swallows)


def test_a_mark_is_no_text_but_at_the_start(cut):
    assert [block.text for block in cut(MARK + b"a\n" + MARK + b"b\n")] == [b"a\n" + MARK + b"b\n"]


def test_a_quote_that_nobody_closes_opens_one_line(cut):
    good = b"".join(b"%d,x\n" % i for i in range(20))
    blocks = cut(b'1,"x\n' + good, size=30)
    assert (blocks[0].text, blocks[0].line, blocks[0].is_open) == (b'1,"x\n', 1, True)
    assert not any(block.is_open for block in blocks[1:])
    assert b"".join(block.text for block in blocks[1:]) == good
    # Without quoting it is a letter like any other.
    assert not any(block.is_open for block in cut(b'1,"x\n' + good, 30, is_quoted=False))


def test_a_line_longer_than_a_block_is_read_whole(cut):
    text = b"a" * 1000 + b"\nb\n"
    assert b"".join(block.text for block in cut(text, size=16)) == text
    assert not any(block.is_open for block in cut(text, size=16))


def test_a_file_without_ends_of_lines_is_refused(cut):
    with pytest.raises(DataError, match=r"ends within 16 MiB, found no end at .*t\.csv, line 1;"):
        cut(bytes(17 << 20))
