"""Measures what single ops take on a device, forward and backward, and what a step adds to them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812  # as everybody writes it

from hetero_pipe.cluster import Rate, Sampling, Spread, sample_times
from hetero_pipe.data import Bags, Batch, Lookup
from hetero_pipe.graph import Attribute, Call, Op, Size, Table, Tensor, build_graph
from hetero_pipe.nn.dense import DenseStep
from hetero_pipe.nn.device import Device
from hetero_pipe.nn.embedding import Embedding, find_embeddings
from hetero_pipe.nn.input import TableRows

__all__ = ["OP_KINDS", "profile_ops", "profile_steps"]

BATCH = None
SLOTS, DIM, WIDTH = 26, 16, 400  # a CTR model's: embeddings and the layers of its MLP
LEAST = 1e-9  # seconds, of what is measured to be nothing
DISTINCT = 3  # keys of a batch by its distinct ones
NUM_ROWS = 16384  # of a step with many


@dataclass(frozen=True)
class _Op:
    """One op on operands as a CTR model has them.

    Attributes:
        kind: As a graph names it.
        shapes: Of the operands, `BATCH` for the samples.
        run: Computes it.
        attributes: Those by which a graph tells its cost.
    """

    kind: str
    shapes: tuple[tuple[int | None, ...], ...]
    run: Callable[..., paddle.Tensor]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


_FLAT, _EMBEDDED = (BATCH, WIDTH), (BATCH, SLOTS, DIM)

OPS = (
    _Op("add", (_FLAT, (WIDTH,)), paddle.add),  # of a bias
    _Op("multiply", (_FLAT, _FLAT), paddle.multiply),
    _Op("subtract", (_FLAT, _FLAT), paddle.subtract),
    _Op("relu", (_FLAT,), F.relu),
    _Op("sigmoid", (_FLAT,), F.sigmoid),
    _Op("scale", (_FLAT,), lambda x: paddle.scale(x, 0.5)),
    _Op("square", (_EMBEDDED,), paddle.square),
    _Op("sum", (_EMBEDDED,), lambda x: x.sum(axis=1), {"axis": (1,)}),
    _Op("concat", ((BATCH, WIDTH), (BATCH, DIM)), lambda x, y: paddle.concat([x, y], axis=1)),
    _Op("transpose", (_EMBEDDED,), lambda x: x.transpose([0, 2, 1])),
    _Op("slice", (_EMBEDDED,), lambda x: x[:, : SLOTS // 2]),
    _Op("softmax", (_FLAT,), F.softmax),
    _Op("stack", ((BATCH, WIDTH),) * 2, lambda x, y: paddle.stack([x, y], axis=1)),
)
OP_KINDS = ("pool", "index_select", *(op.kind for op in OPS))
"""The kinds whose rates are measured; all others cost what their bytes cost elementwise."""


def profile_ops(host: str, device: Device, sampling: Sampling) -> Iterator[Rate]:
    """Yields `launch`, `linear`, `op` for each of `OP_KINDS`, and `dense_step`.

    An op's size is the bytes that a graph says its forward and backward move, so
    that what the rule leaves out is in the rate.

    Args:
        host: Name of this one.
        device: Computes with the threads that Paddle has: one, by default.
        sampling: The effort.
    """
    group = device.name.partition(":")[0]
    for batch in (64, 1024) if sampling.is_quick else (64, 256, 1024, 4096):
        value = Spread.of(
            [6 * batch * WIDTH**2 / t for t in _linear_times(device, batch, sampling)]
        )
        yield Rate("linear", host, value, device=group, size=batch)
    for batch in (64, 1024) if sampling.is_quick else (64, 512, 4096):
        for num_bytes, kind, times in _all_times(device, batch, sampling):
            value = Spread.of([num_bytes / seconds for seconds in times])
            yield Rate("op", host, value, device=group, kind=kind, size=round(num_bytes))
    yield from profile_steps(host, device, sampling)


def profile_steps(
    host: str,
    device: Device,
    sampling: Sampling,
    *,
    model: paddle.nn.Layer | None = None,
) -> Iterator[Rate]:
    """Yields `launch`, and the sides of `dense_step` with few rows and with many.

    On a CPU a step is all on a core. Elsewhere its thread is on one, or waits for the
    device; other threads may have cores meanwhile.

    Args:
        host: Name of this one.
        device: As of `profile_ops`.
        sampling: The effort.
        model: With one Embedding of slot `slot` and of so many weights a row as `DIM`, which
            computes nothing that counts; None is one of `launch`es, which are taken off.
    """
    group = device.name.partition(":")[0]
    launches = 0.0
    if model is None:
        launch = Spread.of([t / 2 for t in _times(device, 1, OPS[3], sampling)[1]])
        yield Rate("launch", host, launch, device=group)
        model, launches = _StepModel(), _StepModel.NUM_OPS * launch.median
    for num_rows in (_StepModel.BATCH, NUM_ROWS):
        for side, times in _step_times(model, device, num_rows, launches, sampling).items():
            size = 4 * num_rows * DIM
            yield Rate("dense_step", host, Spread.of(times), device=group, side=side, size=size)


def _all_times(
    device: Device, batch: int, sampling: Sampling
) -> Iterator[tuple[float, str, list[float]]]:
    for op in OPS:
        num_bytes, times = _times(device, batch, op, sampling)
        yield num_bytes, op.kind, times
    for kind, gather in (("pool", _pool), ("index_select", _index_select)):
        num_bytes, times = gather(device, batch, sampling)
        yield num_bytes, kind, times


def _times(device: Device, batch: int, op: _Op, sampling: Sampling) -> tuple[float, list[float]]:
    """Returns the bytes that a graph counts, and the seconds of each sample."""
    shapes = [tuple(batch if n is BATCH else n for n in shape) for shape in op.shapes]
    inputs = [_leaf(device, shape) for shape in shapes]
    output = op.run(*inputs)
    tensors = tuple(_tensor(f"x{i}", shape) for i, shape in enumerate(shapes))
    call = Call(op.kind, tensors, (_tensor("y", output.shape),), op.attributes, "layer")
    graph = build_graph(op.kind, [call], inputs=tensors, outputs=call.outputs)
    times = _sampled(device, lambda: op.run(*inputs), inputs, output.shape, sampling)
    return _bytes_of(graph.ops[0]), times


def _linear_times(device: Device, batch: int, sampling: Sampling) -> list[float]:
    """Returns the seconds of a linear layer's matmul and of both of its gradients."""
    inputs = [_leaf(device, shape) for shape in ((batch, WIDTH), (WIDTH, WIDTH))]
    return _sampled(device, lambda: paddle.matmul(*inputs), inputs, [batch, WIDTH], sampling)


