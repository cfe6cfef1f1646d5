"""How do stages overlap across hosts? A sparse worker sends batches, a dense worker answers them.

Each dense worker is a `StageHost`, each sparse worker holds a `StageLink` to every
one of them. Credits bound what waits. A peer that fails or is lost is an error of
everybody; nobody waits for ever. What a batch means is not known here.
"""

from hetero_pipe.pipeline.remote.batch import CutBatch, CutResult
from hetero_pipe.pipeline.remote.failure import Failure, worker_name
from hetero_pipe.pipeline.remote.flow import Credits, Intake
from hetero_pipe.pipeline.remote.host import StageHost
from hetero_pipe.pipeline.remote.link import StageLink

__all__ = [
    "Credits",
    "CutBatch",
    "CutResult",
    "Failure",
    "Intake",
    "StageHost",
    "StageLink",
    "worker_name",
]
