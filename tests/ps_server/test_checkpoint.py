"""A server's checkpoint: whole or not there, and what damages it is named."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from ps_server.checkpoint import (
    KEEP,
    CheckpointError,
    Contents,
    checkpoint_numbers,
    newest_checkpoint,
    remove_leftovers,
    write_checkpoint,
)
from ps_server.keys import crc32c

ROOT = Path(__file__).parents[2]


def contents_of(number):
    """What the checkpoint of a number holds in these tests: other bytes for each."""
    return Contents(
        {"id": f"server-{number}", "clocks": [number, None]},
        {"applied": np.full(1000, number, np.uint64), "none": np.empty(0, np.int32)},
        [
            ("item", [(f"buckets-{i:04d}.arrow", bytes([number, i]) * 500) for i in range(3)]),
            ("user", []),
            ("ad.x-1_", [("buckets-0000.arrow", b"")]),
        ],
    )


def write(folder, number, **options):
    return write_checkpoint(folder, number, contents_of(number), **options)


def newest(folder, first_record=2):
    """The number of the newest checkpoint, after a look at all that is in it."""
    found = newest_checkpoint(folder, first_record=first_record)
    if found is None:
        return None
    expected = contents_of(found.number)
    assert found.state == expected.state
    assert {name: array.tolist() for name, array in found.arrays.items()} == {
        name: array.tolist() for name, array in expected.arrays.items()
    }
    assert {
        name: [(path.name, path.read_bytes()) for path in paths]
        for name, paths in found.snapshots.items()
    } == dict(expected.tables)
    return found.number


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_checkpoint_comes_back_whole(tmp_path):
    folder = tmp_path / "checkpoints"
    assert newest_checkpoint(folder, first_record=1) is None
    path = write(folder, 5)
    assert path == folder / "checkpoint-00000000000000000005"
    assert newest(folder) == 5


def test_the_last_ones_are_kept(tmp_path):
    assert KEEP == 2
    for number in (1, 9, 10, 100):
        write(tmp_path, number)
    assert names(tmp_path) == ["checkpoint-00000000000000000010", "checkpoint-00000000000000000100"]
    assert checkpoint_numbers(tmp_path) == [10, 100]
    assert newest(tmp_path) == 100


def test_same_number_is_the_same_state_and_written_once(tmp_path):
    path = write(tmp_path, 5)
    before = (path / "manifest.json").stat()
    assert write(tmp_path, 5) == path
    assert (path / "manifest.json").stat() == before


def test_same_number_replaces_one_that_is_damaged(tmp_path):
    path = write(tmp_path, 5)
    (path / "arrays/applied.npy").write_bytes(b"?")
    assert write(tmp_path, 5) == path
    assert newest(tmp_path) == 5
    assert names(tmp_path) == [path.name]


def files_of(path):
    return [file for file in sorted(path.rglob("*")) if file.is_file()]


DAMAGES = {
    "changed": lambda file: file.write_bytes(b"?" + file.read_bytes()[1:]),
    "cut": lambda file: os.truncate(file, file.stat().st_size - 1),
    "longer": lambda file: os.truncate(file, file.stat().st_size + 1),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_named(tmp_path, damage):
    path = write(tmp_path / "whole", 5)
    files = [file.relative_to(path) for file in files_of(path) if file.stat().st_size]
    assert len(files) == 6
    for number, name in enumerate(files):
        copy = shutil.copytree(path, tmp_path / str(number) / path.name)
        DAMAGES[damage](copy / name)
        with pytest.raises(CheckpointError) as raised:
            newest(copy.parent)
        assert str(copy / name) in str(raised.value)
        assert copy.exists(), "it stays for whoever looks at it"


def test_every_changed_byte_of_a_manifest_is_refused(tmp_path):
    path = write(tmp_path, 5) / "manifest.json"
    whole = path.read_bytes()
    num_equal = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with pytest.raises(CheckpointError) as raised:
            newest(tmp_path)
        assert str(path) in str(raised.value)
    for at in range(len(whole)):  # also where it is text of another meaning
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with suppress(CheckpointError):
            assert newest(tmp_path) == 5
            num_equal += 1  # such as a blank between two fields, as a line's end
    assert num_equal < len(whole) * 0.3


@pytest.mark.parametrize("content", ["[]", "{}", "3", "null", '{"crc32c": 1}', "not json"])
def test_manifest_of_another_shape_is_refused(tmp_path, content):
    path = write(tmp_path, 5) / "manifest.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=str(path)):
        newest(tmp_path)


def damage(path):
    (path / "tables/item/buckets-0001.arrow").write_bytes(b"damaged")


def test_older_one_and_the_journal_make_up_for_a_damaged_one(tmp_path, caplog):
    write(tmp_path, 5)
    damage(write(tmp_path, 9))
    assert newest(tmp_path, first_record=5) == 5
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "item/buckets-0001.arrow; the file is damaged; the journal makes up for it" in (
        warning.getMessage()
    )
    assert names(tmp_path) == [
        "checkpoint-00000000000000000005",
        "checkpoint-00000000000000000009.broken",
    ]
    for number in (12, 15):  # what is broken does not count as one that is kept
        write(tmp_path, number)
        assert len(checkpoint_numbers(tmp_path)) == 2


def test_the_whole_journal_makes_up_for_all_that_are_damaged(tmp_path, caplog):
    damage(write(tmp_path, 5))
    damage(write(tmp_path, 9))
    assert newest(tmp_path, first_record=1) is None
    assert caplog.text.count("the journal makes up for it") == 2
    assert checkpoint_numbers(tmp_path) == []


def test_damaged_one_is_an_error_where_the_journal_begins_too_late(tmp_path):
    write(tmp_path, 5)
    damage(write(tmp_path, 9))
    with pytest.raises(CheckpointError) as raised:
        newest(tmp_path, first_record=9)
    assert str(raised.value).endswith(
        "buckets-0001.arrow; the file is damaged; and the journal begins with record 9, too late "
        "for the older checkpoint checkpoint-00000000000000000005"
    )
    assert checkpoint_numbers(tmp_path) == [5, 9]


def test_other_format_is_refused(tmp_path):
    path = write(tmp_path, 5) / "manifest.json"
    manifest = json.loads(path.read_text()) | {"format": "ps_server-checkpoint-v2"}
    del manifest["crc32c"]
    manifest["crc32c"] = crc32c(json.dumps(manifest, sort_keys=True).encode())
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"-v1, got 'ps_server-checkpoint-v2' in .* version"):
        newest(tmp_path)


class FullDisk:
    """Writes so many bytes, then refuses: the last write is a short one."""

    def __init__(self, room):
        self.room = room

    def write(self, file, data):
        if not self.room:
            raise OSError(28, "No space left on device")
        done = os.write(file, data[: self.room])
        self.room -= done
        return done


def test_disk_that_is_full_after_any_byte_leaves_the_one_before(tmp_path):
    plenty = FullDisk(10**9)
    write(tmp_path / "sizes", 9, write=plenty.write)
    size = 10**9 - plenty.room
    write(tmp_path / "checkpoints", 5)
    points = range(0, size, size // 80)
    assert len(points) >= 80
    for room in points:
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / "checkpoints", 9, write=FullDisk(room).write)
        assert names(tmp_path / "checkpoints") == ["checkpoint-00000000000000000005"]
        assert newest(tmp_path / "checkpoints") == 5
    write(tmp_path / "checkpoints", 9, write=FullDisk(size).write)
    assert newest(tmp_path / "checkpoints") == 9


# Of a checkpoint, in a child that SIGKILL ends at the n-th thing that it does with a file or
# folder, for each n: before it, or in the middle of a write.
WRITES_UNTIL_KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import numpy as np
from ps_server.checkpoint import write_checkpoint
sys.path.insert(0, sys.argv[1])
from test_checkpoint import contents_of

WATCHED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}

def write(folder, last):
    num_done = 0
    def count():
        nonlocal num_done
        num_done += 1
        if num_done == last:
            os.kill(os.getpid(), signal.SIGKILL)
    def half(file, data):
        os.write(file, data[: len(data) // 2])
        count()
        return len(data) // 2 + os.write(file, data[len(data) // 2 :])
    sys.addaudithook(lambda event, _: count() if event in WATCHED else None)
    write_checkpoint(folder, 9, contents_of(9), write=half)

root = Path(sys.argv[2])
for last in range(1, 10_000):
    folder = root / str(last)
    for number in (3, 5):
        write_checkpoint(folder, number, contents_of(number))
    child = os.fork()
    if child == 0:
        write(folder, last)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
    if status == 0:
        break
"""


