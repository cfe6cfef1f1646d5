"""A device that is not the CPU: the tests of `on_emulated_device.py`, in a process that has one.

Paddle loads a custom device when it is imported, so that process is another.
"""

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("on_emulated_device.py")
NAMES = [
    node.name
    for node in ast.parse(CASES.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]
ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "benchmarks" / "emulated_device"


@pytest.fixture(scope="module")
def found(emulated, tmp_path_factory):
    """What the process found: the elements of pytest's report for each test's cases."""
    report = tmp_path_factory.mktemp("emulated") / "report.xml"
    # A copy of a megabyte takes 50 ms; what a test does meanwhile, a few.
    device = emulated.environment(emulated.build(), memory=64 << 20, bandwidth=20e6)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", CASES],
        env={**os.environ, **device, "PYTHONPATH": os.pathsep.join([str(ROOT), str(PLUGIN)])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    cases = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        cases[case.get("name").partition("[")[0]].append(case)
    return cases


@pytest.mark.parametrize("name", NAMES)
def test_on_emulated_device(name, found):
    assert found[name]
    for case in found[name]:
        problems = [each.text for each in case if each.tag in ("failure", "error", "skipped")]
        assert not problems, f"{case.get('name')}\n{problems[0]}"


def test_a_setting_that_is_no_number_ends_the_process(emulated):
    device = {**emulated.environment(emulated.build()), "EMULATED_MEMORY": "much"}
    done = subprocess.run(
        [sys.executable, "-c", "import paddle"],
        env={**os.environ, **device},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "EMULATED_MEMORY is a number above 0, got 'much'" in done.stderr
