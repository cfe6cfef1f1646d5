"""What would a plan do? Its workers, stage by stage, in simulated time, at any scale.

`simulate` is discrete events over a plan and its prediction: what comes out is the
timeline and the trace that a real run has. It never chooses a plan, never predicts
what a stage takes by itself, and runs nothing.
"""

from hetero_pipe.simulate.conditions import Conditions, Failure, Restart, Slowdown, Straggler
from hetero_pipe.simulate.simulate import simulate
from hetero_pipe.simulate.simulation import ResourceTime, Simulation, WorkerRun

__all__ = [
    "Conditions",
    "Failure",
    "ResourceTime",
    "Restart",
    "Simulation",
    "Slowdown",
    "Straggler",
    "WorkerRun",
    "simulate",
]