def _pool(device: Device, batch: int, sampling: Sampling) -> tuple[float, list[float]]:
    """As `_times`, of the rows of a batch handed to its samples, one key in each slot."""
    num_rows = max(batch * SLOTS // DISTINCT, 1)
    rows = _leaf(device, (num_rows, DIM))
    index = np.random.default_rng(0).integers(0, num_rows, (batch, SLOTS))
    with device.launching():
        indexes = device.to_tensor(index)
    table = Table("t", DIM, {f"s{i}": 1.0 for i in range(SLOTS)}, single=_slots())
    pulled, pooled = _tensor("rows", (num_rows, DIM)), _tensor("y", (batch, SLOTS, DIM))
    calls = [
        Call("pull", (), (pulled,), {}, "layer", table="t"),
        Call("pool", (pulled,), (pooled,), {"slots": ",".join(table.slots)}, "layer", table="t"),
    ]
    graph = build_graph("pool", calls, inputs=(), outputs=(pooled,), tables=(table,))
    shape = [batch, SLOTS, DIM]
    times = _sampled(device, lambda: F.embedding(indexes, rows), [rows], shape, sampling)
    return _bytes_of(graph.ops[1], {"batch": batch, "rows.t": num_rows}), times


def _index_select(device: Device, batch: int, sampling: Sampling) -> tuple[float, list[float]]:
    """As `_times`, of half the columns of a matrix, as the pairs of a DLRM are taken."""
    width = SLOTS * SLOTS
    x = _leaf(device, (batch, width))
    with device.launching():
        index = device.to_tensor(np.flatnonzero(np.triu(np.ones((SLOTS, SLOTS)), 1)))
    operands = (_tensor("x", (batch, width)), Tensor("i", (Size.of(len(index)),), "int64"))
    result = _tensor("y", (batch, len(index)))
    call = Call("index_select", operands, (result,), {"axis": 1}, "layer")
    graph = build_graph("index_select", [call], inputs=operands, outputs=(result,))
    run = lambda: paddle.index_select(x, index, axis=1)  # noqa: E731  # as the others have one
    return _bytes_of(graph.ops[0]), _sampled(device, run, [x], [batch, len(index)], sampling)


def _slots() -> tuple[str, ...]:
    return tuple(f"s{i}" for i in range(SLOTS))


def _sampled(
    device: Device,
    forward: Callable[[], paddle.Tensor],
    leaves: Sequence[paddle.Tensor],
    shape: Sequence[int],
    sampling: Sampling,
) -> list[float]:
    """Returns the seconds of forward and backward in each sample."""
    with device.launching():
        gradient = paddle.full(shape, 0.5)

    def run() -> None:
        with device.launching():
            paddle.autograd.backward([forward()], [gradient])
            for leaf in leaves:
                leaf.clear_gradient(False)
        if device.name != "cpu":
            paddle.device.synchronize(device.name)

    return _device_times(device, run, sampling)


def _device_times(device: Device, run: Callable[[], object], sampling: Sampling) -> list[float]:
    # On a CPU what is computed on the core counts, not what others had of it meanwhile.
    clock = time.process_time if device.name == "cpu" else time.perf_counter
    return sample_times(run, sampling, clock=clock)


class _StepModel(paddle.nn.Layer):  # type: ignore[misc]  # paddle has no types
    """As little of a model as a Trainer takes."""

    NUM_OPS = 8  # kernels of its forward and backward, the loss's among them
    BATCH = 16

    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding(["slot"], dim=DIM)

    def forward(self, batch: Mapping[str, paddle.Tensor]) -> paddle.Tensor:
        return self.embedding(batch).flatten(1).sum(axis=1)


def _step_times(
    model: paddle.nn.Layer, device: Device, num_rows: int, launches: float, sampling: Sampling
) -> dict[str, list[float]]:
    """Returns the seconds by side of a step with so many rows, in each sample."""
    size = _StepModel.BATCH
    keys = np.arange(size, dtype=np.uint64)
    batch = Batch({"slot": Bags(keys)}, np.empty((size, 0), np.float32), np.zeros(size, np.float32))
    lookup = Lookup.of(batch, ("slot",), np.arange(size))
    rows = np.zeros((num_rows, DIM), np.float32)
    tables = {name: TableRows(rows, lookup) for name in find_embeddings(model)}
    dense = DenseStep(model, loss=None, optimizer=None, device=device)

    def step() -> tuple[float, float, float]:
        uploaded = dense.upload(batch, tables)
        if device.name != "cpu":
            paddle.device.synchronize(device.name)
        begin = _clocks()
        output = dense.train(0, batch, tables, uploaded=uploaded)
        wall, thread, process = (now - then for now, then in zip(_clocks(), begin, strict=True))
        for name in output.gradients:
            output.gradients[name]  # waits until it is there
        return wall, thread, process

    once = max(step()[0] for _ in range(3))
    num_steps = max(1, round(sampling.min_seconds / once))
    sides = ("worker",) if device.name == "cpu" else ("worker", "wait", "aside")
    found: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(sampling.num_samples):
        laps = np.median([step() for _ in range(num_steps)], axis=0)
        wall, thread, process = (float(lap) for lap in laps)
        if device.name == "cpu":
            found["worker"].append(max(process - launches, LEAST))
            continue
        found["worker"].append(max(thread - launches, LEAST))
        found["wait"].append(max(wall - thread, LEAST))
        found["aside"].append(max(process - thread, LEAST))
    return found


def _clocks() -> tuple[float, float, float]:
    return time.perf_counter(), time.thread_time(), time.process_time()


def _leaf(device: Device, shape: tuple[int, ...]) -> paddle.Tensor:
    with device.launching():
        leaf = paddle.rand(shape)
    leaf.stop_gradient = False
    return leaf


def _tensor(name: str, shape: Sequence[int]) -> Tensor:
    return Tensor(name, tuple(Size.of(n) for n in shape), needs_gradient=True)


def _bytes_of(op: Op, values: Mapping[str, int | float] | None = None) -> float:
    return float((op.forward.bytes + op.backward.bytes).at(values or {}))
