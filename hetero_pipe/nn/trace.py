"""trace: a model becomes a Graph, without data and without a step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812  # as everybody writes it

from hetero_pipe.data import Bags, Batch
from hetero_pipe.errors import ConfigError
from hetero_pipe.graph import Graph, Table, keys_symbol, points_of
from hetero_pipe.nn.bag import BagRows
from hetero_pipe.nn.batch import TensorBatch, cut_name
from hetero_pipe.nn.dense import Loss
from hetero_pipe.nn.device import Device
from hetero_pipe.nn.embedding import Embedding, find_embeddings
from hetero_pipe.nn.join import join_programs
from hetero_pipe.nn.static import Feeds, list_ops

__all__ = ["BatchSpec", "trace"]

Point: TypeAlias = Mapping[str, int]


@dataclass(frozen=True)
class BatchSpec:
    """What is in the batches that a model with `hp.Embedding` is called with.

    Attributes:
        keys: By slot with any number of keys a sample, their mean number. A slot
            that is not named has exactly one; one that is read unpooled has one
            in the mean.
        dense: Names of the dense columns, or how many there are.
        has_label: Whether there are labels, and so a loss.
    """

    keys: Mapping[str, float] = field(default_factory=dict)
    dense: Sequence[str] | int = ()
    has_label: bool = True

    @staticmethod
    def of(batch: Batch) -> "BatchSpec":
        """Returns what is in a batch, its mean numbers of keys taken for those of all."""
        means = {
            slot: len(bags.keys) / max(bags.size, 1)
            for slot, bags in batch.bags.items()
            if bags.offsets is not None
        }
        return BatchSpec(means, batch.dense_names, has_label=batch.label is not None)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """The names of the dense columns."""
        if isinstance(self.dense, int):
            return tuple(f"dense{i}" for i in range(self.dense))
        return tuple(self.dense)


def trace(
    model: paddle.nn.Layer,
    inputs: Batch | BatchSpec | Sequence[Any] | None = None,
    *,
    loss: Loss | None = None,
) -> Graph:
    """Returns what a model computes: its ops with costs on a batch of any size, by layers.

    The forward is run on tensors without values, at several batches, from which
    each size's dependence on the batch is found and checked. Nothing is trained
    and the model is as before: parameters, buffers, attributes, training mode,
    random generators. Paddle is switched to static mode for the time, the whole
    process: nobody else may compute.

    - An `hp.Embedding` becomes a `pull`, a `pool` for what is read of it, and a
      `push`. A `paddle.nn.Embedding` stays what it is: a parameter, and an op.
    - A layer is an element of a `Sequential` or a `LayerList`, or else a child of
      the model. What has no parameters goes with the layer before it, and what
      the model itself does in between is a layer named after its class.

    Args:
        model: Any, as it stands: in training mode or not.
        inputs: Of a model that is called with a batch: one, or what is in them;
            by default one key in each slot, a label, and no dense columns. Of any
            other: what its forward is called with, `paddle.static.InputSpec`s (in
            lists, too), in which None is the batch.
        loss: Of a batch's logits and labels, as the Trainer's; by default its
            default. Of any other model: of what the forward returns, alone, and
            by default the graph ends with that.

    Raises:
        TraceError: The model asks for a tensor's value, does something else at
            another batch, or fails.
        ConfigError: `inputs` is none of these, or this Paddle cannot trace.
    """
    with _named_embeddings(model) as embeddings:
        if inputs is None or isinstance(inputs, (Batch, BatchSpec)):
            tables = _tables(embeddings, inputs)
            many = {keys_symbol(slot) for t in tables for slot in t.slots if slot not in t.single}
            points = points_of(sorted(many))
            spec = BatchSpec.of(inputs) if isinstance(inputs, Batch) else inputs or BatchSpec()
            runs = [_BatchRun(model, spec, tables, embeddings, loss, point) for point in points]
            return join_programs(model, points, [list_ops(model, run) for run in runs], tables)
        if embeddings:
            raise ConfigError(
                f"a model with hp.Embedding is called with a batch, got inputs={inputs!r}; pass a "
                "Batch or a BatchSpec"
            )
        specs = _checked(inputs)
        points = points_of([])
        programs = [list_ops(model, _Run(model, specs, loss, point)) for point in points]
        return join_programs(model, points, programs, ())


@contextmanager
def _named_embeddings(model: paddle.nn.Layer) -> Iterator[dict[str, Embedding]]:
    """Gives the Embeddings of a model by table, and takes their names from the unnamed again."""
    embeddings = [e for e in model.sublayers(include_self=True) if isinstance(e, Embedding)]
    unnamed = [layer for layer in embeddings if layer.table_name is None]
    try:
        yield find_embeddings(model)
    finally:
        for layer in unnamed:
            layer.table_name = None


def _tables(
    embeddings: Mapping[str, Embedding], inputs: Batch | BatchSpec | None
) -> tuple[Table, ...]:
    """Returns the tables of a model, and how many keys a batch has in their slots."""
    slots = {slot for layer in embeddings.values() for slot in layer.slots}
    unpooled = {slot for layer in embeddings.values() for slot in layer.unpooled_slots}
    if isinstance(inputs, Batch):
        spec, strays = BatchSpec.of(inputs), slots - inputs.bags.keys()
    else:
        spec = inputs or BatchSpec()
        strays = spec.keys.keys() - slots
    if strays:
        raise ConfigError(
            f"a model's slots are those of its batches, got {', '.join(sorted(slots))} in the "
            f"model and {', '.join(sorted(strays))} in one of the two alone"
        )
    return tuple(
        Table(
            name=name,
            dim=layer.dim,
            slots={slot: spec.keys.get(slot, 1.0) for slot in layer.slots},
            state_per_weight=layer.spec(name).optimizer.state_per_weight,
            single=tuple(s for s in layer.slots if s not in spec.keys and s not in unpooled),
        )
        for name, layer in embeddings.items()
    )


def _checked(inputs: Sequence[Any]) -> list[Any]:
    """Returns InputSpecs, in lists, as they are, and refuses all else."""
    if not isinstance(inputs, (list, tuple)):
        raise ConfigError(
            "a model is traced with a Batch, a BatchSpec or a list of paddle.static.InputSpec, got "
            f"{type(inputs).__name__}"
        )
    for spec in inputs:
        if isinstance(spec, (list, tuple)):
            _checked(spec)
        elif not isinstance(spec, paddle.static.InputSpec):
            raise ConfigError(f"inputs are paddle.static.InputSpecs, got {spec!r}")
    return list(inputs)


# ------------------------------------------------------------------ calling the model


@dataclass(frozen=True)
class _Run:
    """Calls a model with tensors of given shapes, at one batch."""

    model: paddle.nn.Layer
    specs: list[Any]  # InputSpecs, in lists
    loss: Any  # of the model's output
    point: Point

    def __call__(self, feeds: Feeds) -> Any:
        fed = [self._feed(spec, f"input{i}", feeds) for i, spec in enumerate(self.specs)]
        outputs = self.model(*fed)
        return outputs if self.loss is None else self.loss(outputs)

    def _feed(self, spec: Any, name: str, feeds: Feeds) -> Any:
        if isinstance(spec, (list, tuple)):
            return [self._feed(each, f"{name}.{i}", feeds) for i, each in enumerate(spec)]
        shape = [self.point["batch"] if size in (None, -1) else int(size) for size in spec.shape]
        return feeds.tensor(spec.name or name, shape, str(spec.dtype).rpartition(".")[2])


@dataclass(frozen=True)
class _BatchRun:
    """Calls a model with a batch as a dense worker does: with cuts in place of rows."""

    model: paddle.nn.Layer
    spec: BatchSpec
    tables: Sequence[Table]
    embeddings: Mapping[str, Embedding]
    loss: Loss | None
    point: Point

    def __call__(self, feeds: Feeds) -> Any:
        size, names = self.point["batch"], self.spec.dense_names
        slots = {slot for table in self.tables for slot in table.slots}
        batch = Batch(
            bags={slot: Bags(np.zeros(size, np.uint64)) for slot in sorted(slots)},
            dense=np.zeros((size, len(names)), np.float32),
            label=np.zeros(size, np.float32) if self.spec.has_label else None,
            dense_names=names,
        )
        arrays = {id(batch.dense): "dense", id(batch.label): "label"}
        inputs = TensorBatch(
            batch,
            {},
            cast("Device", _NoDevice(feeds, arrays)),
            cuts=_Cuts(feeds, self.tables, self.embeddings, self.point),
        )
        logits = self.model(inputs)
        if not self.spec.has_label:
            return logits
        return (self.loss or F.binary_cross_entropy_with_logits)(
            logits.reshape([size]), inputs["label"]
        )


@dataclass(frozen=True)
class _NoDevice:
    """Takes the place of a Device: a batch's arrays become tensors without values."""

    feeds: Feeds
    names: Mapping[int, str]  # by the id of an array

    def to_tensor(self, array: np.ndarray) -> paddle.Tensor:
        return self.feeds.tensor(self.names[id(array)], array.shape, str(array.dtype))


