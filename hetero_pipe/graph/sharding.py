"""Sharding: how a tensor splits over the axes of a mesh. A description; nothing moves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hetero_pipe.errors import PlanError
from hetero_pipe.graph.size import Shape, Size
from hetero_pipe.graph.tensor import Tensor

__all__ = ["Partial", "Placement", "Replicate", "Shard", "Sharding"]

REDUCTIONS = ("sum", "mean", "max", "min")


@dataclass(frozen=True)
class Shard:
    """Each device along an axis has one of equal parts.

    Attributes:
        dim: Of the tensor that is split, from 0.
    """

    dim: int


@dataclass(frozen=True)
class Replicate:
    """Each device along an axis has all."""


@dataclass(frozen=True)
class Partial:
    """Each device along an axis has a term: the tensor is what their reduction gives.

    Attributes:
        reduction: `sum`, `mean`, `max` or `min`.
    """

    reduction: str = "sum"

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise PlanError(
                f"a reduction is one of {', '.join(REDUCTIONS)}, got {self.reduction!r}"
            )


Placement: TypeAlias = Shard | Replicate | Partial


@dataclass(frozen=True)
class Sharding:
    """A placement for each axis of a mesh.

    ::

        axes {data: 2, model: 4}   placements (Shard(0), Shard(1))   of [8, 12]
        each device has [4, 3]     dims_mapping (0, 1)

    Attributes:
        axes: Devices along each named axis of the mesh, in its order.
        placements: One an axis.

    Raises:
        PlanError: These are not as many, or two axes split one dim.
    """

    axes: Mapping[str, int]
    placements: tuple[Placement, ...]

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.placements):
            raise PlanError(
                f"a sharding has a placement for each axis of {dict(self.axes)}, got "
                f"{len(self.placements)}"
            )
        if any(size < 1 for size in self.axes.values()):
            raise PlanError(f"an axis has at least 1 device, got {dict(self.axes)}")
        dims = [each.dim for each in self.placements if isinstance(each, Shard)]
        if len(set(dims)) != len(dims) or any(dim < 0 for dim in dims):
            raise PlanError(
                f"a dim is at least 0 and splits over one axis, got {self.placements} on "
                f"{dict(self.axes)}"
            )

    @staticmethod
    def replicated(axes: Mapping[str, int]) -> "Sharding":
        """Returns that of a tensor which every device has whole."""
        return Sharding(axes, tuple(Replicate() for _ in axes))

    @property
    def is_partial(self) -> bool:
        """Whether a reduction is still to be done."""
        return any(isinstance(each, Partial) for each in self.placements)

    @property
    def split(self) -> dict[int, str]:
        """The axis by the dim that it splits."""
        pairs = zip(self.axes, self.placements, strict=True)
        return {each.dim: axis for axis, each in pairs if isinstance(each, Shard)}

    def dims_mapping(self, num_dims: int) -> tuple[int, ...]:
        """Returns for each dim of a tensor the index of the axis that splits it, or -1."""
        axes = list(self.axes)
        return tuple(
            axes.index(self.split[dim]) if dim in self.split else -1 for dim in range(num_dims)
        )

    def check(self, tensor: Tensor, values: Mapping[str, int | float] | None = None) -> None:
        """Refuses a sharding that a tensor cannot have.

        Args:
            tensor: Whose.
            values: Of the symbols of its shape. Without them a dim that depends on
                the batch may be split: some batch will do.

        Raises:
            PlanError: A dim is not there or has no equal parts, or a parameter
                would be in terms.
        """
        for dim, axis in self.split.items():
            if dim >= len(tensor.shape):
                raise PlanError(
                    f"axis {axis!r} splits a dim of {tensor}, got dim={dim}; it has "
                    f"{len(tensor.shape)}"
                )
            size = tensor.shape[dim]
            if values is not None:
                size = Size.of(int(size.at(values)))
            if not size.may_divide(self.axes[axis]):
                raise PlanError(
                    f"axis {axis!r} splits a dim into {self.axes[axis]} equal parts, got {size} in "
                    f"dim {dim} of {tensor}; split another dim or pad it"
                )
        if self.is_partial and tensor.is_parameter:
            raise PlanError(
                f"a parameter is whole or split, got {self.placements} of {tensor}; a sum that is "
                "still to be done is of something computed"
            )

    def local_shape(self, tensor: Tensor) -> Shape:
        """Returns the shape of what one device has.

        Raises:
            PlanError: As `check`.
        """
        self.check(tensor)
        return tuple(
            size.divided(self.axes[self.split[dim]]) if dim in self.split else size
            for dim, size in enumerate(tensor.shape)
        )
