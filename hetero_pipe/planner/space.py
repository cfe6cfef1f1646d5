"""Space: what a planner may choose from."""

from dataclasses import dataclass

from hetero_pipe.errors import ConfigError
from hetero_pipe.plan import HOMES, MODES, WIRES

__all__ = ["PLANNED_MODES", "Space"]

SPLITS = ("whole", "split")

# In `elastic`, who trains is decided while it runs; no cost is known of it.
PLANNED_MODES = tuple(mode for mode in MODES if mode != "elastic")


@dataclass(frozen=True)
class Space:
    """What may be chosen. What changes what is learned is chosen within limits that are given.

    By itself it is what a Trainer runs today: all tables have one home, and no row
    is cached.

    Attributes:
        batch_sizes: Samples of a worker's step.
        max_staleness: The most pushes that a pull may miss; of quality.
        min_staleness: The least; above 0 only to ask for a certain one.
        modes: Of `hetero_pipe.plan.MODES`, but not `elastic`. Tables are on each worker's device in
            `cpu_only` and `gpu_only` alone, but for `homes`.
        splits: `whole` workers, or `split` into sparse and dense ones.
        wires: Of `hetero_pipe.plan.WIRES`, between sparse and dense workers.
        homes: Beside `host`, where a whole worker's table may live, each for itself:
            wider than what a Trainer runs.
        cached_rows: Hottest rows of each table that a device may keep; 0 is none.
            Likewise wider.
        max_machines: Of one role; None is as many as there are.
        max_per_machine: Processes of one role on a machine; None is one a core or
            one a device.
        hosts: Of the cluster, that must each have a role; others may. To ask what
            is best with them in use.

    Raises:
        ConfigError: There is nothing to choose from, or no such thing.
    """

    batch_sizes: tuple[int, ...]
    max_staleness: int = 2
    modes: tuple[str, ...] = ("bounded", "cpu_only", "gpu_only")
    splits: tuple[str, ...] = SPLITS
    wires: tuple[str, ...] = ("float32",)
    homes: tuple[str, ...] = ("host",)
    cached_rows: tuple[int, ...] = (0,)
    min_staleness: int = 0
    max_machines: int | None = None
    max_per_machine: int | None = None
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (
            ("modes", PLANNED_MODES),
            ("splits", SPLITS),
            ("wires", WIRES),
            ("homes", HOMES),
        ):
            values = getattr(self, name)
            strays = [value for value in values if value not in known]
            if strays or not values:
                raise ConfigError(
                    f"{name} to choose from are some of {', '.join(known)}, got "
                    f"{', '.join(map(repr, strays)) or 'none'}"
                )
        if (
            not self.batch_sizes
            or min(self.batch_sizes) < 1
            or not (0 <= self.min_staleness <= self.max_staleness)
        ):
            raise ConfigError(
                "a space has batch sizes from 1 and a staleness from 0 up, got "
                f"batch_sizes={self.batch_sizes}, min_staleness={self.min_staleness} and "
                f"max_staleness={self.max_staleness}"
            )
        if not self.cached_rows or min(self.cached_rows) < 0:
            raise ConfigError(
                f"a device caches at least 0 rows, got cached_rows={self.cached_rows}"
            )
