"""A supervised job of one server and one worker, what its processes say, and when."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from sizes import step_bytes

import hetero_pipe as hp
from ps_server.durable import JOURNAL_LIMIT

HERE = Path(__file__).parent
LATER = 120.0  # nothing that is waited for takes so long
TOML = """\
[servers]
number = 1
durability = {durability}
journal_limit = {journal_limit}

[workers]
number = 1
script = {script}
arguments = {arguments}
"""


@dataclass(frozen=True)
class Line:
    """What a process said, and when: seconds since 1970."""

    time: float
    text: str


class Job:
    """Runs `hetero-pipe launch job.toml`; a context manager, that ends it.

    Args:
        folder: Of the job, not there yet.
        rows: Of the table.
        save_every: Steps from one checkpoint of the trainer to the next.
        durability: Of the server.
        journal_limit: Of the server.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rows: int,
        save_every: int,
        durability: str = "process",
        journal_limit: str = "1GiB",
    ) -> None:
        self._folder = folder
        self._toml = folder.with_suffix(".toml")
        arguments = ["--rows", f"{rows}", "--save-every", f"{save_every}"]
        arguments += ["--save", "{dir}/checkpoints"]
        self._toml.write_text(
            TOML.format(
                durability=json.dumps(durability),
                journal_limit=json.dumps(journal_limit),
                script=json.dumps(str(HERE / "training.py")),
                arguments=json.dumps(arguments),
            )
        )
        self._changed = threading.Condition()
        self._lines: list[Line] = []
        self._ends: dict[int, float] = {}  # of each step, the latest
        self._has_ended = False

    def __enter__(self) -> "Job":
        path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "hetero_pipe", "launch", "--dir", str(self._folder)]
        self._process = subprocess.Popen(
            [*command, str(self._toml)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._has_ended:
            self.kill("worker 0")  # it would save, if it were asked to stop
        self._process.terminate()
        self._thread.join()
        self._process.wait()

    def kill(self, name: str, number: int = signal.SIGKILL) -> float:
        """Sends a process a signal; returns when."""
        processes = hp.launch.job_status(self._folder).processes
        (pid,) = (process.pid for process in processes if process.name == name)
        now = time.time()
        if pid is not None:
            os.kill(pid, number)
        return now

    def wait(self, pattern: str, *, after: float = 0.0) -> tuple[float, re.Match[str]]:
        """Returns when the first line after a time came that has a pattern, and its match."""
        with self._changed:
            while True:
                for line in self._lines:
                    found = re.search(pattern, line.text) if line.time > after else None
                    if found is not None:
                        return line.time, found
                self._wait_for_more(pattern)

    def wait_for_steps(self, number: int) -> int:
        """Returns the last step's number when so many more steps have ended."""
        with self._changed:
            end = max(self._ends, default=0) + number
            while max(self._ends, default=0) < end:
                self._wait_for_more(f"step {end}")
            return max(self._ends)

    def wait_for_step(self, *, after: float) -> tuple[float, int]:
        """Returns the end and the number of the first step that ended after a time."""
        with self._changed:
            while True:
                later = [(end, step) for step, end in self._ends.items() if end > after]
                if later:
                    return min(later)
                self._wait_for_more("a step")

    def ends(self, first: float, last: float) -> list[float]:
        """Returns when steps have ended between two times."""
        with self._changed:
            return sorted(end for end in self._ends.values() if first < end <= last)

    def step_end(self, number: int) -> float:
        """Returns the end of the step of this number, counted from the first that was trained."""
        with self._changed:
            return sorted(self._ends.values())[number]

    def last_step(self, before: float) -> int:
        """Returns the last step that had ended by then."""
        with self._changed:
            return max(step for step, end in self._ends.items() if end <= before)

    def _wait_for_more(self, what: str) -> None:
        if self._has_ended or not self._changed.wait(LATER):
            raise RuntimeError(f"a job was to come to {what}, got {self._lines[-20:]}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            with self._changed:
                told = re.fullmatch(r"\[worker 0\] (\{.*\})\n", text)
                event = json.loads(told[1]) if told else {}
                if event.get("what") == "step":
                    self._ends[event["step"]] = event["time"]
                else:
                    self._lines.append(Line(event.get("time", time.time()), text))
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


def kill_server(job: Job) -> dict[str, float]:
    """Kills the server with -9; returns the seconds until a step ends again, and their parts."""
    killed = job.kill("server 0")
    noticed, _ = job.wait("server 0 was ended", after=killed)
    _, said = job.wait(
        r"recovered .* checkpoint \d+ in (\S+) s, (\d+) records in (\S+) s", after=killed
    )
    listens, _ = job.wait("server 0 listens again", after=killed)
    back, _ = job.wait("server .* is back", after=killed)
    stepped, _ = job.wait_for_step(after=listens)
    read, records, replay = (float(each) for each in said.groups())
    return {
        "seconds": stepped - killed,
        "until the supervisor knows": noticed - killed,
        "start of the process": listens - noticed - read - replay,
        "read the checkpoint": read,
        "replay the journal": replay,
        "until the client is back": back - listens,
        "first step": stepped - back,
        "records replayed": records,
    }


def kill_worker(job: Job) -> dict[str, float]:
    """Kills the worker with -9; returns the seconds until a new step ends, and their parts."""
    killed = job.kill("worker 0")
    times = [killed]
    for pattern in ("worker 0 was ended", *(f'"{w}"' for w in ("started", "imported"))):
        times.append(job.wait(pattern, after=killed)[0])
    for what in ("attached", "loaded"):
        times.append(job.wait(f'"{what}"', after=killed)[0])
    before = job.last_step(killed)
    stepped, step = job.wait_for_step(after=times[-1])
    times.append(stepped)
    names = ["until the supervisor knows", "start of the process", "imports"]
    names += ["connect, drop the tables", "load the checkpoint", "first step"]
    parts = (end - start for start, end in pairwise(times))
    return {
        "seconds": stepped - killed,
        **dict(zip(names, parts, strict=True)),
        "steps to be trained again": before - (step - 1),
    }


def write_cost(job: Job, start: float, end: float, steady: list[float]) -> dict[str, float]:
    """Returns what it has cost that a checkpoint was written, by the steps meanwhile.

    Args:
        job: That trains.
        start: Of the writing.
        end: Of the writing.
        steady: When steps have ended before or after, that nothing held up.
    """
    rate = (len(steady) - 1) / (steady[-1] - steady[0])
    return {
        "write seconds": end - start,
        "steps a second beside": rate,
        "training lost seconds": end - start - len(job.ends(start, end)) / rate,
    }


def job_recovery(folder: Path, *, rows: int, kills: int) -> dict[str, object]:
    """Kills the server of a job so often and, after a checkpoint of the trainer, the worker."""
    save_every = max(200, rows // 20_000)
    with Job(folder, rows=rows, save_every=save_every) as job:
        written, said = job.wait(r"wrote checkpoint \d+ in (\S+) s")
        job.wait_for_steps(100)
        begun = job.step_end(3)  # those before have made what they need
        steady = job.ends(written + 0.5, time.time())
        own = write_cost(job, max(written - float(said[1]), begun), written, steady)
        servers = []
        for _ in range(kills):
            servers.append(kill_server(job))
            job.wait_for_steps(50)
        saved, said = job.wait(r"saved step \d+ to .* in (\S+) s")
        start = saved - float(said[1])
        save = write_cost(job, start, saved, job.ends(start - 2.0, start))
        workers = []
        for number in range(kills):
            job.wait_for_steps(save_every // 2 if number == 0 else 20)
            workers.append(kill_worker(job))
    until = JOURNAL_LIMIT / step_bytes() / own["steps a second beside"]
    return {
        "rows": rows,
        "save_every": save_every,
        "kill_server": medians(servers),
        "kill_worker": medians(workers),
        "save": save,
        "server_checkpoint": {**own, "seconds until the next": until},
    }


def medians(runs: Sequence[dict[str, float]]) -> dict[str, object]:
    """Returns the median of each figure, and the first one of each run."""
    found: dict[str, object] = {
        name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]
    }
    first = next(iter(runs[0]))
    return {**found, "each": [round(run[first], 2) for run in runs]}


def journal_cost(folder: Path, *, rows: int, turns: int, seconds: float = 2.0) -> dict[str, object]:
    """Trains jobs by turns, of which one has no journal: the others are stopped meanwhile.

    What is taken is each turn's mean time of a step, without the first, which has waited.
    """
    never = 1_000_000_000  # the trainer saves nothing
    kinds = {
        "none": {"durability": "none"},
        "journal alone": {"journal_limit": "1TiB"},
        "journal and checkpoints": {},
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    with ExitStack() as stack:
        jobs = {
            name: stack.enter_context(
                Job(folder / name.replace(" ", "-"), rows=rows, save_every=never, **options)
            )
            for name, options in kinds.items()
        }
        for job in jobs.values():
            job.wait_for_steps(50)
        jobs["journal and checkpoints"].wait("wrote checkpoint")
        for job in jobs.values():
            job.kill("worker 0", signal.SIGSTOP)
        for number in range(turns):
            for name in list(jobs)[:: 1 if number % 2 else -1]:
                start = jobs[name].kill("worker 0", signal.SIGCONT)
                time.sleep(seconds)
                end = jobs[name].kill("worker 0", signal.SIGSTOP)
                ends = jobs[name].ends(start, end)[1:]
                times[name].append((ends[-1] - ends[0]) / (len(ends) - 1))
    found: dict[str, object] = {"rows": rows}
    for name, each in times.items():
        ratios = [a / b for a, b in zip(times["none"], each, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        ratio = {"median": median, "low": low, "high": high}
        found[name] = {"step_seconds": statistics.median(each), "steps_of_none": ratio}
    return found
