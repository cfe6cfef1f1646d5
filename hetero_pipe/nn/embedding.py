"""Embedding: the layer whose rows live on parameter servers."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812  # as everybody writes it

from hetero_pipe.data import Lookup
from hetero_pipe.errors import ConfigError
from hetero_pipe.nn.bag import BagRows
from hetero_pipe.nn.batch import PulledRows, TensorBatch, cut_name
from ps_server.spec import Adagrad, Initializer, Optimizer, TableSpec, Uniform

__all__ = ["Embedding", "find_embeddings"]

POOLINGS = ("sum", "mean")


class Embedding(paddle.nn.Layer):  # type: ignore[misc]  # paddle has no types
    """A table of rows, looked up by the keys of some slots.

    Called with the batch it returns float32 `[batch, len(slots), dim]`. A slot
    with several keys a sample is pooled; a sample without keys gets zeros.
    `unpooled(batch, slot)` returns the rows of a slot one by one, `[n, dim]`.

    The rows are no parameters of the layer: they live in a table on the
    parameter servers, or in the trainer's process, and the table's optimizer
    moves them. So they need not fit where the model is, and `parameters()` of a
    model lists its dense part alone.

    Args:
        slots: Whose keys are looked up. Equal values of two slots are two keys,
            unless the reader's `shared_keys` makes them one.
        dim: Weights of a row.
        optimizer: Moves the rows, by default `Adagrad(0.05)`. A gradient is
            that of the loss, summed over the occurrences of a key, as Paddle's.
        initializer: What a new row starts as, by default `Uniform(-0.01, 0.01)`.
        pooling: `sum` or `mean`, of a sample's rows of one slot; one for all
            slots or one for each, as a dict. A slot with None is not pooled: it
            is not among the slots that a call returns.
        name: Of the table. By default the path of the layer in the model.
        seed: New rows are a function of (seed, name, key).

    Raises:
        ConfigError: An argument is out of range.
    """

    def __init__(
        self,
        slots: Sequence[str],
        dim: int,
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        pooling: str | Mapping[str, str | None] | None = "sum",
        name: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if isinstance(slots, str):
            raise ConfigError(f"slots is a list of names, got {slots!r}; write [{slots!r}]")
        self.slots = tuple(slots)
        if not self.slots or len(set(self.slots)) != len(self.slots):
            raise ConfigError(f"an Embedding needs slots, each once, got slots={list(self.slots)}")
        self.dim = dim
        self.table_name = name
        self._optimizer = Adagrad(0.05) if optimizer is None else optimizer
        self._initializer = Uniform() if initializer is None else initializer
        self._seed = seed
        self._pooling = _poolings(self.slots, pooling)
        self._pooled_slots = [slot for slot in self.slots if self._pooling[slot] is not None]
        self.unpooled_slots = tuple(slot for slot in self.slots if self._pooling[slot] is None)
        self._check_kinds()
        self.spec("unnamed" if name is None else name)  # a mistake shows where it was made

    def _check_kinds(self) -> None:
        """Refuses what is of another type; a `TableSpec` compares without asking."""
        wanted: dict[str, tuple[object, tuple[type, ...], str]] = {
            "dim": (self.dim, (int,), "a whole number"),
            "seed": (self._seed, (int,), "a whole number"),
            "optimizer": (self._optimizer, get_args(Optimizer), "hp.SGD, hp.Adagrad or hp.Adam"),
            "initializer": (
                self._initializer,
                get_args(Initializer),
                "hp.Constant, hp.Uniform or hp.Normal",
            ),
        }
        for name, (found, kinds, claim) in wanted.items():
            if not isinstance(found, kinds):
                raise ConfigError(
                    f"Embedding({list(self.slots)}): {name} is {claim}, got {found!r}"
                )

    def spec(self, name: str) -> TableSpec:
        """Returns what the table of this layer is, under a name.

        Raises:
            ConfigError: The layer's arguments make no table.
        """
        try:
            return TableSpec(
                name=name,
                dim=self.dim,
                optimizer=self._optimizer,
                initializer=self._initializer,
                seed=self._seed,
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Embedding({list(self.slots)}): {error}") from error

    def forward(self, batch: Any) -> paddle.Tensor:  # what a user may pass by mistake
        """Returns the pooled rows of each pooled slot, `[batch, slots, dim]`.

        Raises:
            ConfigError: The layer was called outside a Trainer, or pools no slot.
        """
        pulled = self._pulled(batch)
        if not self._pooled_slots:
            raise ConfigError(
                f"a call returns pooled rows, got pooling=None for all of {list(self.slots)}; "
                "read the rows of a slot with .unpooled(batch, slot)"
            )
        if pulled is None:
            return self._received(batch, None)
        lookup, rows, to_tensor = pulled.lookup, pulled.rows, batch.device.to_tensor
        if rows.shape[0] == 0:  # Paddle's segment_sum and embedding fail on no rows
            return paddle.zeros([lookup.size, len(self._pooled_slots), self.dim])
        parts = {
            slot: self._pool(slot, lookup, rows, to_tensor)
            for slot in self._pooled_slots
            if slot in lookup.bags
        }
        single_slots = [slot for slot in self._pooled_slots if slot not in parts]
        if single_slots:
            index = lookup.single
            if len(single_slots) != len(lookup.single_slots):
                index = index[:, [lookup.single_slots.index(slot) for slot in single_slots]]
            single = F.embedding(to_tensor(np.ascontiguousarray(index)), rows)
            if not parts:
                return single  # [batch, single slots, dim]
            parts |= {slot: single[:, i] for i, slot in enumerate(single_slots)}
        return paddle.stack([parts[slot] for slot in self._pooled_slots], axis=1)

    def unpooled(self, batch: Any, slot: str) -> BagRows:  # as in forward
        """Returns the rows of a slot one by one, `[n, dim]` for its n keys, and where bags begin.

        Any slot of the layer, whatever its pooling; each call gives gradients of
        its own, which add up.

        Raises:
            ConfigError: The layer was called outside a Trainer, or has no such slot.
        """
        pulled = self._pulled(batch)
        if slot not in self.slots:
            raise ConfigError(f"an Embedding of {list(self.slots)} has no rows of slot {slot!r}")
        if pulled is None:
            received: BagRows = self._received(batch, slot)
            return received
        lookup, to_tensor = pulled.lookup, batch.device.to_tensor
        if slot in lookup.bags:
            index, samples = lookup.bags[slot].rows, lookup.bags[slot].samples
        else:
            index = np.ascontiguousarray(lookup.single[:, lookup.single_slots.index(slot)])
            samples = np.arange(lookup.size)
        # F.embedding fails without keys.
        rows = F.embedding(to_tensor(index), pulled.rows) if len(index) else None
        return BagRows(
            paddle.zeros([0, self.dim]) if rows is None else rows,
            samples=to_tensor(samples),
            offsets=to_tensor(np.searchsorted(samples, np.arange(lookup.size + 1))),
            size=lookup.size,
            end=int(samples[-1]) + 1 if len(samples) else 0,
        )

    @property
    def is_pooled(self) -> bool:
        """Whether a call returns pooled rows, of some slots or all."""
        return bool(self._pooled_slots)

    def _pulled(self, batch: Any) -> PulledRows | None:
        """Returns the rows of the table, None where a sparse worker has them."""
        if not isinstance(batch, TensorBatch):
            raise ConfigError(
                f"hp.Embedding is called with a batch by hp.Trainer, which pulls its rows, got "
                f"{type(batch).__name__}; use hp.Trainer(model, ...).fit, .evaluate or .predict, "
                "and pass the batch on unchanged"
            )
        if batch.cuts is not None and self.table_name is not None:
            return None
        pulled = batch.pulled.get(self.table_name) if self.table_name is not None else None
        if pulled is None:
            raise ConfigError(
                f"an hp.Embedding is a layer of the model when its Trainer is made, got "
                f"{list(self.slots)} outside it; keep it in an attribute or a paddle.nn.LayerList, "
                "not in a plain list"
            )
        return pulled

    def _received(self, batch: TensorBatch, slot: str | None) -> Any:  # a Tensor or BagRows
        """Returns what a sparse worker has sent of the rows."""
        assert self.table_name is not None, "asked before _pulled"
        name, cuts = cut_name(self.table_name, slot), batch.cuts or {}
        if name not in cuts:
            raise ConfigError(
                f"a sparse worker sends pooled rows, and those of slots with pooling=None one by "
                f"one, got a read of {name}; give the slot pooling=None in its hp.Embedding and "
                "pool it with BagRows.sum"
            )
        return cuts[name]

    def _pool(
        self, slot: str, lookup: Lookup, rows: paddle.Tensor, to_tensor: Any
    ) -> paddle.Tensor:
        """Returns the sum or mean of a slot's rows, `[batch, dim]`."""
        bag = lookup.bags[slot]
        # One more segment, of row 0, so that the last real one is there even if it is empty; it is
        # cut off again, so row 0 gets a gradient of zero from it.
        index = to_tensor(np.append(bag.rows, 0))
        samples = to_tensor(np.append(bag.samples, lookup.size))
        pooled = paddle.geometric.segment_sum(F.embedding(index, rows), samples)[: lookup.size]
        return pooled / to_tensor(bag.counts) if self._pooling[slot] == "mean" else pooled

    def extra_repr(self) -> str:
        """Returns what printing the layer shows."""
        return f"slots={list(self.slots)}, dim={self.dim}, optimizer={self._optimizer}"


