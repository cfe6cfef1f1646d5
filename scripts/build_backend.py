"""Setuptools' build backend, which also asks PyPI for a C++ compiler where the machine has none."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

PROBE = "#include <optional>\nstd::optional<int> probe() { return 1; }\n"


def find_compiler() -> str | None:
    """Returns the command of this machine's C++ compiler, or None if it has none that works.

    A CXX in the environment is taken at its word.
    """
    named = os.environ.get("CXX")
    return named or next(filter(can_compile, ("c++", "g++", "clang++")), None)


def can_compile(compiler: str) -> bool:
    """Returns whether a command makes a shared library of C++17.

    The name alone tells little: the headers or the linker may not be installed,
    the compiler may be older than the language.
    """
    if shutil.which(compiler) is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cc")
        source.write_text(PROBE)
        command = [compiler, "-std=c++17", "-shared", "-fPIC", source, "-o", f"{source}.so"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def compiler_requirements() -> list[str]:
    """Returns what a build needs beside what pyproject.toml lists, and says so."""
    if find_compiler():
        return []
    line = "no C++ compiler found: building with the one in PyPI's ziglang"
    print(line, file=sys.stderr)
    # pip shows what a backend prints with -v alone; who sits at a terminal reads it there.
    with contextlib.suppress(OSError), Path("/dev/tty").open("w") as terminal:
        terminal.write(f"\n{line}\n")
    return ["ziglang>=0.17,<0.18"]


def get_requires_for_build_wheel(config_settings=None):
    return build_meta.get_requires_for_build_wheel(config_settings) + compiler_requirements()


def get_requires_for_build_editable(config_settings=None):
    return build_meta.get_requires_for_build_editable(config_settings) + compiler_requirements()
