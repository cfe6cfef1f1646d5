"""The journal: what was appended is replayed, or an error names file and byte."""

import errno
import logging
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ps_server.journal import Journal, JournalError, replay

KEYS = np.arange(10, dtype=np.uint64)


@contextmanager
def files_of_at_most(size):
    """Has the operating system cut a write short at this size of a file, then refuse."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def contents(folder, start=1):
    """What a journal has: number, kind and bytes of the pieces of each record."""
    return list(contents_of(replay(folder, start=start)))


def contents_of(records):
    for record in records:
        yield record.number, record.kind, [bytes(piece) for piece in record.pieces]


RECORDS = [
    (1, 7, [b"first"]),
    (2, 8, []),
    (3, 7, [b"", KEYS.tobytes(), bytes(64), b"x" * 65]),
    (4, 2**32 - 1, [b"last", KEYS[:3].tobytes()]),
]


def write(folder, records=RECORDS):
    with Journal(folder, next_number=records[0][0]) as journal:
        for number, kind, pieces in records:
            assert journal.append(kind, pieces) == number
    (path,) = folder.glob(f"journal-{records[0][0]:020d}.log")
    return path


def ends_of(folder):
    """Where each record ends, by the file's growth at each append."""
    ends = [0]
    with Journal(folder) as journal:
        for _, kind, pieces in RECORDS:
            journal.append(kind, pieces)
            ends.append(journal.size_since(1))
    return ends


def test_records_come_back_in_their_order(tmp_path):
    write(tmp_path)
    assert contents(tmp_path) == RECORDS
    assert contents(tmp_path) == RECORDS, "a replay leaves them"


def test_no_journal_has_no_records(tmp_path):
    assert contents(tmp_path / "nowhere") == []
    Journal(tmp_path).close()
    assert contents(tmp_path) == []


def test_arrays_come_back_aligned_and_without_a_copy(tmp_path):
    with Journal(tmp_path) as journal:
        for _ in range(3):
            journal.append(1, [b"odd", np.ones((5, 3), np.float32), KEYS[:0], KEYS])
    records = list(replay(tmp_path))  # their pieces stay readable when the replay is over
    assert len(records) == 3
    for record in records:
        _, ones, empty, keys = record.pieces
        assert np.frombuffer(keys, np.uint64).ctypes.data % 64 == 0
        assert np.array_equal(np.frombuffer(keys, np.uint64), KEYS)
        assert np.array_equal(np.frombuffer(ones, np.float32), np.ones(15))
        assert len(empty) == 0


def test_more_pieces_than_one_call_takes_are_one_record(tmp_path):
    pieces = [bytes([i % 256]) for i in range(3000)]
    write(tmp_path, [(1, 5, pieces)])
    assert contents(tmp_path) == [(1, 5, pieces)]


def test_cut_at_every_byte_it_holds_exactly_the_whole_records_before(tmp_path, caplog):
    ends = ends_of(tmp_path / "sizes")
    whole = write(tmp_path / "whole").read_bytes()
    assert ends[-1] == len(whole)
    for size in range(len(whole) + 1):
        folder = tmp_path / str(size)
        folder.mkdir()
        path = folder / "journal-00000000000000000001.log"
        path.write_bytes(whole[:size])
        caplog.clear()
        num_whole = sum(end <= size for end in ends[1:])
        assert contents(folder) == RECORDS[:num_whole]
        is_torn = size not in ends
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * is_torn
        assert path.stat().st_size == ends[num_whole], "the rest is cut off"
        with Journal(folder, next_number=num_whole + 1) as journal:
            journal.append(9, [b"goes on"])
        assert contents(folder) == [*RECORDS[:num_whole], (num_whole + 1, 9, [b"goes on"])]


def test_every_changed_byte_is_an_error_or_a_last_record_that_is_cut(tmp_path, caplog):
    ends = ends_of(tmp_path / "sizes")
    path = write(tmp_path / "whole")
    whole = path.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0xFF >> (at % 8)
        path.write_bytes(changed)
        caplog.clear()
        num_before = sum(end <= at for end in ends[1:])
        found = []
        if num_before == len(RECORDS) - 1:
            found = contents(path.parent)
            assert f"a part of record {len(RECORDS)}" in caplog.text
            assert str(path) in caplog.text
        else:
            with pytest.raises(JournalError) as raised:
                found.extend(contents_of(replay(path.parent)))
            assert f"number {num_before + 1} at byte {ends[num_before]} of {path}" in str(
                raised.value
            )
            assert path.stat().st_size == len(whole), "nothing is cut off"
        assert found == RECORDS[:num_before]


def test_damage_at_the_end_of_a_segment_that_is_not_the_last_is_an_error(tmp_path):
    path = write(tmp_path, RECORDS[:3])
    write(tmp_path, RECORDS[3:])
    assert contents(tmp_path) == RECORDS
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(JournalError, match=f"number 3 at byte .* of {path}"):
        contents(tmp_path)


def test_zeros_behind_the_last_record_are_cut(tmp_path, caplog):
    path = write(tmp_path)
    size = path.stat().st_size
    os.truncate(path, size + 500)
    assert contents(tmp_path) == RECORDS
    assert "cut 500 bytes" in caplog.text
    assert path.stat().st_size == size


