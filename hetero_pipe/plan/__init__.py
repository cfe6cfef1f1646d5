"""What runs where, and what is expected of it? The one meeting place of deciding and doing.

A planner returns a `Plan`, a trainer runs it; `Planning` is how one is handed to
the other. Nothing here decides, and nothing here runs.
"""

from hetero_pipe.plan.breakdown import MOVES, RESOURCES, Breakdown, Part
from hetero_pipe.plan.comparison import Comparison, ComparisonRow
from hetero_pipe.plan.measured import Measured, MeasuredStage
from hetero_pipe.plan.plan import Plan
from hetero_pipe.plan.planning import Planning
from hetero_pipe.plan.prediction import MemoryPrediction, Prediction, StagePrediction
from hetero_pipe.plan.processes import ROLES, ProcessPlan
from hetero_pipe.plan.stage import STAGES, StagePlan
from hetero_pipe.plan.table import HOMES, TablePlan
from hetero_pipe.plan.workers import MODES, RETRY_SECONDS, WIRES, Worker, WorkersPlan

__all__ = [
    "HOMES",
    "MODES",
    "MOVES",
    "RESOURCES",
    "RETRY_SECONDS",
    "ROLES",
    "STAGES",
    "WIRES",
    "Breakdown",
    "Comparison",
    "ComparisonRow",
    "Measured",
    "MeasuredStage",
    "MemoryPrediction",
    "Part",
    "Plan",
    "Planning",
    "Prediction",
    "ProcessPlan",
    "StagePlan",
    "StagePrediction",
    "TablePlan",
    "Worker",
    "WorkersPlan",
]
