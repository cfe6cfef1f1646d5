"""Which plan is best? Every choice is predicted or proven to be no better than one that was.

It asks a `CostModel` alone, and returns a `Plan` with those that lost and why; or, layer by
layer, which type of device runs which. It never measures and never runs anything.
"""

from hetero_pipe.planner.aim import AIMS, Aim
from hetero_pipe.planner.auto import AutoPlan, auto_plan
from hetero_pipe.planner.box import Box, box_of
from hetero_pipe.planner.explain import explain
from hetero_pipe.planner.judge import Judge, Promise
from hetero_pipe.planner.layers import (
    LayersProposal,
    assumed_of,
    explain_layers,
    layers_told,
    propose_layers,
)
from hetero_pipe.planner.propose import Proposal, RunnerUp, propose
from hetero_pipe.planner.search import Search
from hetero_pipe.planner.space import PLANNED_MODES, Space
from hetero_pipe.planner.strategy import Strategy, Where, strategies
from hetero_pipe.planner.watch import Progress

__all__ = [
    "AIMS",
    "PLANNED_MODES",
    "Aim",
    "AutoPlan",
    "Box",
    "Judge",
    "LayersProposal",
    "Progress",
    "Promise",
    "Proposal",
    "RunnerUp",
    "Search",
    "Space",
    "Strategy",
    "Where",
    "assumed_of",
    "auto_plan",
    "box_of",
    "explain",
    "explain_layers",
    "layers_told",
    "propose",
    "propose_layers",
    "strategies",
]
