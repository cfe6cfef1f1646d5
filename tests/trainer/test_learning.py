"""A script that plans by itself, run twice: the second run knows what the first has shown."""

import json
import math
import subprocess
import sys
from pathlib import Path

from hetero_pipe.cluster import Cluster, Rate, Spread, discover, save_cluster
from tests.toy import samples, write_parquet

ROOT = Path(__file__).parents[2]


def test_a_second_run_is_predicted_by_what_the_first_has_shown(tmp_path):
    data = write_parquet(tmp_path / "data.parquet", samples(256 * 60))
    host = discover()
    # Ops are said to take far longer to start than on any machine.
    slow = Rate("launch", host.name, Spread.of([1.5e-4]), device="cpu")
    save_cluster(Cluster((host,), rates=(slow,)), tmp_path / "cluster.toml")
    files = {"data": data, "cluster": tmp_path / "cluster.toml", "profile": tmp_path / "p.json"}
    flags = [text for name, path in files.items() for text in (f"--{name}", str(path))]
    errors, corrected = [], []
    for _ in range(2):
        command = [sys.executable, "-m", "tests.trainer.learning_script", *flags]
        run = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
        assert run.returncode == 0, run.stderr
        told = json.loads(run.stdout.splitlines()[-1])
        # Of seconds on a core, which other processes on it hardly change.
        errors.append(abs(math.log(told["predicted"] / told["measured"])))
        corrected.append(told["corrected"])
    assert errors[1] < errors[0] / 2
    assert errors[1] < math.log(2)
    assert corrected[0] == []
    assert any(text.startswith("dense on") and "a run showed" in text for text in corrected[1])
