"""TOML text of tables; Python's own library reads TOML and writes none."""

import json
import math
from collections.abc import Mapping, Sequence

__all__ = ["toml_text"]


def toml_text(tables: Mapping[str, object], prefix: str = "") -> str:
    """Returns TOML that reads as the same tables.

    Takes texts, numbers, lists of texts, tables, and lists of tables, by keys
    that need no quotes. A table of nothing but texts and numbers stands in a
    line, so that a list of them can be read.

    >>> print(toml_text({"host": [{"name": "a", "disk": {"capacity": 1}}]}), end="")
    [[host]]
    name = "a"
    disk = {capacity = 1}
    """
    lines = [f"{key} = {_value(v)}\n" for key, v in tables.items() if not _is_array_of_tables(v)]
    for key, value in tables.items():
        if _is_array_of_tables(value):
            assert isinstance(value, Sequence)
            for table in value:
                head = f"[[{prefix}{key}]]\n"
                lines.append(f"{'' if not lines else chr(10)}{head}")
                lines.append(toml_text(table, f"{prefix}{key}."))
    return "".join(lines)


def _is_array_of_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _value(value: object) -> str:
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    assert isinstance(value, (int, float)), value
    assert math.isfinite(value), value
    return repr(value)
