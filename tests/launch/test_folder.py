"""A job's folder: who has it, and where its servers are."""

import json
import resource
import signal
import subprocess
import sys

import pytest

import hetero_pipe as hp
from hetero_pipe.launch.folder import JobFolder

HOLDS = "print('holds', flush=True); input()"


def test_a_folder_has_one_supervisor_at_a_time(tmp_path):
    with (
        JobFolder(tmp_path / "new" / "job"),
        pytest.raises(hp.ConfigError, match=r"one supervisor at a time .* already, pid \d+, or"),
        JobFolder(tmp_path / "new" / "job", free_seconds=0.0),
    ):
        pass
    with JobFolder(tmp_path / "new" / "job"):
        pass


def test_who_inherits_the_lock_holds_it(tmp_path):
    with JobFolder(tmp_path) as folder:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDS],
            pass_fds=[folder.lock_fd],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdout.readline() == b"holds\n"
    with (
        child,
        pytest.raises(hp.ConfigError, match="one supervisor at a time"),
        JobFolder(tmp_path, free_seconds=0.0),
    ):
        pass
    with JobFolder(tmp_path):
        pass


def test_a_lock_of_one_that_is_just_ending_is_waited_for(tmp_path):
    with JobFolder(tmp_path) as folder:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDS], pass_fds=[folder.lock_fd], stdin=subprocess.PIPE
        )
    child.stdin.close()  # it ends, some time from now
    with JobFolder(tmp_path):
        pass
    child.wait()


def test_a_disk_without_room_is_told(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    held = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # as a full disk refuses it
    try:
        with pytest.raises(hp.ConfigError, match=r"has room, got .* for .*/lock; make room"):
            JobFolder(tmp_path).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, held)
    with JobFolder(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(hp.ConfigError, match="a job's folder can be written to"):
        JobFolder(tmp_path / "file" / "job").__enter__()


def test_the_servers_file_is_replaced_whole(tmp_path):
    folder = JobFolder(tmp_path)
    folder.write_servers(["h:1", "h:2"])
    with folder.servers_file.open() as before:
        folder.write_servers(["h:3", "h:2"])
        assert json.load(before) == {"servers": ["h:1", "h:2"]}
    assert json.loads(folder.servers_file.read_text()) == {"servers": ["h:3", "h:2"]}
    assert [path.name for path in tmp_path.iterdir()] == ["servers.json"]


def test_the_number_of_servers_is_that_of_the_file(tmp_path):
    folder = JobFolder(tmp_path)
    assert folder.num_servers() is None
    folder.write_servers(["h:1", "h:2"])
    assert folder.num_servers() == 2


@pytest.mark.parametrize("text", ["", "[]", '{"servers": 2}', '{"server": []}'])
def test_a_servers_file_that_is_none_is_told(text, tmp_path):
    folder = JobFolder(tmp_path)
    folder.servers_file.write_text(text)
    with pytest.raises(hp.ConfigError, match="a servers file has the key 'servers', got "):
        folder.num_servers()
