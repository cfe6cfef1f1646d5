"""What share of its time a job trains that fails now and then, from the measured parts."""

import math
from dataclasses import dataclass

MTBFS = {"15 minutes": 900.0, "1 hour": 3600.0, "4 hours": 14_400.0, "1 day": 86_400.0}


@dataclass(frozen=True)
class Costs:
    """What was measured of a job. Seconds.

    Attributes:
        ride: A server is killed: until a step ends again.
        restart: A worker is killed: until a new step ends.
        write: Until a checkpoint of the trainer is whole.
        save: Training that a checkpoint costs, of those.
        journal_share: Share of the steps that a journal costs, and the checkpoints that cut it.
    """

    ride: float
    restart: float
    write: float
    save: float
    journal_share: float


@dataclass(frozen=True)
class Goodput:
    """What comes of a mean time between failures.

    Attributes:
        interval: From one checkpoint of the trainer to the next, seconds.
        failure: What a failure costs, on average, seconds.
        share: Steps that are done and kept, of those without failures and saves.
        with_journal: Of those without a journal, too.
    """

    interval: float
    failure: float
    share: float
    with_journal: float


def goodput(costs: Costs, *, mtbf: float, servers: float) -> Goodput:
    """Returns the goodput at the best interval between checkpoints.

    A server that fails costs the wait alone. A worker costs also what it has trained
    since its newest whole checkpoint, on average half an interval T and a write::

        failure      = servers * ride + (1 - servers) * (restart + write + T / 2)
        share        = (1 - save / T) * (1 - failure / mtbf)
        with_journal = share * (1 - journal_share)

    Args:
        costs: Measured.
        mtbf: Mean seconds from one failure of any process to the next.
        servers: Share of the failures that are a server's, from 0 to 1.

    Reference:
        Young, "A first order approximation to the optimum checkpoint interval",
        CACM 1974: T = sqrt(2 * save * mtbf of what goes back to a checkpoint).
    """
    workers = 1.0 - servers
    interval = math.sqrt(2.0 * costs.save * mtbf / workers) if workers else math.inf
    interval = max(interval, costs.write)  # one at a time is written
    again = costs.restart + costs.write + interval / 2 if workers else 0.0
    failure = servers * costs.ride + workers * again
    share = (1 - costs.save / interval) * max(1 - failure / mtbf, 0.0)
    return Goodput(interval, failure, share, share * (1 - costs.journal_share))
