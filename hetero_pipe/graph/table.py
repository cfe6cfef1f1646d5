"""Table: what a graph pulls from, and pushes to."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from hetero_pipe.errors import ConfigError
from hetero_pipe.graph.size import BATCH, Size, total

__all__ = ["Table", "keys_symbol", "rows_symbol"]


def keys_symbol(slot: str) -> str:
    """Returns the symbol of the keys that a batch has in a slot."""
    return f"keys.{slot}"


def rows_symbol(table: str) -> str:
    """Returns the symbol of the distinct rows that a batch pulls from a table."""
    return f"rows.{table}"


@dataclass(frozen=True)
class Table:
    """A table of a model, and how much of it a batch touches.

    Attributes:
        name: Of the table.
        dim: Weights of a row.
        slots: Whose keys it holds, and by each the mean number of keys a sample.
        state_per_weight: Floats of optimizer state beside each weight.
        single: The slots with exactly one key in every sample.
        distinct: Distinct rows by keys of a batch, above 0 and at most 1; 1 is
            the most that there can be.

    Raises:
        ConfigError: A value is out of range.
    """

    name: str
    dim: int
    slots: Mapping[str, float]
    state_per_weight: int = 0
    single: tuple[str, ...] = ()
    distinct: float = 1.0

    def __post_init__(self) -> None:
        if self.dim < 1 or not self.slots or self.state_per_weight < 0:
            raise ConfigError(
                f"a table needs dim >= 1, a slot and state_per_weight >= 0, got {self}"
            )
        for slot, keys in self.slots.items():
            if not keys >= 0 or (slot in self.single and keys != 1):
                raise ConfigError(
                    f"a slot has at least 0 keys a sample, and a single one exactly 1, got {keys} "
                    f"of slot {slot!r} in table {self.name}"
                )
        if not set(self.single) <= set(self.slots):
            raise ConfigError(f"single names slots of {list(self.slots)}, got {self.single}")
        if not 0 < self.distinct <= 1:
            raise ConfigError(
                f"distinct is above 0 and at most 1, got {self.distinct} in table {self.name}"
            )

    def keys(self, slot: str) -> Size:
        """Returns the keys of a batch in one slot."""
        return BATCH if slot in self.single else Size.symbol(keys_symbol(slot))

    @cached_property
    def all_keys(self) -> Size:
        """The keys of a batch in all slots."""
        return total(self.keys(slot) for slot in self.slots)

    @property
    def rows(self) -> Size:
        """The distinct rows of a batch."""
        return Size.symbol(rows_symbol(self.name))

    @property
    def bytes_per_row(self) -> int:
        """Weights and optimizer state of a row, without its key and counters."""
        return 4 * self.dim * (1 + self.state_per_weight)

    def values(self, batch: int) -> dict[str, int | float]:
        """Returns what the symbols of this table are at a batch."""
        found: dict[str, int | float] = {
            keys_symbol(slot): _whole(mean * batch)
            for slot, mean in self.slots.items()
            if slot not in self.single
        }
        rows = self.distinct * self.all_keys.at({**found, "batch": batch})
        return {**found, rows_symbol(self.name): _whole(rows)}


def _whole(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value
