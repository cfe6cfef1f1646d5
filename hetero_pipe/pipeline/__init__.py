"""How do stages overlap? Each runs in its own thread and hands on through a bounded hand-off.

The executor moves items from stage to stage in step order, stops when a stage
fails or the caller has enough, and joins every thread it started. It never
knows what a stage does.
"""

from hetero_pipe.pipeline.executor import Executor, Finished
from hetero_pipe.pipeline.handoff import Closed, Handoff
from hetero_pipe.pipeline.meeting import Channel, Meeting
from hetero_pipe.pipeline.profile import profile_cuts
from hetero_pipe.pipeline.remote import (
    CutBatch,
    CutResult,
    Failure,
    StageHost,
    StageLink,
    worker_name,
)
from hetero_pipe.pipeline.stage import Stage
from hetero_pipe.pipeline.staleness import StalenessGate
from hetero_pipe.pipeline.summary import ENOUGH_STEPS, ServerTime, Summary
from hetero_pipe.pipeline.timeline import CREDIT, GATE, StageClock, StageTime, Timeline
from hetero_pipe.pipeline.trace import BATCH_OF, merge, write_trace

__all__ = [
    "BATCH_OF",
    "CREDIT",
    "ENOUGH_STEPS",
    "GATE",
    "Channel",
    "Closed",
    "CutBatch",
    "CutResult",
    "Executor",
    "Failure",
    "Finished",
    "Handoff",
    "Meeting",
    "ServerTime",
    "Stage",
    "StageClock",
    "StageHost",
    "StageLink",
    "StageTime",
    "StalenessGate",
    "Summary",
    "Timeline",
    "merge",
    "profile_cuts",
    "worker_name",
    "write_trace",
]
