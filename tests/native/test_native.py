"""The native tests, without a sanitizer; `scripts/native_test` runs them under three."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "native_test"


def run(*arguments, **options):
    return subprocess.run(
        [SCRIPT, *arguments], capture_output=True, text=True, check=False, **options
    )


def test_native_tests_pass():
    done = run("plain")
    if "skipped" in done.stdout:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "native tests passed" in done.stdout


def test_another_sanitizer_is_refused():
    done = run("memory")
    assert (done.returncode, done.stderr) == (
        2,
        "native_test: plain, address, undefined, thread or all, got memory\n",
    )


def test_compiler_without_sanitizers_is_told(tmp_path):
    compiler = tmp_path / "cc-of-old"
    compiler.write_text("#!/bin/sh\necho 'no such option' >&2; exit 1\n")
    compiler.chmod(0o755)
    done = run("thread", env={"CXX": str(compiler), "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0
    assert done.stdout == (
        f"native_test: skipped thread, {compiler} has no runtime of it: no such option\n"
    )
