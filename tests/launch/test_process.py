"""Where the lines of processes go."""

import os
from pathlib import Path

import pytest

from hetero_pipe.launch.process import Output


def test_lines_are_dropped_once_nobody_reads_them():
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb", buffering=0) as stream:
        output = Output(stream)
        os.close(reader)
        output.write(b"nobody reads this\n")
        output.write(b"nor this\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has such a device")
def test_lines_go_on_when_a_full_disk_has_room_again(tmp_path):
    log = tmp_path / "log"
    with log.open("wb", buffering=0) as room, open("/dev/full", "wb", buffering=0) as full:
        stream = full.fileno()
        output = Output(full)
        output.write(b"lost\n")
        os.dup2(room.fileno(), stream)
        output.write(b"written\n")
    assert log.read_bytes() == b"written\n"
