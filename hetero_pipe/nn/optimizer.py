"""Paddle's optimizer: whether it is the model's, its step, and its scheduler."""

from typing import Any

import paddle

from hetero_pipe.errors import ConfigError

__all__ = ["check_optimizer", "scheduler_of", "step_optimizer"]


def check_optimizer(model: paddle.nn.Layer, optimizer: Any) -> None:
    """Refuses an optimizer of other parameters than the model's; None is good.

    Raises:
        ConfigError: It is, or it is no optimizer of Paddle's.
    """
    if optimizer is None:
        return
    if not isinstance(optimizer, paddle.optimizer.Optimizer):
        raise ConfigError(
            f"optimizer is of paddle.optimizer, got {optimizer!r}; a table's own is given to its "
            "hp.Embedding"
        )
    ours = {id(parameter) for parameter in model.parameters()}
    listed = optimizer._parameter_list or []  # Paddle tells it nowhere else
    groups = [p["params"] if isinstance(p, dict) else [p] for p in listed]
    strangers = [p.name for group in groups for p in group if id(p) not in ours]
    if strangers:
        raise ConfigError(
            f"the optimizer is of the model's parameters, got {', '.join(strangers)}, which are "
            f"not of this {type(model).__name__}; pass parameters=model.parameters()"
        )


def step_optimizer(optimizer: Any) -> None:
    """Applies the gradients, forgets them, and steps the learning rate's scheduler.

    `ReduceOnPlateau`, which follows a metric, is the caller's to step.
    """
    optimizer.step()
    optimizer.clear_grad()
    scheduler = scheduler_of(optimizer)
    follows_metric = isinstance(scheduler, paddle.optimizer.lr.ReduceOnPlateau)
    if scheduler is not None and not follows_metric:
        scheduler.step()


def scheduler_of(optimizer: Any) -> Any:
    """Returns the scheduler of an optimizer's learning rate, None if it has none."""
    scheduler = getattr(optimizer, "_learning_rate", None)
    return scheduler if isinstance(scheduler, paddle.optimizer.lr.LRScheduler) else None