def find_embeddings(model: paddle.nn.Layer) -> dict[str, Embedding]:
    """Returns the Embeddings of a model by table name, and gives the unnamed their path's name.

    Raises:
        ConfigError: Two have one name.
    """
    found: dict[str, Embedding] = {}
    for path, layer in model.named_sublayers(include_self=True):
        if not isinstance(layer, Embedding):
            continue
        if layer.table_name is None:
            layer.table_name = path or "embedding"
        other = found.get(layer.table_name)
        if other is not None and other is not layer:
            raise ConfigError(
                f"each Embedding needs a name of its own, got two named {layer.table_name!r}; "
                "pass name= to one of them"
            )
        found[layer.table_name] = layer
    return found


def _poolings(
    slots: tuple[str, ...], pooling: str | Mapping[str, str | None] | None
) -> dict[str, str | None]:
    if not (pooling is None or isinstance(pooling, (str, Mapping))):
        raise ConfigError(
            f"pooling is sum, mean or None, or a dict of them by slot, got {pooling!r}"
        )
    by_slot = dict(pooling) if isinstance(pooling, Mapping) else dict.fromkeys(slots, pooling)
    poolings = {slot: by_slot.pop(slot, "sum") for slot in slots}
    if by_slot:
        raise ConfigError(f"pooling names slots of {list(slots)}, got {', '.join(by_slot)}")
    for slot, kind in poolings.items():
        if kind is not None and kind not in POOLINGS:
            raise ConfigError(f"pooling is sum, mean or None, got {kind!r} for slot {slot!r}")
    return poolings
