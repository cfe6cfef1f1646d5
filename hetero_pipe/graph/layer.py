"""Layer: ops that are never cut apart."""

from dataclasses import dataclass

__all__ = ["Layer"]


@dataclass(frozen=True)
class Layer:
    """Ops that run in one place: those of one part of the model that follow each other.

    Attributes:
        name: The part's path in the model, or the model's class; a part that is
            entered again has `:2` behind it.
        ops: Names, in order; with a pull comes its push, which runs last.
    """

    name: str
    ops: tuple[str, ...]
