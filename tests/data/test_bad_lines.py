"""Lines that cannot be read are written down once and left out; all the others are read."""

import gzip
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_pipe.data import read_criteo, read_csv
from hetero_pipe.errors import ConfigError, DataError

HEADER = b"user,price,label\n"
COLUMNS = {"slots": ["user"], "dense": ["price"]}

# A bad line of each kind, and what is said of it.
BAD = {
    "few": (b"a,1", "a line has as many fields as the header, 3, got 2"),
    "many": (b"a,1,0,0", "a line has as many fields as the header, 3, got 4"),
    "text": (b"a,ten,0", "dense column 'price' needs a number, got 'ten'"),
    "form feed": (b"a,\f1,0", "a line is well formed, got what pyarrow refuses (In CSV column "),
    "label": (b"a,1,yes", "label 'label' needs a number, got 'yes'"),
    "no label": (b"a,1,", "label 'label' needs a finite number in every row, got nothing"),
    "nan": (b"a,1,nan", "label 'label' needs a finite number in every row, got nothing"),
    "infinite": (b"a,1,-inf", "label 'label' needs a finite number in every row, got -inf"),
    "huge": (b"a,1e39,1", "dense column 'price' needs values that a float32 holds, got 1e+39"),
    "bytes": (b"\xff,1,1", "slot 'user' needs text in UTF-8, got b'\\xff'"),
    "null": (b"a\0,1,1", "a line has no null character, got one"),
    "quote": (b'"a,1,1', "a quoted field ends within 1 MiB, found no closing quote"),
    "space": (b" ", "a line has as many fields as the header, 3, got 1"),
}


@pytest.fixture
def side(tmp_path):
    return tmp_path / "bad.tsv"


@pytest.fixture
def read(tmp_path, side):
    """Writes a file and returns its tolerant reader."""

    def read(text, name="t.csv", **options):
        path = tmp_path / name
        path.write_bytes(text)
        return read_csv(path, **{**COLUMNS, "bad_lines": side, **options})

    return read


def rows_of(batches):
    return [
        row
        for batch in batches
        for row in zip(
            batch.bags["user"].keys.tolist(),
            batch.dense[:, 0].tolist(),
            batch.label.tolist(),
            strict=True,
        )
    ]


def entries(side):
    first, *lines = side.read_bytes().split(b"\n")[:-1]
    assert first == b"file\tline\treason\traw"
    return [line.split(b"\t", 3) for line in lines]


def prices(reader):
    return [row[1] for row in rows_of(reader.batches(0))]


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_left_out_and_written_down(read, side, tmp_path, kind):
    line, reason = BAD[kind]
    reader = read(HEADER + b"a,1,0\n" + line + b"\nb,2,1\n")
    assert prices(reader) == [1, 2]
    ((path, number, said, raw),) = entries(side)
    assert (path, number, raw) == (str(tmp_path / "t.csv").encode(), b"3", line)
    assert said.decode().startswith(reason)
    # Without a side file it is an error of the same words.
    with pytest.raises(DataError) as error:
        list(read(HEADER + b"a,1,0\n" + line + b"\nb,2,1\n", bad_lines=None).batches(0))
    assert said.decode() in str(error.value)
    assert "t.csv, line 3; " in str(error.value)


# Two quotes that are not closed close each other: together they may be one good row.
@pytest.mark.parametrize("kind", sorted(BAD.keys() - {"quote"}))
def test_a_bad_line_may_be_the_first_or_the_last_and_end_as_it_likes(read, side, kind):
    line, _ = BAD[kind]
    assert prices(read(HEADER + line + b"\r\na,1,0\r\n\r\nb,2,1\r\n" + line)) == [1, 2]
    assert [(number, raw) for _, number, _, raw in entries(side)] == [(b"2", line), (b"6", line)]


