"""What a stage is to the executor."""

from typing import Any, Protocol

__all__ = ["Stage"]


class Stage(Protocol):
    """One part of a step. It is run in step order, by one thread."""

    @property
    def name(self) -> str:
        """What errors and thread names call it."""

    def run(self, step: int, item: Any) -> Any:  # stages of one chain agree on their items
        """Returns what the next stage gets of `item`."""

    def close(self) -> None:
        """Makes a `run` that waits give up; called from another thread, more than once."""
