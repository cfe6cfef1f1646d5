"""A checkpoint is whole or not there, loads anywhere, and resumes to the bit."""

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import paddle
import pytest

import hetero_pipe as hp
from hetero_pipe.trainer.checkpoint import CheckpointWriter, Position, read_checkpoint
from ps_server.server import Server
from tests.toy import Losses, assert_equal, build, differs, read, state_in, state_of, training


@pytest.fixture(scope="module")
def saved(path, tmp_path_factory):
    """A checkpoint of 20 steps."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    with training() as trainer:
        trainer.fit(read(path, shuffle=200))
        trainer.save(folder)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def files_of(folder):
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


# ------------------------------------------------------------------ round trips


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 3), (3, 2)])
def test_a_checkpoint_loads_on_any_number_of_servers(before, after, serve, reader, tmp_path):
    with training(trainer={"servers": serve(before)}) as trainer:
        trainer.fit(reader)
        expected = trainer.predict(reader), trainer.evaluate(reader), trainer.num_rows()
        state = state_of(trainer, tmp_path / "a")
    with training(trainer={"servers": serve(after)}) as trainer:
        trainer.fit(reader, max_steps=3)  # what is there is replaced
        trainer.load(tmp_path / "a")
        np.testing.assert_array_equal(trainer.predict(reader), expected[0])
        assert (trainer.evaluate(reader), trainer.num_rows()) == expected[1:]
        assert_equal(state_of(trainer, tmp_path / "b"), state)


def adam_with_scheduler(parameters):
    rate = paddle.optimizer.lr.ExponentialDecay(0.01, gamma=0.95)
    return paddle.optimizer.Adam(rate, parameters=parameters)


@pytest.mark.parametrize(
    ("max_steps", "servers"),
    [(7, (0, 0)), (20, (0, 0)), (40, (0, 0)), (27, (0, 2)), (27, (2, 0))],
)
def test_a_resumed_run_is_the_undisturbed_run_bit_for_bit(
    max_steps, servers, serve, reader, tmp_path
):
    options = {"dense": adam_with_scheduler, "optimizer": hp.Adam(0.01)}
    undisturbed, first, second = Losses(), Losses(), Losses()
    with training(**options, trainer={"loss": undisturbed}) as trainer:
        result = trainer.fit(reader, epochs=2, eval_reader=reader)
        expected = state_of(trainer, tmp_path / "undisturbed")
    number, other_number = servers
    with training(**options, trainer={"loss": first, "servers": serve(number)}) as trainer:
        trainer.fit(reader, epochs=2, max_steps=max_steps)
        trainer.save(tmp_path / "c")
    with training(**options, trainer={"loss": second, "servers": serve(other_number)}) as trainer:
        trainer.load(tmp_path / "c")
        resumed = trainer.fit(reader, epochs=2, eval_reader=reader)
        assert resumed.num_steps == 40 - max_steps
        found = state_of(trainer, tmp_path / "resumed")
    assert first.values + second.values == undisturbed.values
    assert_equal(found, expected)
    left = resumed.evaluations
    assert left == result.evaluations[2 - len(left) :]


def test_a_resumed_run_that_was_done_trains_nothing(copy, reader):
    with training() as trainer:
        trainer.load(copy)
        assert trainer.fit(reader, epochs=1).num_steps == 0
        assert trainer.fit(reader, epochs=1).num_steps == 20  # a second fit is a new one


def test_a_checkpoint_of_no_step_loads_into_a_trained_trainer(reader, tmp_path):
    with training(trainer={"loss": Losses()}) as trainer:
        trainer.save(tmp_path / "start")
        trainer.fit(reader)
        after = state_of(trainer, tmp_path / "end")
        trainer.load(tmp_path / "start")
        assert sum(trainer.num_rows().values()) == 0
        trainer.fit(reader)
        assert_equal(state_of(trainer, tmp_path / "again"), after)


def test_saving_changes_nothing(reader, tmp_path):
    with training() as trainer:
        trainer.fit(reader, max_steps=5)
        first = state_of(trainer, tmp_path / "a")
        assert_equal(state_of(trainer, tmp_path / "b"), first)
        trainer.fit(reader, max_steps=5)
        once = state_of(trainer, tmp_path / "c")
    with training() as trainer:
        trainer.fit(reader, max_steps=5)
        trainer.fit(reader, max_steps=5)
        assert_equal(state_of(trainer, tmp_path / "d"), once)


def test_equal_runs_give_equal_files(saved, path, tmp_path):
    with training() as trainer:
        trainer.fit(read(path, shuffle=200))
        trainer.save(tmp_path / "c")
    assert files_of(tmp_path / "c") == files_of(saved)
    for name in files_of(saved):
        assert (tmp_path / "c" / name).read_bytes() == (saved / name).read_bytes()
    assert_equal(state_in(tmp_path / "c"), state_in(saved))


# ------------------------------------------------------------------ where it is written


@pytest.mark.parametrize(
    "name",
    ["a b", "ümlaut-検査", "percent%20", "new\nline", "*?[x]", ".hidden", "-x", "a.b.c", "x" * 200],
)
def test_a_folder_may_have_any_name(name, saved, reader, tmp_path):
    with training() as trainer:
        trainer.load(saved)
        for _ in range(2):  # the second replaces the first
            trainer.save(tmp_path / name)
        assert os.listdir(tmp_path) == [name]
        trainer.load(tmp_path / name)
    assert_equal(state_in(tmp_path / name), state_in(saved))


def test_paths_are_made_and_taken_relative_to_the_working_folder(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with training() as trainer:
        trainer.load(saved)
        trainer.save("deep/er/c")
        trainer.save(Path("deep/../deep/er/c/"))
        assert os.listdir("deep/er") == ["c"]
        monkeypatch.chdir(tmp_path / "deep" / "er" / "c")
        trainer.load(".")
        trainer.save(".")
    assert_equal(state_in(tmp_path / "deep/er/c"), state_in(saved))


def test_a_link_to_a_checkpoint_stays_one(copy, tmp_path):
    (tmp_path / "latest").symlink_to(copy)
    with training() as trainer:
        trainer.load(tmp_path / "latest")
        trainer.save(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["copy", "latest"]


def test_an_empty_folder_is_taken(saved, tmp_path):
    (tmp_path / "c").mkdir()
    with training() as trainer:
        trainer.load(saved)
        trainer.save(tmp_path / "c")
    assert_equal(state_in(tmp_path / "c"), state_in(saved))


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_no_checkpoint_is_not_replaced(kind, saved, tmp_path):
    target = tmp_path / "thesis"
    if kind == "folder":
        target.mkdir()
        (target / "chapter").write_text("1")
    else:
        target.write_text("1")
    with training() as trainer:
        trainer.load(saved)
        with pytest.raises(hp.CheckpointError, match=r"replaces another one alone, got .*thesis"):
            trainer.save(target)
    assert os.listdir(tmp_path) == ["thesis"]
    assert (target / "chapter" if kind == "folder" else target).read_text() == "1"


def test_a_place_that_cannot_be_written_is_told(saved, tmp_path):
    (tmp_path / "file").write_text("1")
    with training() as trainer:
        trainer.load(saved)
        with pytest.raises(hp.CheckpointError, match=r"must be written whole, got .*file"):
            trainer.save(tmp_path / "file" / "c")
        with pytest.raises(hp.CheckpointError, match="must be written whole"):
            trainer.save(tmp_path / ("x" * 300))
    assert os.listdir(tmp_path) == ["file"]


def test_a_failing_save_leaves_the_old_checkpoint_and_nothing_else(reader, saved, tmp_path):
    with ExitStack() as running:
        address = running.enter_context(Server("127.0.0.1:0")).address
        with training(trainer={"servers": [address]}) as trainer:
            trainer.load(saved)
            trainer.save(tmp_path / "c")
            trainer.fit(reader, epochs=2, max_steps=1)
            running.close()
            with pytest.raises(hp.ServerUnavailable, match=address):
                trainer.save(tmp_path / "c")
            with pytest.raises(hp.ServerUnavailable):
                trainer.save(tmp_path / "d")
    assert os.listdir(tmp_path) == ["c"]
    assert_equal(state_in(tmp_path / "c"), state_in(saved))


def test_a_disk_that_fails_while_writing_leaves_the_old_checkpoint(copy, tmp_path):
    def pieces():
        yield b"half"
        raise OSError(28, "No space left on device")

    def write():
        with CheckpointWriter(copy) as writer:
            writer.add_snapshot("embedding", "buckets-0000-0255.arrow", pieces())

    before = state_in(copy)
    with pytest.raises(OSError, match="No space"):
        write()
    assert os.listdir(tmp_path) == ["copy"]
    assert_equal(state_in(copy), before)
    read_checkpoint(copy)


def test_what_a_crash_left_of_this_process_is_no_hindrance(copy, tmp_path):
    stale = tmp_path / f".copy.{os.getpid()}"
    (stale / "tables").mkdir(parents=True)
    (stale / "tables" / "half").write_text("1")
    with training() as trainer:
        trainer.load(copy)
        trainer.save(copy)
    assert os.listdir(tmp_path) == ["copy"]


# ------------------------------------------------------------------ crashes between two renames


def write_small(path, step):
    with CheckpointWriter(path) as writer:
        writer.finish(dense={}, step=step, position=Position(), tables=[], run=None, progress={})


def test_between_the_two_renames_the_old_one_is_found(tmp_path):
    write_small(tmp_path / "c", 1)
    (tmp_path / "c").rename(tmp_path / ".c.old")
    assert read_checkpoint(tmp_path / "c").step == 1


def test_after_the_second_rename_the_new_one_is_found(tmp_path):
    write_small(tmp_path / "c", 1)
    (tmp_path / "c").rename(tmp_path / ".c.old")
    write_small(tmp_path / "d", 2)
    (tmp_path / "d").rename(tmp_path / "c")
    assert read_checkpoint(tmp_path / "c").step == 2
    write_small(tmp_path / "c", 3)
    assert read_checkpoint(tmp_path / "c").step == 3
    assert os.listdir(tmp_path) == ["c"]


def test_the_only_one_there_is_stays_until_another_is_whole(tmp_path):
    """After a crash between the renames, a save fails: what was aside must not be lost."""
    write_small(tmp_path / "c", 1)
    (tmp_path / "c").rename(tmp_path / ".c.old")
    with pytest.raises(ZeroDivisionError), CheckpointWriter(tmp_path / "c"):
        raise ZeroDivisionError
    assert read_checkpoint(tmp_path / "c").step == 1
    assert os.listdir(tmp_path) == ["c"]  # and it is where it belongs


def test_what_is_aside_is_there_at_every_rename_of_the_next_save(tmp_path, monkeypatch):
    write_small(tmp_path / "c", 1)
    (tmp_path / "c").rename(tmp_path / ".c.old")
    seen = []
    rename, rmtree = Path.rename, shutil.rmtree

    def watch():
        seen.append(read_checkpoint(tmp_path / "c").step)

    def watched_rename(self, target):
        watch()
        result = rename(self, target)
        watch()
        return result

    def watched_rmtree(folder, **options):
        rmtree(folder, **options)
        watch()

    monkeypatch.setattr(Path, "rename", watched_rename)
    monkeypatch.setattr(shutil, "rmtree", watched_rmtree)
    write_small(tmp_path / "c", 2)
    write_small(tmp_path / "c", 3)
    assert seen == sorted(seen)
    assert set(seen) == {1, 2, 3}


# ------------------------------------------------------------------ damage


def damages(folder):
    """Every file, in every way."""
    for name in files_of(folder):
        for way in ("missing", "empty", "short", "long", "first", "middle", "last", "folder"):
            yield name, way


def damage(path, way):
    data = bytearray(path.read_bytes())
    path.unlink()
    match way:
        case "missing":
            return
        case "folder":
            path.mkdir()
            return
        case "empty":
            data = b""
        case "short":
            data = data[:-1]
        case "long":
            data += b"\0"
        case _:
            data[{"first": 0, "middle": len(data) // 2, "last": -1}[way]] ^= 0x01
    path.write_bytes(data)


def test_each_damaged_file_is_named_and_nothing_has_changed(saved, reader, tmp_path):
    with training() as trainer:
        trainer.fit(reader, max_steps=3)
        before = state_of(trainer, tmp_path / "before")
        names = files_of(saved)
        assert {"manifest.json", "dense.npz", "progress.npz"} < set(names)
        assert len(names) == 3 + 2 * 16
        picked = {"manifest.json", "dense.npz", "progress.npz", *names[3:6], names[-1]}
        for name, way in damages(saved):
            if name not in picked and way != "missing":
                continue
            copy = tmp_path / "copy"
            shutil.copytree(saved, copy)
            damage(copy / name, way)
            with pytest.raises(hp.CheckpointError) as raised:
                trainer.load(copy)
            said = str(copy) if (name, way) == ("manifest.json", "missing") else str(copy / name)
            assert said in str(raised.value), (name, way)
            shutil.rmtree(copy)
        assert_equal(state_of(trainer, tmp_path / "after"), before)
        assert trainer.fit(reader).num_steps == 20


def test_every_bit_of_the_manifest_matters(copy):
    manifest = copy / "manifest.json"
    whole = manifest.read_bytes()
    expected = state_in(copy)
    for i in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[i] ^= 0x04
        manifest.write_bytes(damaged)
        try:
            found = read_checkpoint(copy)
        except hp.CheckpointError as error:
            assert "manifest.json" in str(error)  # noqa: PT017  # either is right
        else:  # white space
            assert found.step == expected["step"]
            assert json.loads(damaged) == json.loads(whole)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", "7", '{"format": "other"}', '{"format": 3}', "{", "\xff"]
)
def test_a_manifest_of_something_else_is_refused(text, copy):
    (copy / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(hp.CheckpointError, match=r"manifest\.json"):
        read_checkpoint(copy)


def test_keys_hashed_another_way_are_refused(copy):
    from hetero_pipe.trainer.checkpoint import _crc_of

    manifest = json.loads((copy / "manifest.json").read_text())
    assert manifest["key_hash"] == "xxh64-slot-v1"
    manifest["key_hash"] = "md5"
    del manifest["crc32"]
    manifest["crc32"] = _crc_of(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(hp.CheckpointError, match="hashed by xxh64-slot-v1, got md5"):
        read_checkpoint(copy)


@pytest.mark.parametrize("kind", ["nothing", "file", "folder"])
def test_what_is_no_checkpoint_is_told(kind, tmp_path):
    path = tmp_path / "c"
    if kind == "file":
        path.write_text("x")
    elif kind == "folder":
        path.mkdir()
    with (
        training() as trainer,
        pytest.raises(
            hp.CheckpointError, match=r"a folder with manifest.json, got none at .*c/manifest.json"
        ),
    ):
        trainer.load(path)


# ------------------------------------------------------------------ another model


@pytest.mark.parametrize(
    "wrong",
    [
        ({"dim": 8}, "table 'embedding' must fit dim=8 with Adagrad, got dim=4 with Adagrad"),
        ({"optimizer": hp.SGD(0.1)}, "must fit dim=1 with SGD, got dim=1 with Adagrad"),
        ({"dense": None}, "optimizer=None"),
        ({"dense": lambda p: paddle.optimizer.Momentum(parameters=p)}, "of Momentum"),
        ({"dense": adam_with_scheduler}, "scheduler"),
        ({"slots": ["user", "item"]}, "deep.0.weight with shape"),
    ],
)
def test_another_model_is_refused_and_nothing_has_changed(wrong, serve, saved, path, tmp_path):
    options, said = wrong
    reader = read(path)
    with training(**options, trainer={"servers": serve(2)}) as trainer:
        trainer.fit(reader, max_steps=3)
        before = state_of(trainer, tmp_path / "a")
        with pytest.raises(hp.CheckpointError, match=said):
            trainer.load(saved)
        assert_equal(state_of(trainer, tmp_path / "b"), before)
        assert trainer.fit(reader).num_steps == 20


def test_other_tables_are_refused_by_name(saved):
    model, optimizer = build()
    model.embedding.table_name = "renamed"
    with (
        hp.Trainer(model, optimizer=optimizer) as trainer,
        pytest.raises(
            hp.CheckpointError,
            match="tables, first_order, renamed, got first_order, embedding in",
        ),
    ):
        trainer.load(saved)


def test_other_learning_rates_take_the_rows(saved, tmp_path):
    with training(optimizer=hp.Adagrad(0.5)) as trainer:
        trainer.load(saved)
        found = state_of(trainer, tmp_path / "c")
    assert differs(found, state_in(saved)) == set()


def test_a_load_that_a_server_fails_cannot_be_saved(saved, reader, tmp_path):
    with ExitStack() as running, Server("127.0.0.1:0") as two:
        address = running.enter_context(Server("127.0.0.1:0")).address
        with training(trainer={"servers": [address, two.address]}) as trainer:
            trainer.fit(reader, max_steps=2)
            running.close()
            with pytest.raises(hp.ServerUnavailable, match=address):
                trainer.load(saved)
            with pytest.raises(hp.CheckpointError, match="applied in part"):
                trainer.save(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_check_save_refuses_what_save_would(reader, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    with training() as trainer:
        with pytest.raises(hp.CheckpointError, match=r"got .*notes, which is none"):
            trainer.check_save(tmp_path / "notes")
        with pytest.raises(hp.CheckpointError, match="must be written"):
            trainer.check_save(tmp_path / "notes" / "mine.txt" / "below")
        trainer.check_save(tmp_path / "new" / "checkpoint")
    assert not list((tmp_path / "new").iterdir())


def test_fit_saves_after_each_epoch_and_when_it_is_stopped(reader, tmp_path):
    seen = []

    class Watch:
        def on_step(self, report):
            if report.step == 25:
                raise KeyboardInterrupt

        def on_epoch(self, epoch, evaluation):
            seen.append(read_checkpoint(tmp_path / "c").position)

    with training() as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(reader, epochs=3, save_to=tmp_path / "c", callbacks=[Watch()])
        stopped = read_checkpoint(tmp_path / "c")
        assert seen == [Position(1)]
        assert stopped.position.epoch == 1
        assert stopped.step == 20 + stopped.position.batch >= 26
    with training() as trainer:
        trainer.load(tmp_path / "c")
        trainer.fit(reader, epochs=3, save_to=tmp_path / "c")
        resumed = state_of(trainer, tmp_path / "resumed")
    with training() as trainer:
        trainer.fit(reader, epochs=3)
        assert_equal(resumed, state_of(trainer, tmp_path / "undisturbed"))


def test_fit_refuses_a_path_to_save_to_before_the_first_step(reader, tmp_path):
    (tmp_path / "notes.txt").write_text("keep")
    with training() as trainer:
        with pytest.raises(hp.CheckpointError, match=r"notes\.txt, which is none"):
            trainer.fit(reader, save_to=tmp_path / "notes.txt")
        assert trainer.num_rows() == {"first_order": 0, "embedding": 0}