def many(num_rows, bad, seed=0):
    """Several blocks of text with bad lines strewn in; the text, its good rows and bad lines."""
    rng = random.Random(seed)
    lines = [b"user %d,%d,%d" % (i, i, i % 2) for i in range(num_rows)]
    found = {}
    for line in bad:
        at = rng.randrange(len(lines))
        while at in found:
            at = rng.randrange(len(lines))
        found[at], lines[at] = line, line
    good = [i for i in range(num_rows) if i not in found]
    return HEADER + b"\n".join(lines) + b"\n", good, {at + 2: line for at, line in found.items()}


def test_bad_lines_of_every_kind_in_several_blocks(read, side):
    # A quote that is not closed takes the lines after it along, until they are read anew.
    text, good, bad = many(120_000, [line for line, _ in BAD.values()] * 2)
    reader = read(text)
    assert prices(reader) == good
    assert {int(number): raw for _, number, _, raw in entries(side)} == bad


def test_the_good_rows_are_those_of_the_file_without_the_bad_lines(read, tmp_path):
    text, _, bad = many(15_000, [line for line, _ in BAD.values()])
    lines = text.split(b"\n")
    (tmp_path / "good.csv").write_bytes(
        b"\n".join(line for i, line in enumerate(lines, 1) if i not in bad)
    )
    options = {"shuffle": 7000, "batch_size": 1000, "seed": 3}
    clean = read_csv(tmp_path / "good.csv", **COLUMNS, **options)
    tolerant = read(text, **options)
    for epoch in (0, 1):
        expected = rows_of(clean.batches(epoch))
        assert rows_of(tolerant.batches(epoch)) == expected
        assert rows_of(tolerant.batches(epoch, skip=7)) == expected[7000:]
    for mine, other in zip(tolerant.split(0.3), clean.split(0.3), strict=True):
        assert rows_of(mine.batches(0)) == rows_of(other.batches(0))


def test_a_bad_line_is_written_once_whoever_reads_it(read, side):
    text, _, bad = many(5000, [line for line, _ in BAD.values()])
    reader = read(text, max_bad_lines=len(bad))
    readers = [*reader.split(0.5), reader.in_order(), reader]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: [list(each.batches(epoch)) for epoch in (0, 1)], readers))
    assert len(entries(side)) == len(bad)


def test_past_the_limit_the_error_tells_how_many_where_and_why(read, side):
    text = HEADER + b"a,1,0\nb\nc,2,1\nd,x,0\ne,3,1\n"
    assert prices(read(text, max_bad_lines=2)) == [1, 2, 3]
    reader = read(text, max_bad_lines=1)
    for _ in range(2):  # it stays an error
        with pytest.raises(
            DataError,
            match=r"at most max_bad_lines=1 lines are left out, found 2, the last at .*t\.csv, "
            r"line [35]: .*; .*bad\.tsv has them all: mend them, or raise max_bad_lines",
        ):
            list(reader.batches(0))
    assert [number for _, number, _, _ in entries(side)] == [b"3", b"5"]
    with pytest.raises(DataError, match="max_bad_lines=0 lines are left out, found 1"):
        list(read(text, max_bad_lines=0).batches(0))


def test_lines_guarded_by_quotes_are_one_bad_line_or_good_ones(read, side):
    text = HEADER + b'"a\nb",1,0\n"c\nd",2,nan\n"e\nf",x,1\n"g\nh",3,1\n'
    assert prices(read(text)) == [1, 3]
    # A row whose value is wrong is one; one that does not parse is taken apart.
    assert [(number, raw) for _, number, _, raw in entries(side)] == [
        (b"4", b'"c\\nd",2,nan'),
        (b"6", b'"e'),
        (b"7", b'f",x,1'),
    ]


def test_a_stray_quote_costs_one_line(read, side):
    good = b"".join(b"b,%d,1\n" % i for i in range(1000))
    assert len(prices(read(HEADER + b'"a,1,1\n' + good + b'"c,\n1",7,0\nd,8,0\n'))) == 1002
    assert [number for _, number, _, _ in entries(side)] == [b"2"]
    assert prices(read(HEADER + b'a,1,0\n"b,2,1')) == [1]
    # Far from any other quote, also across blocks.
    good = b"".join(b"b,%d,1\n" % i for i in range(100_000))
    assert len(prices(read(HEADER + b'"a,1,1\n' + good))) == 100_000
    assert [number for _, number, _, _ in entries(side)] == [b"2"]