class _Cuts(Mapping[str, Any]):
    """What a model reads of its Embeddings: made when it is read."""

    def __init__(
        self,
        feeds: Feeds,
        tables: Sequence[Table],
        embeddings: Mapping[str, Embedding],
        point: Point,
    ) -> None:
        self._feeds, self._point = feeds, point
        self._found: dict[str, Any] = {}
        self._known: dict[str, tuple[Table, str | None]] = {}
        for table in tables:
            self._known[cut_name(table.name)] = (table, None)
            self._known |= {cut_name(table.name, slot): (table, slot) for slot in table.slots}
        self._num_pooled = {
            name: len(layer.slots) - len(layer.unpooled_slots) for name, layer in embeddings.items()
        }

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            table, slot = self._known[name]
            if slot is None:
                shape = [self._point["batch"], self._num_pooled[table.name], table.dim]
                self._found[name] = self._feeds.tensor(name, shape, "float32", needs_gradient=True)
            else:
                self._found[name] = self._bags(name, table, slot)
        return self._found[name]

    def _bags(self, name: str, table: Table, slot: str) -> BagRows:
        size, num_keys = self._point["batch"], int(table.keys(slot).at(self._point))
        tensor = self._feeds.tensor
        return _ShapedBagRows(
            rows=tensor(name, [num_keys, table.dim], "float32", needs_gradient=True),
            samples=tensor(f"{name}.samples", [num_keys], "int64"),
            offsets=tensor(f"{name}.offsets", [size + 1], "int64"),
            size=size,
            end=size,
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class _ShapedBagRows(BagRows):
    """BagRows that know how many bags a sum over bags gives, which Paddle reads off the values."""

    def _pool(self, over_segments: Callable[..., Any], values: paddle.Tensor) -> paddle.Tensor:
        pooled = super()._pool(over_segments, values)
        pooled.set_shape([self.end, *values.shape[1:]])
        return pooled
