"""Where do processes start, and as which worker or server of the job?

One script is every process of a job. `begin` is its first line and `run` its
last: between them they read what started the process (Paddle's launcher, our
own, or a hand) and give its `main` one list of arguments. `add_arguments` says
which, `workers_plan` and `worker` make of them what a Trainer takes. `supervise`
starts a whole job, and again what dies of it; `scale_job` changes how many servers it
has, and loads what it needs for that on first use, as `begin` comes before all that
takes long. It never trains, and nothing but it
and `hetero_pipe.cli` reads the environment.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hetero_pipe.launch.arguments import add_arguments, take_device, worker, workers_plan
from hetero_pipe.launch.job import DURABILITIES, Job, load_job
from hetero_pipe.launch.local import LocalJob, run_local_job
from hetero_pipe.launch.restart import RestartLimit
from hetero_pipe.launch.run import begin, run
from hetero_pipe.launch.server import LocalServer, local_server
from hetero_pipe.launch.status import JobStatus, ProcessStatus, job_status
from hetero_pipe.launch.supervisor import supervise

if TYPE_CHECKING:
    from hetero_pipe.launch.scale import find_job, scale_job

__all__ = [
    "DURABILITIES",
    "Job",
    "JobStatus",
    "LocalJob",
    "LocalServer",
    "ProcessStatus",
    "RestartLimit",
    "add_arguments",
    "begin",
    "find_job",
    "job_status",
    "load_job",
    "local_server",
    "run",
    "run_local_job",
    "scale_job",
    "supervise",
    "take_device",
    "worker",
    "workers_plan",
]


def __getattr__(name: str) -> Any:  # of `scale`: it loads the client, and begin comes first
    if name in ("find_job", "scale_job"):
        return getattr(import_module("hetero_pipe.launch.scale"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
