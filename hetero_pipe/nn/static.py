"""Runs a model on tensors that have shapes but no values, and lists what it does.

A model is called as it is, in Paddle's static mode with its parameters as
placeholders (what `paddle.jit.to_static` does, but for rewriting the source): the
ops that would have run are listed with shapes and the line that called them. What
asks a tensor for its value fails there, and says where.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

import paddle

from hetero_pipe.errors import ConfigError, TraceError
from hetero_pipe.nn.program import Program, read_program
from hetero_pipe.nn.source import line_of_error

__all__ = ["Feeds", "Run", "list_ops"]


class Feeds:
    """Makes the tensors that come from outside, while a model is run."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def tensor(
        self, name: str, shape: Sequence[int], dtype: str, *, needs_gradient: bool = False
    ) -> paddle.Tensor:
        """Returns a tensor without values; its name is unique."""
        value = paddle.static.data(name, list(shape), dtype)
        value.stop_gradient = not needs_gradient
        self.names.append(name)
        return value


# What Paddle says where a value is wanted that static mode has not.
_ASKING = (
    "is not supported in static graph mode",
    "only can be called by `paddle.Tensor` in dynamic graph mode",
    "can be converted to Python scalars",
)

Run: TypeAlias = Callable[[Feeds], Any]  # calls the model, returns tensors


def list_ops(model: paddle.nn.Layer, run: Run) -> Program:
    """Returns what a model does when `run` calls it. The model is as before afterwards.

    It switches the process to static mode for the time: nobody else may compute.

    Raises:
        ConfigError: This Paddle cannot, or is not in dynamic mode.
        TraceError: The model asks for a tensor's value, or fails.
    """
    tools = _tools()
    program, startup = paddle.static.Program(), paddle.static.Program()
    paths = _Paths(program)
    with ExitStack() as stack:
        stack.enter_context(_unchanged(model))
        stack.enter_context(warnings.catch_warnings())
        # They tell of static mode, which is not the caller's.
        warnings.filterwarnings("ignore", module=r"paddle\.")
        stack.enter_context(paddle.utils.unique_name.guard())
        paddle.enable_static()
        stack.callback(paddle.disable_static)
        stack.callback(tools.forget, program)
        stack.enter_context(paddle.static.program_guard(program, startup))
        stack.enter_context(tools.guard(program))
        stack.enter_context(paths.watched(model))
        try:
            outputs = run(Feeds())
        except Exception as error:
            raise _trace_error(error) from error
        return read_program(program, _flat(outputs), _names_of(model), paths.after)


@dataclass(frozen=True)
class _Tools:
    """What Paddle has within for `to_static`, which this needs too.

    Attributes:
        guard: Of a program: dynamic tensors that are met become its parameters.
        forget: Drops what Paddle keeps of a program whose run has failed.
    """

    guard: Callable[[Any], Any]
    forget: Callable[[Any], object]


def _tools() -> _Tools:
    if not paddle.in_dynamic_mode():
        raise ConfigError(
            "a model is traced from dynamic mode, got Paddle in static mode; call "
            "paddle.disable_static() before"
        )
    try:
        guard = import_module("paddle.jit.dy2static.utils").graph_tracing_guard
        recorder = import_module(
            "paddle.jit.dy2static.parameter_recorder"
        )._global_parameter_recorder
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"a model is traced with PaddlePaddle 3.3, got {paddle.__version__}; install "
            "'paddlepaddle>=3.3' where plans are made, a trainer needs it not"
        ) from error
    return _Tools(guard, recorder.pop)


@contextmanager
def _unchanged(model: paddle.nn.Layer) -> Iterator[None]:
    """Gives each layer back the attributes that it had: a forward may have set some."""
    before = [
        (layer, dict(vars(layer)), dict(layer._parameters), dict(layer._buffers))
        for layer in model.sublayers(include_self=True)
    ]
    try:
        yield
    finally:
        for layer, attributes, parameters, buffers in before:
            vars(layer).clear()
            vars(layer).update(attributes)
            for held, those in ((layer._parameters, parameters), (layer._buffers, buffers)):
                held.clear()
                held.update(those)


class _Paths:
    """Which sub-layer the ops of a program were called by."""

    def __init__(self, program: Any) -> None:
        self._block = program.global_block()
        self._stack = [""]
        self._after: dict[int | None, str] = {}

    @contextmanager
    def watched(self, model: paddle.nn.Layer) -> Iterator[None]:
        """Notes when sub-layers are entered and left."""
        handles = []
        for path, layer in model.named_sublayers():
            handles.append(layer.register_forward_pre_hook(self._entering(path)))
            handles.append(layer.register_forward_post_hook(self._leaving))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def after(self, op: Any, path: str) -> str:
        """Returns by whom the op after one is called, which was called by `path`."""
        return self._after.get(None if op is None else op.id(), path)

    def _entering(self, path: str) -> Callable[..., None]:
        def enter(*_: object) -> None:
            self._stack.append(path)
            self._note()

        return enter

    def _leaving(self, *_: object) -> None:
        self._stack.pop()
        self._note()

    def _note(self) -> None:
        last = None if self._block.empty() else self._block.back().id()
        self._after[last] = self._stack[-1]


def _names_of(model: paddle.nn.Layer) -> dict[str, str]:
    """Returns the path of each parameter and buffer by the name that Paddle has for it."""
    named = [*model.named_buffers(), *model.named_parameters()]
    return {tensor.name: path for path, tensor in named}


def _flat(outputs: Any) -> list[Any]:
    if isinstance(outputs, Mapping):
        outputs = list(outputs.values())
    if isinstance(outputs, (list, tuple)):
        return [value for each in outputs for value in _flat(each)]
    return [] if outputs is None else [outputs]


def _trace_error(error: Exception) -> TraceError:
    source, line = line_of_error(error)
    said = next(iter(str(error).strip().splitlines()), "").strip()
    where = f"got {type(error).__name__}: {said} at {source}: `{line}`"
    if any(text in said for text in _ASKING):
        return TraceError(
            f"a model computes without asking for a tensor's value, {where}; what depends on "
            "values goes into the batch, or into paddle.where",
            source=source,
        )
    return TraceError(
        f"a model runs on a batch of any size, {where}; call it with one first, or say what is in "
        "its batches",
        source=source,
    )
