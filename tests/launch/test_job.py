"""Job files: what they say, what they mean if they do not, and typos."""

from pathlib import Path

import pytest

import hetero_pipe as hp
from hetero_pipe.launch import LocalJob, RestartLimit, load_job
from tests.launch.family import ROOT

FULL = """\
name = "ctr"
dir = "run"

[servers]
number = 3
durability = "none"
journal_limit = "2MiB"
restarts = 5

[workers]
sparse = 2
dense = 1
script = "train.py"
arguments = ["--save", "{dir}/checkpoint", "--resume"]
restarts = 4

[restarts]
limit = 7
within = "60s"
delay = 1
longest_delay = "8s"
"""


@pytest.fixture
def load(tmp_path):
    """Returns a function that loads a job file of this text."""
    (tmp_path / "train.py").touch()

    def load(text):
        path = tmp_path / "job.toml"
        path.write_text(text)
        return load_job(path)

    return load


def test_a_file_says_all_of_a_job(load, tmp_path):
    job = load(FULL)
    assert (job.name, job.folder) == ("ctr", tmp_path / "run")
    assert job.processes == LocalJob(
        (str(tmp_path / "train.py"), "--save", "{dir}/checkpoint", "--resume"),
        num_servers=3,
        num_readers=2,
        num_dense=1,
    )
    assert (job.durability, job.journal_limit) == ("none", 2 * 2**20)
    assert job.server_restarts == RestartLimit(5, within=60.0, delay=1, longest_delay=8.0)
    assert job.worker_restarts == RestartLimit(4, within=60.0, delay=1, longest_delay=8.0)


def test_a_script_is_enough(load, tmp_path):
    job = load('[workers]\nscript = "train.py"\n')
    assert (job.name, job.folder) == ("job", tmp_path / "job")
    assert job.processes == LocalJob((str(tmp_path / "train.py"),))
    assert (job.durability, job.journal_limit) == ("process", None)
    assert job.server_restarts == job.worker_restarts == RestartLimit()


def test_servers_are_told_where_their_data_are_and_how_durable(load):
    job = load(FULL.replace('"none"', '"process"'))
    data = ["--data-dir", "d"]
    durable = ["--durability", "process", "--journal-limit", "2097152B"]
    listen = ["-m", "ps_server", "--listen"]
    assert job.server_command(Path("d"), address=None) == [*listen, "127.0.0.1:0", *data, *durable]
    job = load(FULL)
    assert job.server_command(Path("d"), address="h:1") == [*listen, "h:1", *data]


def test_workers_are_told_the_servers_file_and_the_jobs_folder(load, tmp_path):
    job = load(FULL)
    commands = job.worker_commands(servers_file=Path("/f"), coordinator="h:1", dense=["h:2"])
    assert list(commands) == ["sparse 0", "sparse 1", "dense 0"]
    assert commands["dense 0"] == [
        *(str(tmp_path / "train.py"), "--save", f"{tmp_path}/run/checkpoint", "--resume"),
        *("--servers", "@/f", "--num-workers", "2", "--coordinator", "h:1"),
        *("--dense-workers", "h:2", "--stage", "dense", "--worker", "0"),
    ]


def test_without_servers_workers_are_told_none(load):
    job = load('[servers]\nnumber = 0\n[workers]\nnumber = 1\nscript = "train.py"\n')
    (command,) = job.worker_commands(servers_file=Path("/f"), coordinator="h:1", dense=[]).values()
    assert "--servers" not in command


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[workers]", "[worker]", "unknown key 'worker'; did you mean 'workers'?"),
        ("number", "nmber", "[servers]: unknown key 'nmber'; did you mean 'number'?"),
        ("sparse", "spares", "[workers]: unknown key 'spares'; did you mean 'sparse'?"),
        ("within", "whithin", "[restarts]: unknown key 'whithin'; did you mean 'within'?"),
        ('"none"', '"proces"', "got 'proces'; did you mean 'process'?"),
        ('"2MiB"', '"2"', "[servers]: journal_limit needs to be a quantity: "),
        ('"60s"', '"60"', "[restarts]: within needs to be a quantity: "),
        ("number = 3", "number = 2.5", "number needs to be a whole number of at least 0, got 2.5"),
        ("restarts = 5", "restarts = -1", "restarts needs to be a whole number of at least 0"),
        ("sparse = 2\n", "", "[workers]: sparse needs to be given, as sparse workers feed dense"),
        ("dense = 1", "dense = 1\nnumber = 2", "number needs to be left out, as workers are whole"),
        ('"train.py"', '"trian.py"', "a job runs a script, got no file"),
        ('script = "train.py"\n', "", "[workers]: script is missing"),
        ("delay = 1", "delay = -1", "restarts need delay of at least 0, got delay=-1"),
        ("[servers]", "[servers", "a job is TOML, got "),
    ],
)
def test_a_mistake_names_the_file_and_the_key(old, new, said, load, tmp_path):
    assert old in FULL
    with pytest.raises(hp.ConfigError) as raised:
        load(FULL.replace(old, new, 1))
    assert str(raised.value).startswith(f"{tmp_path / 'job.toml'}: ")
    assert str(raised.value).count("job.toml") == 1
    assert said in str(raised.value)


def test_the_example_is_a_job():
    job = load_job(ROOT / "examples" / "ctr" / "job.toml")
    assert (job.name, job.processes.num_servers, job.processes.num_readers) == ("job", 2, 2)
    assert job.is_durable


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(hp.ConfigError, match="a job file must be readable, got "):
        load_job(tmp_path / "nowhere.toml")
