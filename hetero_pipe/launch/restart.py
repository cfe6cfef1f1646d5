"""When is it worth it to start again what has died, and when is that given up? Pure."""

from collections import deque
from dataclasses import dataclass

from hetero_pipe.errors import ConfigError
from hetero_pipe.launch.process import Ended
from hetero_pipe.units import format_seconds

__all__ = ["RestartLimit", "Restarts"]

# A script has imported Paddle and read its first batch by then, or has said why not.
EARLY_SECONDS = 30.0

# What a user, or the script by its arguments, meant: a wrong flag, Ctrl-C, kill.
MEANT = {2, 130, 143, -2, -15}


@dataclass(frozen=True)
class RestartLimit:
    """How often, and how soon, something is started again.

    Attributes:
        limit: Restarts within `within`; the next death then ends the job.
        within: Seconds.
        delay: Seconds before the second restart within `within`, twice as many
            before each further one. The first is at once.
        longest_delay: Seconds.

    Raises:
        ConfigError: A value is below 0, or `within` is 0.
    """

    limit: int = 10
    within: float = 600.0
    delay: float = 0.5
    longest_delay: float = 30.0

    def __post_init__(self) -> None:
        for name in ("limit", "within", "delay", "longest_delay"):
            value = getattr(self, name)
            if value < 0 or (name == "within" and value == 0):
                raise ConfigError(f"restarts need {name} of at least 0, got {name}={value}")


@dataclass(frozen=True)
class _Death:
    ended: Ended
    at: float
    lasted: float


class Restarts:
    """The deaths of one server, or of the team of workers.

    Attributes:
        total: How often it was started again.
    """

    def __init__(self, limit: RestartLimit) -> None:
        self._limit = limit
        self._recent: deque[float] = deque()  # when, of the restarts within `within`
        self._deaths: deque[_Death] = deque(maxlen=3)
        self.total = 0

    def note(self, ended: Ended, *, at: float, lasted: float) -> str | None:
        """Notes a death; returns why it is not worth a restart, None if it is.

        Args:
            ended: Who, and how.
            at: Seconds of a clock that never goes back.
            lasted: Seconds since its start.
        """
        self._deaths.append(_Death(ended, at, lasted))
        while self._recent and self._recent[0] <= at - self._limit.within:
            self._recent.popleft()
        within = format_seconds(self._limit.within)
        if ended.code in MEANT:
            return "nothing would be different next time"
        if self._limit.limit == 0:
            return "it is not to be started again"
        if self._num_equal(EARLY_SECONDS) >= 2:
            return f"twice the same within {format_seconds(EARLY_SECONDS)} of its start"
        if self._num_equal(self._limit.within) >= 3:
            return "three times the same in a row"
        if len(self._recent) >= self._limit.limit:
            return f"restarts are at their limit, {self._limit.limit} within {within}"
        self._recent.append(at)
        self.total += 1
        return None

    @property
    def delay(self) -> float:
        """Seconds from the death that was noted last to the restart."""
        limit, num = self._limit, len(self._recent)
        return 0.0 if num < 2 else min(limit.delay * 2.0 ** (num - 2), limit.longest_delay)

    def __str__(self) -> str:
        within = format_seconds(self._limit.within)
        return f"restart {len(self._recent)} of {self._limit.limit} within {within}"

    def _num_equal(self, seconds: float) -> int:
        """Returns how many of the latest deaths, in a row, are as the last and as soon as that.

        Only those of a process that ended itself and said something: a kill may come
        from anywhere, at any time.
        """
        last = self._deaths[-1].ended
        if last.code <= 0 or not last.said:
            return 0
        num = 0
        for death in reversed(self._deaths):
            is_equal = (death.ended.code, death.ended.said) == (last.code, last.said)
            if not is_equal or death.lasted > seconds:
                break
            num += 1
        return num
