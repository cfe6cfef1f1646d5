"""What the README promises is what a reader gets."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_its_program_runs_and_learns():
    (program,) = blocks("python")
    assert len(program.splitlines()) <= 10
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = re.search(r"Evaluation\(auc=([0-9.]+)", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) > 0.7


def test_ci_runs_its_test_command():
    commands = [line.partition("#")[0].strip() for line in blocks("sh")[0].splitlines()]
    assert commands[1] == "bash scripts/test"
    assert "\nscripts/test\n" in (ROOT / ".ci" / "run").read_text()


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link
