"""Bugs that were, each with its cause."""

import subprocess
import sys

import pytest

from hetero_pipe.launch.job import load_job
from ps_server import daemon


def test_a_folder_named_as_the_package_does_not_hide_it(tmp_path):
    # An editable install went through an import hook, which Python asks after the path. A script
    # beside a clone found the clone's folder first, an empty namespace package.
    (tmp_path / "hetero_pipe").mkdir()
    program = "import hetero_pipe as hp; print(hp.SGD(0.5))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "SGD(learning_rate=0.5)\n"


def test_servers_take_the_journal_limit_of_a_job_file(tmp_path, capsys):
    # It went to them as bytes without a unit, which `--journal-limit` refuses: no job with that key
    # could start. The test compared the command with what was thought right, and asked no server.
    (tmp_path / "train.py").touch()
    file = tmp_path / "job.toml"
    file.write_text('[servers]\njournal_limit = "1.5MiB"\n[workers]\nscript = "train.py"\n')
    command = load_job(file).server_command(tmp_path, address=None)
    with pytest.raises(SystemExit) as ended:  # at the flag that is wrong, and nowhere before
        daemon.run([*command[command.index("--listen") :], "--no-such-flag"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --no-such-flag" in capsys.readouterr().err
