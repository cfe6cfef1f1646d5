"""Collectives of three emulated devices, as Paddle's launcher gives one to each process."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("on_emulated_devices.py")
CHECKS = [
    line.removeprefix("def ").partition("(")[0]
    for line in SCRIPT.read_text().splitlines()
    if line.startswith("def check_")
]


def test_collectives_are_right_on_each_of_three_devices(emulated, tmp_path):
    device = emulated.environment(emulated.build(), num_devices=3, peer_bandwidth=50e6)
    command = [sys.executable, "-m", "paddle.distributed.launch", "--log_dir", tmp_path / "log"]
    done = subprocess.run(
        [*command, "--nproc_per_node", "3", SCRIPT],
        env={**os.environ, **device},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    logs = [(tmp_path / "log" / f"workerlog.{rank}").read_text() for rank in range(3)]
    assert done.returncode == 0, "\n".join(logs)
    for log in logs:
        assert [line for line in log.splitlines() if line.startswith("check_")] == [
            f"{name} holds" for name in CHECKS
        ]