def test_killed_at_any_point_it_leaves_one_that_is_whole(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WRITES_UNTIL_KILLED, str(Path(__file__).parent), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    *killed, last = map(int, done.stdout.split())
    assert len(killed) >= 50
    assert {*killed} == {-signal.SIGKILL}
    assert last == 0
    found = [newest(tmp_path / str(point)) for point in range(1, len(killed) + 2)]
    assert found == sorted(found), "from the rename on it is the new one"
    assert {*found} == {5, 9}
    for point in range(1, len(killed) + 2):
        folder = tmp_path / str(point)
        remove_leftovers(folder)
        numbers = checkpoint_numbers(folder)
        assert names(folder) == [f"checkpoint-{number:020d}" for number in numbers]
        for number in reversed(numbers):  # none is there in part
            assert newest(folder) == number
            shutil.rmtree(folder / f"checkpoint-{number:020d}")


def test_manifest_is_read_by_humans_too(tmp_path):
    manifest = json.loads((write(tmp_path, 5) / "manifest.json").read_text())
    assert manifest["number"] == 5
    assert manifest["state"] == {"id": "server-5", "clocks": [5, None]}
    assert manifest["tables"] == ["item", "user", "ad.x-1_"]
    assert manifest["files"]["tables/item/buckets-0002.arrow"]["bytes"] == 1000
