"""Section: one table of a TOML or JSON file, read key by key, with errors that name them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches

from hetero_pipe.errors import ConfigError

__all__ = ["Section", "nearest"]


class Section:
    """A table of a file.

    Args:
        values: As the parser gave them.
        where: What errors call it: `cluster.toml: host 'trainer'`.
        keys: All that it may have.

    Raises:
        ConfigError: It has another key, or is no table.
    """

    def __init__(self, values: object, where: str, keys: Collection[str]) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: needs a table of keys, got {values!r}")
        self._values = values
        self.where = where
        for key in values:
            if key not in keys:
                raise ConfigError(
                    f"{where}: unknown key {key!r}{nearest(key, keys)}; "
                    f"the keys are {', '.join(keys)}"
                )

    def within(self, part: str) -> str:
        """Returns what errors call a part of this table."""
        return f"{self.where}{', ' if ': ' in self.where else ': '}{part}"

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str, default: str | None = None) -> str:
        """Returns a text.

        Raises:
            ConfigError: It is none, or is missing without a default.
        """
        value = self._get(key, default, 'a text, like "trainer"')
        if not isinstance(value, str):
            raise self.error(key, f"a text, got {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Returns a number as it stands; the description that takes it knows its bounds.

        Raises:
            ConfigError: It is none, or is missing without a default.
        """
        value = self._get(key, default, "a number")
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.error(key, f"a number, got {value!r}")
        return value

    def quantity(self, key: str, parse: Callable[[str], float], example: str) -> float:
        """Returns a quantity: a text with its unit, or a number of bytes, seconds or FLOP/s.

        Raises:
            ConfigError: It is none, or is missing.
        """
        value = self._get(key, None, f'a quantity, like "{example}"')
        if isinstance(value, str):
            try:
                return parse(value)
            except ValueError as error:
                raise self.error(key, f"a quantity: {error}") from error
        return self.number(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """Returns a list of texts, empty if it is missing.

        Raises:
            ConfigError: It is none.
        """
        value = self._values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(key, f"a list of texts, got {value!r}")
        return tuple(value)

    def tables(self, key: str) -> Sequence[object]:
        """Returns a list of what should be tables, empty if it is missing.

        Raises:
            ConfigError: It is no list.
        """
        value = self._values.get(key, [])
        if not isinstance(value, list):
            raise self.error(key, f"a list of tables, [[{key}]], got {value!r}")
        return value

    def table(self, key: str) -> Mapping[str, object]:
        """Returns the values of a table.

        Raises:
            ConfigError: It is none, or is missing.
        """
        value = self._get(key, None, "a table")
        if not isinstance(value, Mapping):
            raise self.error(key, f"a table, got {value!r}")
        return value

    def error(self, key: str, needs: str) -> ConfigError:
        """Returns what to raise of a key's value."""
        return ConfigError(f"{self.where}: {key} needs to be {needs}")

    def _get(self, key: str, default: object, needs: str) -> object:
        value = self._values.get(key, default)
        if value is None:
            raise ConfigError(f"{self.where}: {key} is missing; give it {needs}")
        return value


def nearest(word: object, known: Iterable[str]) -> str:
    """Returns `; did you mean 'memory'?`, or nothing if no known word is near.

    >>> nearest("memry", ["memory", "model"])
    "; did you mean 'memory'?"
    """
    # Case counts for nothing when people mistype: nvlink is NVLink.
    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(str(word).lower(), by_lower, n=1)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""
