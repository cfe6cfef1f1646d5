"""Descriptions as values that JSON has, and back: their fields, or a text if they parse one."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

__all__ = ["decode", "encode"]

T = TypeVar("T")


def encode(value: Any) -> Any:  # a description, or a field of one
    """Returns a frozen dataclass as dicts, lists, texts and numbers; defaults are left out.

    One whose class has a `parse` is the text that this takes.
    """
    if hasattr(type(value), "parse"):
        return str(value)
    if dataclasses.is_dataclass(value):
        return {
            field.name: encode(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not _is_default(field, getattr(value, field.name))
        }
    if isinstance(value, Mapping):
        return {name: encode(each) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(each) for each in value]
    return value


def decode(kind: type[T], value: Any) -> T:  # what JSON has
    """Returns the description that `encode` wrote.

    Raises:
        TypeError: The value is none of this kind.
        ValueError: A field is out of range.
    """
    decoded: T = _decoded(kind, value)
    return decoded


def _decoded(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(kind, "parse"):
        return kind.parse(_of(str, value))
    if dataclasses.is_dataclass(kind):
        return _described(kind, value)
    if origin is tuple:
        return tuple(_decoded(arguments[0], each) for each in _of(list, value))
    if origin in (types.UnionType, typing.Union):
        return _one_of([each for each in arguments if each is not type(None)], value)
    if origin is not None and issubclass(_class(origin), Mapping):
        return {name: _decoded(arguments[1], each) for name, each in _of(dict, value).items()}
    return _of((int, float) if kind is float else kind, value)


def _described(kind: Any, value: Any) -> Any:
    fields = _of(dict, value)
    hints = typing.get_type_hints(kind)
    strays = fields.keys() - hints.keys()
    if strays:
        raise TypeError(f"no field {', '.join(sorted(strays))} of {kind}")
    return kind(**{name: _decoded(hints[name], each) for name, each in fields.items()})


def _one_of(kinds: list[Any], value: Any) -> Any:
    if len(kinds) == 1:  # or None
        return None if value is None else _decoded(kinds[0], value)
    return tuple(value) if isinstance(value, list) else value  # of plain values


def _class(origin: Any) -> type:
    return origin if isinstance(origin, type) else object


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r}, which is no {getattr(kind, '__name__', 'number')}")
    return value


def _is_default(field: "dataclasses.Field[Any]", value: object) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(value == field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return False
