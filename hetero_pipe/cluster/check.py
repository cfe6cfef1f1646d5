"""What every description refuses: values that no hardware has, and names that are taken."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable

from hetero_pipe.errors import ConfigError
from hetero_pipe.section import nearest

__all__ = ["check_count", "check_name", "check_one_of", "check_positive", "check_unique"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def check_name(what: str, name: object) -> None:
    """Refuses a name that could not be part of a place such as `trainer-0/gpu:3`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"the name of a {what} is of letters, digits, '_', '.' and '-', got {name!r}"
        )


def check_positive(owner: str, name: str, value: object, *, or_zero: bool = False) -> None:
    """Refuses what is not a finite number above 0, or of at least 0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and not or_zero):  # type: ignore[arg-type,operator]  # it is a number
        bound = "of at least 0" if or_zero else "above 0"
        raise ConfigError(f"{owner} needs {name} {bound}, got {name}={value!r}")


def check_count(owner: str, name: str, value: object) -> None:
    """Refuses what is not a whole number of at least 1."""
    if type(value) is not int or value < 1:
        raise ConfigError(f"{owner} needs {name} of at least 1, got {name}={value!r}")


def check_one_of(owner: str, name: str, value: object, known: Collection[str]) -> None:
    """Refuses what is not one of the known words, and says which is nearest."""
    if value not in known:
        raise ConfigError(
            f"{owner} needs {name} of {', '.join(known)}, got {name}={value!r}"
            f"{nearest(value, known)}"
        )


def check_unique(owner: str, what: str, names: Iterable[str]) -> None:
    """Refuses two of one name."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ConfigError(f"{owner} names each {what} once, got {twice[0]!r} twice; rename one")
