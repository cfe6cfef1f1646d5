"""The dense state of a model as plain arrays, and back.

Paddle names an optimizer's state by the order in which layers were made in the
process (`linear_3.w_0_moment1_0`); here it is named by the parameter's path in
the model (`optimizer/mlp.0.weight/moment1`), so that another process finds it.
`Optimizer.set_state_dict` is not used: it wants every name at once, among them
the scheduler's, and afterwards refuses a parameter that first moves later.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.errors import CheckpointError
from hetero_pipe.nn.optimizer import scheduler_of

__all__ = ["dense_state", "load_dense_state", "statistics_of"]

MODEL, OPTIMIZER, SCHEDULER = "model/", "optimizer/", "scheduler"

# `CosineAnnealingWarmRestarts` counts by these, and `state_dict` of Paddle 3.3 leaves them out:
# where it is in its cycle, and how long that is.
_FORGOTTEN = ("T_cur", "T_i")


def dense_state(model: paddle.nn.Layer, optimizer: Any) -> dict[str, NDArray[Any]]:
    """Returns copies of parameters, buffers and optimizer state, by name."""
    state = {MODEL + path: _array(tensor) for path, tensor in model.state_dict().items()}
    if optimizer is None:
        return state
    for path, accumulators in _accumulators(model, optimizer).items():
        for name, tensor in accumulators.items():
            state[f"{OPTIMIZER}{path}/{name}"] = _array(tensor)
    scheduler = scheduler_of(optimizer)
    if scheduler is not None:
        state[SCHEDULER] = np.array(json.dumps(_scheduler_state(scheduler)))
    return state


def load_dense_state(
    model: paddle.nn.Layer, optimizer: Any, state: Mapping[str, NDArray[Any]]
) -> None:
    """Sets parameters, buffers and optimizer state to what `dense_state` returned.

    Raises:
        CheckpointError: The state is of another model or another optimizer;
            nothing has changed.
    """
    saved = {n.removeprefix(MODEL): a for n, a in state.items() if n.startswith(MODEL)}
    tensors = model.state_dict()
    _check_same(saved, {path: list(tensor.shape) for path, tensor in tensors.items()})
    wanted: dict[str, dict[str, NDArray[Any]]] = defaultdict(dict)
    for name, array in state.items():
        if name.startswith(OPTIMIZER):
            path, accumulator = name.removeprefix(OPTIMIZER).rsplit("/", 1)
            wanted[path][accumulator] = array
    scheduler = scheduler_of(optimizer)
    if (SCHEDULER in state) != (scheduler is not None):
        raise CheckpointError(
            f"the checkpoint must be of an optimizer with the same learning rate, got one "
            f"{'with' if SCHEDULER in state else 'without'} a scheduler saved and "
            f"{type(scheduler).__name__} built; build the optimizer as it was saved"
        )
    if wanted and optimizer is None:
        raise CheckpointError(
            "the checkpoint holds optimizer state, got optimizer=None; build the optimizer as it "
            "was saved"
        )
    if optimizer is not None:
        _load_optimizer(model, optimizer, wanted)
    if scheduler is not None:
        _load_scheduler(scheduler, json.loads(str(state[SCHEDULER])))
    for path, array in saved.items():
        tensors[path].set_value(array)


def statistics_of(model: paddle.nn.Layer) -> list[paddle.Tensor]:
    """Returns what a forward may change: buffers, and a BatchNorm's vectors.

    Paddle keeps those among the parameters, without gradient. A frozen matrix is
    not among them, it may be large.
    """
    vectors = [p for p in model.parameters() if p.stop_gradient and p.ndim == 1]
    return [*model.buffers(), *vectors]


def _load_optimizer(
    model: paddle.nn.Layer, optimizer: Any, wanted: Mapping[str, Mapping[str, NDArray[Any]]]
) -> None:
    # Paddle makes the accumulators of a parameter at its first step, so a step with gradients of
    # zero makes them. Those of other parameters are as before their first step: not there.
    parameters = dict(model.named_parameters())
    with _undone_on_error(model, optimizer):
        # `clear_grad` leaves gradients of zero, by which other parameters would take the step too.
        for parameter in parameters.values():
            parameter.clear_gradient(False)
        for path in wanted:
            parameters[path].grad = paddle.zeros_like(parameters[path])
        optimizer.step()
        for path in wanted:
            parameters[path].clear_gradient(False)
        made = _accumulators(model, optimizer)
        found = {path: {n: list(t.shape) for n, t in made.get(path, {}).items()} for path in wanted}
        for path, arrays in wanted.items():
            shapes = {name: list(array.shape) for name, array in arrays.items()}
            if found[path] != shapes:
                raise CheckpointError(
                    f"the checkpoint must be of {type(optimizer).__name__}, got {shapes} saved and "
                    f"{found[path]} built for {path}; build the optimizer as it was saved"
                )
    for path, arrays in wanted.items():
        for name, array in arrays.items():
            made[path][name].set_value(array)


@contextmanager
def _undone_on_error(model: paddle.nn.Layer, optimizer: Any) -> Iterator[None]:
    """Forgets the optimizer's state; an error in the block brings it and the parameters back."""
    # Paddle has no public name for them, and 2.6 spells the second another way.
    empty: dict[str, Any] = {
        "_accumulators": defaultdict(dict),
        "_already_create_accumulator": set(),
        "_already_create_accumulater": set(),
    }
    before = {name: getattr(optimizer, name) for name in empty if hasattr(optimizer, name)}
    values = [(parameter, parameter.clone()) for parameter in model.parameters()]
    for name in before:
        setattr(optimizer, name, empty[name])
    try:
        yield
    except BaseException:
        for name, state in before.items():
            setattr(optimizer, name, state)
        for parameter, value in values:
            parameter.set_value(value)
            parameter.clear_gradient(False)
        raise


def _accumulators(model: paddle.nn.Layer, optimizer: Any) -> dict[str, dict[str, paddle.Tensor]]:
    """Returns the optimizer's tensors by path of the parameter and name of the accumulator."""
    paths = {parameter.name: path for path, parameter in model.named_parameters()}
    found: dict[str, dict[str, paddle.Tensor]] = defaultdict(dict)
    for name, tensors in optimizer._accumulators.items():
        for parameter, tensor in tensors.items():
            found[paths[parameter]][name] = tensor
    return found


def _scheduler_state(scheduler: Any) -> dict[str, Any]:
    state = dict(scheduler.state_dict())
    for name in _FORGOTTEN:
        if hasattr(scheduler, name):
            state[name] = getattr(scheduler, name)
    return state


def _load_scheduler(scheduler: Any, state: dict[str, Any]) -> None:
    for name in _FORGOTTEN:
        if name in state:
            setattr(scheduler, name, state.pop(name))
    scheduler.set_state_dict(state)


def _check_same(saved: Mapping[str, NDArray[Any]], built: Mapping[str, list[int]]) -> None:
    shapes = {path: list(array.shape) for path, array in saved.items()}
    for path in [*shapes, *built]:
        if shapes.get(path) != built.get(path):
            raise CheckpointError(
                f"the checkpoint must be of this model, got {path} with shape {shapes.get(path)} "
                f"saved and {built.get(path)} built; build the model as it was saved"
            )


def _array(tensor: paddle.Tensor) -> NDArray[Any]:
    return np.array(tensor.detach().numpy())
