"""Codec: dataclasses as plain JSON data, and back by the types of their fields.

The form is for others than this program, of any version: results, answers, documents. Names and units are those of
people, and what is unknown is passed over, as newer versions have more. Arguments and results of a store's methods,
between two programs of one version, have another: `call_form` of the client changes no name and no unit, has a form for
each value that methods take (bytes, sets, numbers that JSON has not), and refuses what it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum, StrEnum
from functools import lru_cache
from operator import mul, truediv
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from .fields import check_items, check_number, check_type, item, word

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class JsonName:
    """The name of a field in JSON, where it has another one there: `Annotated[int, JsonName("job")]`."""

    name: str


IN_MS = "in milliseconds"
"""Mark of a time, or of several, in seconds, whose name ends in `_s`: in JSON it is milliseconds, and ends in `_ms`.

It stands in the type as names do: `Annotated[float, IN_MS]`.
"""


@dataclass(frozen=True, slots=True)
class _JsonField:
    """A field of a dataclass, and how it stands in JSON."""

    name: str
    kind: Any
    has_default: bool
    json_name: str
    per_unit: float  # numbers in JSON are so many times as large


@lru_cache(maxsize=256)
def _json_fields(kind: Any) -> tuple[_JsonField, ...]:
    hints, json_fields = get_type_hints(kind, include_extras=True), []
    for field in fields(kind):
        of, name = hints[field.name], field.name
        notes = get_args(of)[1:] if get_origin(of) is Annotated else ()
        json_name = next((note.name for note in notes if isinstance(note, JsonName)), name)
        if IN_MS in notes:
            json_name = f"{name.removesuffix('_s')}_ms"
        json_fields.append(_JsonField(name, of, has_default(field), json_name, 1e3 if IN_MS in notes else 1.0))
    return tuple(json_fields)


def has_default(field: Field[Any]) -> bool:
    """Whether an object may do without a field of a dataclass."""
    return field.default is not MISSING or field.default_factory is not MISSING


def optional(arguments: tuple[Any, ...]) -> Any:
    """The type that is meant by a union with None, which has these arguments: no other unions have a form."""
    [kind] = [argument for argument in arguments if argument is not NoneType]
    return kind


def to_json(value: Any) -> Any:
    """Plain data of a dataclass, in the order of its fields, and of all that is in it."""
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case Mapping():
            return {name: to_json(entry) for name, entry in value.items()}
        case list() | tuple():
            return [to_json(entry) for entry in value]
        case _ if is_dataclass(value):
            return {
                field.json_name: _change(to_json(getattr(value, field.name)), mul, field.per_unit)
                for field in _json_fields(cast("Any", type(value)))
            }
        case _:
            return value


def from_json(kind: type[Item], data: Any) -> Item:
    """The dataclass of an object of any origin; entries that it does not know are passed over.

    Raises ValueError, in words for people, where one is missing that has no default, or is of another type.
    """
    values = {}
    for field in _json_fields(cast("Any", kind)):
        if not (field.has_default and isinstance(data, dict) and field.json_name not in data):
            value = _read(field.kind, item(data, field.json_name, object), field.json_name)
            values[field.name] = _change(value, truediv, field.per_unit)
    return kind(**values)


def _change(value: Any, operation: Callable[[float, float], float], per_unit: float) -> Any:
    """A number, or each of several, in the other unit; None stays."""
    if per_unit == 1.0 or value is None:
        return value
    if isinstance(value, list | tuple):
        return type(value)(operation(number, per_unit) for number in value)
    return operation(value, per_unit)


def _read(kind: Any, data: Any, name: str) -> Any:
    """A value of this type. Raises ValueError."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if origin is Annotated:
        return _read(arguments[0], data, name)
    if origin in (Union, UnionType):
        return None if data is None else _read(optional(arguments), data, name)
    if origin is tuple:
        if arguments[-1] is ...:
            return tuple(_read(arguments[0], entry, name) for entry in check_type(name, data, list))
        entries = check_items(name, data, len(arguments))
        return tuple(_read(of, entry, name) for of, entry in zip(arguments, entries, strict=True))
    if origin is not None:  # a mapping
        return {key: _read(arguments[1], entry, f"{name}.{key}") for key, entry in check_type(name, data, dict).items()}
    if is_dataclass(kind):
        return from_json(cast("type[Any]", kind), data)
    return _read_plain(kind, data, name)


def _read_plain(kind: type[Any], data: Any, name: str) -> Any:
    if kind is float:
        return check_number(name, data)
    if kind is datetime:
        return datetime.fromisoformat(check_type(name, data, str))
    return word(name, data, kind) if issubclass(kind, StrEnum) else check_type(name, data, kind)