def test_record_under_another_number_is_an_error(tmp_path):
    path = write(tmp_path, RECORDS[2:])
    path = path.rename(tmp_path / "journal-00000000000000000001.log")
    with pytest.raises(JournalError, match=f"number 3 at byte 0 of {path}, where 1 is due"):
        contents(tmp_path)


def rotated(folder):
    """Records 1 to 6, two a segment."""
    with Journal(folder) as journal:
        for number in range(1, 7):
            journal.append(number, [])
            if number % 2 == 0:
                assert journal.rotate() == number + 1
                assert journal.rotate() == number + 1, "an empty segment is new enough"
    return [int(path.stem[-20:]) for path in sorted(folder.glob("journal-*.log"))]


def test_segments_follow_one_another(tmp_path):
    assert rotated(tmp_path) == [1, 3, 5, 7]
    assert [number for number, _, _ in contents(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert [number for number, _, _ in contents(tmp_path, start=5)] == [5, 6]
    assert contents(tmp_path, start=7) == []


@pytest.mark.parametrize(
    ("start", "missing", "text"),
    [
        (1, 1, "must have the segment journal-00000000000000000001.log, got journal-"),
        (1, 3, "got record 5 at the start of .* where record 3 is due; a segment is missing"),
        (5, 5, "must have the segment journal-00000000000000000005.log"),
        (4, 7, "must have the segment journal-00000000000000000004.log"),
    ],
)
def test_missing_segment_is_an_error(tmp_path, start, missing, text):
    rotated(tmp_path)
    (tmp_path / f"journal-{missing:020d}.log").unlink()
    with pytest.raises(JournalError, match=text):
        contents(tmp_path, start=start)


def test_segments_without_need_are_dropped(tmp_path):
    rotated(tmp_path)
    with Journal(tmp_path, next_number=7) as journal:
        journal.append(1, [b"seven"])
        sizes = [journal.size_since(first) for first in (1, 2, 3, 7, 8)]
        assert sizes == [64 * 6 + 128, 64 * 4 + 128, 64 * 4 + 128, 128, 0]
        for number, left in [(2, [1, 3, 5, 7]), (4, [3, 5, 7]), (5, [5, 7]), (99, [7])]:
            journal.drop_before(number)
            found = [int(path.stem[-20:]) for path in sorted(tmp_path.glob("journal-*.log"))]
            assert found == left
        assert journal.size_since(1) == 128
    assert [number for number, _, _ in contents(tmp_path, start=7)] == [7]


def test_segment_with_records_is_not_begun_again(tmp_path):
    path = write(tmp_path)
    with pytest.raises(JournalError, match=f"got records in {path}; replay them first"):
        Journal(tmp_path)


@pytest.mark.parametrize("room", range(0, 200, 13))
def test_append_to_a_full_disk_leaves_nothing_and_works_again_later(tmp_path, room):
    with Journal(tmp_path) as journal:
        journal.append(1, [b"before"])
        size = journal.size_since(1)
        for _ in range(2):
            with (
                files_of_at_most(size + room),
                pytest.raises(JournalError, match=r"got File too large .*make room on the disk"),
            ):
                journal.append(2, [b"x" * 200])
            (path,) = tmp_path.iterdir()
            assert path.stat().st_size == journal.size_since(1) == size
        assert journal.append(3, [b"after"]) == 2
    assert contents(tmp_path) == [(1, 1, [b"before"]), (2, 3, [b"after"])]


def test_full_disk_in_the_middle_of_many_pieces_leaves_nothing(tmp_path):
    with Journal(tmp_path) as journal:
        with files_of_at_most(50_000), pytest.raises(JournalError):
            journal.append(1, [bytes(1)] * 3000)  # the first call writes its part whole
        journal.append(2, [b"after"])
    assert contents(tmp_path) == [(1, 2, [b"after"])]


APPENDS_UNTIL_IT_IS_KILLED = """
import sys
from pathlib import Path
from ps_server.journal import Journal
with Journal(Path(sys.argv[1])) as journal:
    while True:
        number = journal.next_number
        journal.append(number, [number.to_bytes(8, "little") * 5000])
        print(number, flush=True)
"""


def test_what_append_returned_survives_a_kill(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", APPENDS_UNTIL_IT_IS_KILLED, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with child:
        for _ in range(200):
            child.stdout.readline()
        child.kill()
        said = 200 + len(child.stdout.read().split(b"\n")[:-1])
    numbers = []
    for record in replay(tmp_path):
        assert bytes(record.pieces[0]) == record.number.to_bytes(8, "little") * 5000
        numbers.append(record.number)
    assert numbers == [*range(1, len(numbers) + 1)]
    assert len(numbers) in (said, said + 1)


def test_errors_of_the_operating_system_are_said(tmp_path):
    """The constant that this file's limit on a file's size makes, so that the tests mean it."""
    with files_of_at_most(10), (tmp_path / "file").open("wb", buffering=0) as file:
        assert file.write(bytes(20)) == 10
        with pytest.raises(OSError, match="File too large") as raised:
            file.write(bytes(20))
    assert raised.value.errno == errno.EFBIG
