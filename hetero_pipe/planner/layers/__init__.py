"""Which device runs which layer, and how many of each?

Given layers in a row, what each costs on each type of device, and what a unit of
a type costs an hour: which type runs each layer, and on how many units, so that
the throughput is enough and the money least (HeterPS's problem). `exact` finds the
best assignment and proves it; the other schedulers are those it is compared with. It
decides and never does: nothing here runs a step, measures a device, or imports Paddle.
`stack_of` makes a stack of a traced model on a cluster, and `propose_layers` the best of it.
"""

from hetero_pipe.planner.layers.assignment import AssignedStage, Assignment
from hetero_pipe.planner.layers.baseline import (
    brute_force,
    genetic,
    greedy,
    heuristic,
    one_type,
    random_search,
)
from hetero_pipe.planner.layers.exact import exact
from hetero_pipe.planner.layers.explain import explain_layers, layers_told
from hetero_pipe.planner.layers.objective import Goal, Objective, Scheduler, Solution
from hetero_pipe.planner.layers.propose import LayersProposal, Rival, propose_layers
from hetero_pipe.planner.layers.provision import provision
from hetero_pipe.planner.layers.stack import LAYER_KINDS, DeviceType, LayerStack, StackLayer
from hetero_pipe.planner.layers.traced import assumed_of, stack_of
from hetero_pipe.planner.layers.trainable import is_trainable, trainable

__all__ = [
    "LAYER_KINDS",
    "AssignedStage",
    "Assignment",
    "DeviceType",
    "Goal",
    "LayerStack",
    "LayersProposal",
    "Objective",
    "Rival",
    "Scheduler",
    "Solution",
    "StackLayer",
    "assumed_of",
    "brute_force",
    "exact",
    "explain_layers",
    "genetic",
    "greedy",
    "heuristic",
    "is_trainable",
    "layers_told",
    "one_type",
    "propose_layers",
    "provision",
    "random_search",
    "stack_of",
    "trainable",
]
