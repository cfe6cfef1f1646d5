"""ProcessPlan: how many processes of one role run where."""

from dataclasses import dataclass

from hetero_pipe.errors import PlanError
from hetero_pipe.plan.check import is_count

__all__ = ["ROLES", "ProcessPlan"]

ROLES = ("server", "whole", "sparse", "dense")
"""What a process is: a parameter server, or a worker of all stages or of some."""


@dataclass(frozen=True)
class ProcessPlan:
    """Equal processes on equal machines.

    Attributes:
        role: One of `ROLES`.
        host: Of the cluster, which stands for one machine or several.
        device: Where each computes: `cpu`, or a group of devices of the host, `gpu`;
            each process then has one of its own.
        machines: How many of the host's machines have such processes, the first ones.
        per_machine: Processes on each.

    Raises:
        PlanError: There are no such processes.
    """

    role: str
    host: str
    device: str
    machines: int = 1
    per_machine: int = 1

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise PlanError(f"a process is one of {', '.join(ROLES)}, got role={self.role!r}")
        for name in ("machines", "per_machine"):
            if not is_count(getattr(self, name), least=1):
                raise PlanError(f"processes need {name} >= 1, got {self}")

    @property
    def count(self) -> int:
        """Of all machines."""
        return self.machines * self.per_machine
