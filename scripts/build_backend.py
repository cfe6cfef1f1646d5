"""Setuptools' build backend, which also asks PyPI for a C++ compiler where the machine has none."""

import os
import shutil
import sys

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def find_compiler() -> str | None:
    """Returns the command of this machine's C++ compiler, or None if it has none."""
    named = os.environ.get("CXX")
    if named:
        return named
    return next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


def _compiler_requirements() -> list[str]:
    if find_compiler():
        return []
    print("no C++ compiler found: building with the one in PyPI's ziglang", file=sys.stderr)
    return ["ziglang>=0.13"]


def get_requires_for_build_wheel(config_settings=None):
    return build_meta.get_requires_for_build_wheel(config_settings) + _compiler_requirements()


def get_requires_for_build_editable(config_settings=None):
    return build_meta.get_requires_for_build_editable(config_settings) + _compiler_requirements()
