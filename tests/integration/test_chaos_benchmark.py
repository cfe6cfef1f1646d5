"""Benchmarks/chaos: a job under faults, what is compared, and which faults are done."""

import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "chaos"))

from compare import differences, newest, read
from faults import Faults
from proxy import Proxy

MAIN = Path(__file__).parents[2] / "benchmarks" / "chaos" / "main.py"


def save(folder, *, keys=(1, 2, 3), weights=(1.0, 2.0, 3.0), pushes=(4, 5, 6), bias=0.5, step=7):
    """Writes a checkpoint of one table, its rows in two files."""
    (folder / "tables" / "t").mkdir(parents=True)
    position = {"epoch": 1, "batch": 2}
    (folder / "manifest.json").write_text(json.dumps({"step": step, "position": position}))
    np.savez(folder / "dense.npz", bias=np.float32(bias))
    for name, part in (("a", slice(0, 2)), ("b", slice(2, None))):
        table = pa.table(
            {
                "key": pa.array(keys[part], pa.uint64()),
                "weights": pa.FixedSizeListArray.from_arrays(
                    pa.array(weights[part], pa.float32()), 1
                ),
                "num_pushes": pa.array(pushes[part], pa.uint32()),
                "step": pa.array([1] * len(keys[part]), pa.uint64()),
            }
        )
        with (
            pa.OSFile(str(folder / "tables" / "t" / f"{name}.arrow"), "wb") as file,
            pa.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table)
    return read(folder)


def test_rows_are_compared_by_key_in_whatever_files_they_are(tmp_path):
    one = save(tmp_path / "one")
    other = save(tmp_path / "other", keys=(3, 1, 2), weights=(3.0, 1.0, 2.0), pushes=(6, 4, 5))
    assert list(differences(one, other)) == []
    assert (one.num_rows, one.num_pushes) == (3, 15)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"weights": (1.0, 2.0, np.nextafter(np.float32(3.0), 4))},
            "weights differs in 1 of 3 rows",
        ),
        ({"pushes": (4, 5, 7)}, "num_pushes differs in 1 of 3 rows"),
        ({"keys": (1, 2, 4)}, "1 rows lost, 1 rows that should not be there"),
        ({"bias": 0.25}, "dense array bias: 1 of 1 values differ"),
        ({"step": 8}, "step: 7 undisturbed, 8 disturbed"),
    ],
)
def test_whatever_differs_is_told(changed, told, tmp_path):
    found = differences(save(tmp_path / "one"), save(tmp_path / "other", **changed))
    assert told in "; ".join(found)


def test_the_newest_of_a_series_is_compared(tmp_path):
    for step in (9, 10):
        save(tmp_path / f"step-{step:09d}", step=step)
    assert read(newest(tmp_path)).step == 10
    with pytest.raises(FileNotFoundError, match="a run leaves a checkpoint"):
        newest(tmp_path / "nothing")


def test_faults_of_a_seed_are_the_same_and_end_with_the_job():
    class Job:
        num_servers = 2

        def pids(self, kind):
            return {}

    class Wire(Proxy):
        num_cuts = 0

        def cut(self):
            super().cut()
            self.num_cuts += 1
            if self.num_cuts == 5:
                over.set()

    done = []
    for _ in range(2):
        over, wires = threading.Event(), [Wire("127.0.0.1:1"), Wire("127.0.0.1:1")]
        # A process that is not there, as one that is being started, makes it another fault.
        weights = {"kill server": 1.0, "cut": 1.0}
        faults = Faults(Job(), wires, None, random.Random(3), rate=1e4, weights=weights)
        faults.run(over, seconds=60.0)
        for wire in wires:
            wire.close()  # cuts, too
        assert sum(wire.num_cuts for wire in wires) == len(faults.done) + len(wires)
        assert faults.counts() == {"cut": len(faults.done)}
        done.append([each.target for each in faults.done])
    assert done[0] == done[1]


@pytest.mark.slow
def test_a_job_under_faults_ends_equal_to_the_bit():
    run = subprocess.run(
        [sys.executable, str(MAIN), "--quick", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=280,
    )
    told = json.loads(run.stdout.splitlines()[-1])
    assert told["differences"] == []
    assert run.returncode == told["exit_code"] == 0
    assert told["num_faults"] >= 5