def test_a_stray_quote_before_blank_lines_costs_one_line(read, side):
    assert prices(read(HEADER + b'a,1,0\n"b,2,1\n\n\r\n\n')) == [1]
    assert [(number, raw) for _, number, _, raw in entries(side)] == [(b"3", b'"b,2,1')]


TEXTS = st.lists(
    st.sampled_from(
        [b"a,1,0\n", b'"b\nc",2,1\n', b"a", b",", b'"', b"\n", b"\r\n", b"\0", b"\xff", b"1"]
    )
).map(b"".join)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXTS)
def test_any_text_is_read_and_every_line_is_accounted_for(read, side, text):
    reader = read(HEADER + b"z,9,1\n" + text, max_bad_lines=1000)
    num_rows = len(prices(reader))
    lines = (HEADER + b"z,9,1\n" + text).splitlines()
    bad = {int(number): raw for _, number, _, raw in entries(side)}
    for number, raw in bad.items():
        assert raw.split(b"\\n")[0] == lines[number - 1]
    # A row is one line, or two where quotes guard a newline; blank lines are none.
    num_blank = sum(not line for line in lines)
    assert num_rows + len(bad) <= len(lines) - 1
    if b'"' not in text:
        assert num_rows + len(bad) == len(lines) - 1 - num_blank


def test_bad_lines_of_a_packed_file_are_left_out_but_a_packed_file_cut_short_is_an_error(
    read, side
):
    text, good, bad = many(60_000, [line for line, _ in BAD.values()])
    packed = gzip.compress(text, 1)
    assert prices(read(packed, name="t.csv.gz")) == good
    assert len(entries(side)) == len(bad)
    for end in (len(packed) // 2, len(packed) - 4):
        with pytest.raises(DataError, match=r"could not read .*t\.csv\.gz"):
            list(read(packed[:end], name="t.csv.gz").batches(0))


def test_each_file_counts_its_own_lines(tmp_path, side):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(HEADER + b"x\na,1,0\n")
    reader = read_csv([tmp_path / "a.csv", tmp_path / "b.csv"], **COLUMNS, bad_lines=side)
    assert prices(reader) == [1, 1]
    found = [(path.decode()[-5:], number) for path, number, _, _ in entries(side)]
    assert found == [("a.csv", b"2"), ("b.csv", b"2")]


def test_a_file_of_bad_lines_alone_gives_no_batch(read):
    assert list(read(HEADER + b"x\ny\n").batches(0)) == []


def test_criteo_lines_are_left_out_likewise(tmp_path, side):
    line = b"\t".join([b"1", *[b"2"] * 13, *[b"05db9164"] * 26])
    bad = [line + b"\t", line[2:], b"x" + line[1:], line.replace(b"\t2\t", b"\tten\t", 1), line[1:]]
    (tmp_path / "t.txt").write_bytes(b"\n".join([bad[0], line, *bad[1:], b"", line]))
    reader = read_criteo(tmp_path / "t.txt", bad_lines=side)
    assert sum(batch.size for batch in reader.batches(0)) == 2
    assert [(number, raw) for _, number, _, raw in entries(side)] == [
        (b"%d" % number, raw) for number, raw in zip((1, 3, 4, 5, 6), bad, strict=True)
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_bad_lines": -1}, "max_bad_lines is at least 0, got max_bad_lines=-1"),
        ({"bad_lines": "/no/such/folder/bad.tsv"}, "bad_lines names a file to write, could not"),
    ],
)
def test_wrong_options_are_refused(read, options, message):
    with pytest.raises(ConfigError, match=message):
        read(HEADER + b"a,1,0\n", **options)


def test_the_side_file_is_none_of_the_files_to_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(HEADER + b"a,1,0\n")
    with pytest.raises(ConfigError, match=r"a file to replace, got .*t\.csv, which is to be read"):
        read_csv(path, **COLUMNS, bad_lines=path)
    assert path.read_bytes() == HEADER + b"a,1,0\n"
