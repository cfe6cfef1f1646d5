"""Tensor: what ops hand on, and what of a model stays from step to step."""

from dataclasses import dataclass
from functools import cached_property

from hetero_pipe.errors import ConfigError
from hetero_pipe.graph.size import Shape, Size, product

__all__ = ["DTYPES", "Tensor"]

DTYPES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of an element, by the name of its type."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a graph.

    Attributes:
        name: Unique in the graph.
        shape: A Size for each dimension; that of the samples depends on the batch.
        dtype: One of `DTYPES`.
        is_parameter: Whether the model holds it from step to step: a parameter,
            or a buffer, which needs no gradient.
        needs_gradient: Whether the backward computes the loss's gradient by it.

    Raises:
        ConfigError: The dtype is none of these.
    """

    name: str
    shape: Shape
    dtype: str = "float32"
    is_parameter: bool = False
    needs_gradient: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"a tensor is of {', '.join(DTYPES)}, got dtype={self.dtype!r} of {self.name}"
            )

    @cached_property
    def numel(self) -> Size:
        """Elements."""
        return product(self.shape)

    @cached_property
    def bytes(self) -> Size:
        """Bytes in memory."""
        return self.numel * DTYPES[self.dtype]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(map(str, self.shape))}]"
