"""Bugs that were, each with its cause."""

import subprocess
import sys


def test_a_folder_named_as_the_package_does_not_hide_it(tmp_path):
    # An editable install went through an import hook, which Python asks after the path. A script
    # beside a clone found the clone's folder first, an empty namespace package.
    (tmp_path / "hetero_pipe").mkdir()
    program = "import hetero_pipe as hp; print(hp.SGD(0.5))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "SGD(learning_rate=0.5)\n"
