"""Op: one operation, what it reads and makes, and what it costs forward and backward."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from hetero_pipe.graph.size import ZERO, Size

__all__ = ["Attribute", "Cost", "Op"]

Attribute: TypeAlias = bool | int | float | str | tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """What an op does on any device: it has no seconds. Costs add.

    Attributes:
        flops: Floating point operations; a multiply and an add are two, an
            elementary function of one element is one.
        bytes_read: From memory, each operand once.
        bytes_written: To memory.
    """

    flops: Size = ZERO
    bytes_read: Size = ZERO
    bytes_written: Size = ZERO

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )

    @property
    def bytes(self) -> Size:
        """Read and written together."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Op:
    """One operation of a model.

    Attributes:
        name: Unique in the graph.
        kind: What it does, as Paddle names it (`matmul`, `relu`), or `pull`,
            `push` and `pool`: rows from a table, their gradients to it, and the
            sum of a sample's rows.
        layer: Name of the layer it belongs to.
        inputs: Names of the tensors it reads, parameters too, in its order.
        outputs: Names of the tensors it makes.
        attributes: What of its settings changes its cost or its sharding.
        forward: Cost of computing the outputs.
        backward: Cost of computing the gradients that are wanted of the inputs.
        saved: Names of tensors that are kept for the backward.
        is_view: Whether its output is its first input's memory.
        is_known: Whether a rule told the cost; else it is that of its bytes.
        path: Of the sub-layer that called it, as `named_sublayers` has it; empty
            for the model itself.
        source: FILE:LINE that called it; empty if that is not known.
        table: Of a pull, push or pool: which; else empty.
    """

    name: str
    kind: str
    layer: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    forward: Cost = Cost()
    backward: Cost = Cost()
    saved: tuple[str, ...] = ()
    is_view: bool = False
    is_known: bool = True
    path: str = ""
    source: str = ""
    table: str = ""
