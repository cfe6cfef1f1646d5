"""What a worker would measure if a cost model were right. Not a test itself."""

from dataclasses import replace

from hetero_pipe.plan import Measured, MeasuredStage


def as_predicted(prediction, plan, *, role=None, num_steps=100):
    """Returns what a worker that reads, or of another role, measures of a prediction."""
    role = role or prediction.stages[0].role
    return Measured(
        step_seconds=prediction.step_seconds,
        samples=float(plan.batch_size),
        stages=tuple(
            MeasuredStage(stage.name, stage.busy, stage.cpu)
            for stage in prediction.stages
            if stage.role == role
        ),
        num_steps=num_steps,
        num_cores=2,
    )


def with_stage(measured, name, *, busy, cpu):
    """Returns it with one stage that took something else."""
    stages = [s if s.name != name else MeasuredStage(name, busy, cpu) for s in measured.stages]
    return replace(measured, stages=tuple(stages))
