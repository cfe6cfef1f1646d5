"""How is a model trained as its plan says? Batches go through stages; results come back.

The trainer builds an executor from a frozen plan and runs it. It never decides
where anything runs and imports nobody who does.
"""

from hetero_pipe.trainer.build import default_plan
from hetero_pipe.trainer.callbacks import Callback, Progress, StepReport
from hetero_pipe.trainer.profile import profile_beside
from hetero_pipe.trainer.result import Evaluation, FitResult
from hetero_pipe.trainer.series import has_checkpoint
from hetero_pipe.trainer.trainer import Trainer

__all__ = [
    "Callback",
    "Evaluation",
    "FitResult",
    "Progress",
    "StepReport",
    "Trainer",
    "default_plan",
    "has_checkpoint",
    "profile_beside",
]
