"""Planning: how a planner is handed to a trainer, and told what came of its plan."""

from typing import TYPE_CHECKING, Protocol

from hetero_pipe.plan.measured import Measured
from hetero_pipe.plan.plan import Plan

if TYPE_CHECKING:  # a launcher has plans, and imports nothing that takes long
    from hetero_pipe.data import Batch
    from hetero_pipe.graph import Graph

__all__ = ["Planning"]


class Planning(Protocol):
    """Chooses the plan of a model when a trainer has it."""

    @property
    def sample(self) -> "Batch":
        """A batch like those that the model will be trained on."""

    def choose(self, graph: "Graph") -> Plan:
        """Returns the plan for a model.

        Raises:
            PlanError: No plan fits.
        """

    def learn(self, plan: Plan, measured: Measured) -> None:
        """Is told what training with its plan took."""
