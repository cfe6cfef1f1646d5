"""The file in which corrections are kept: it comes back equal, and is never torn."""

import json
import threading

import pytest

from hetero_pipe.cost import (
    Correction,
    Corrections,
    StagePlace,
    load_corrections,
    save_corrections,
)
from hetero_pipe.errors import ConfigError

PULL = StagePlace("pull", "whole", "here", "gpu", "there")
KNOWN = Corrections(
    "0123456789abcdef",
    (Correction(PULL, 1.1, 0.3, 4), Correction(StagePlace("read", "whole", "here", "gpu"), 2.0)),
)


def test_a_file_gives_them_back(tmp_path):
    path = tmp_path / "new" / "profile.json"
    save_corrections(KNOWN, path)
    assert load_corrections(path) == KNOWN
    save_corrections(Corrections(), path)
    assert load_corrections(path) == Corrections()
    assert [each.name for each in path.parent.iterdir()] == ["profile.json"]


def test_without_a_file_there_are_none(tmp_path):
    assert load_corrections(tmp_path / "none.json") == Corrections()


def changed(**fields):
    text = {"place": {"stage": "pull", "role": "whole", "host": "a", "device": "cpu"}} | fields
    return json.dumps({"basis": "a", "found": [text]}).encode()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "Expecting value"),
        (b'{"basis": "a", "fou', "Unterminated"),
        (b"[]", "which is no dict"),
        (b"\xff\xfe", "decode"),
        (changed(core=9.0), "from 0.125 to 8"),
        (changed(rest=float("nan")), "from 0.125 to 8"),
        (changed(runs=0), "at least one run"),
        (changed(factor=1.0), "no field factor"),
        (changed(place={"stage": "pull"}), "missing 3 required"),
    ],
)
def test_a_broken_file_is_told_with_what_to_do(tmp_path, text, said):
    path = tmp_path / "profile.json"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"profile\.json.*; delete it") as caught:
        load_corrections(path)
    assert said in str(caught.value)
    assert path.read_bytes() == text


def test_what_cannot_be_read_or_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="must be readable"):
        load_corrections(tmp_path)
    with pytest.raises(ConfigError, match="must be writable"):
        save_corrections(KNOWN, tmp_path / "file" / "profile.json")
    with pytest.raises(ConfigError, match="must be writable"):
        save_corrections(KNOWN, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_of_many_that_write_at_once_one_is_there_whole(tmp_path):
    path = tmp_path / "profile.json"
    written = [
        Corrections(str(i), tuple(Correction(PULL, runs=i + 1) for _ in range(50 * i + 1)))
        for i in range(4)
    ]
    start = threading.Barrier(5)

    def write(known):
        start.wait()
        for _ in range(8):
            save_corrections(known, path)

    threads = [threading.Thread(target=write, args=(known,)) for known in written]
    for thread in threads:
        thread.start()
    start.wait()
    while any(thread.is_alive() for thread in threads):
        assert load_corrections(path) in (*written, Corrections())
    for thread in threads:
        thread.join()
    assert load_corrections(path) in written
    assert [each.name for each in tmp_path.iterdir()] == ["profile.json"]
