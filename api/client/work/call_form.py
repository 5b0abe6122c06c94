"""The form of calls: arguments and results of methods as JSON data, by the types in their signatures.

A number that is none in JSON is the text "inf", "-inf" or "nan"; bytes are in base64; a set is an array; a mapping
whose keys are no texts is an array of pairs. What is not known is refused: both sides are of one version. The form for
others, with the names and units of people, is that of `codegen.codec`.

What is read has bounds: whole numbers fit 32 bits but for ids, moments have a zone, texts are such as a database keeps,
and data of any type is JSON that is not nested deeply. Arguments, which come from anywhere, have few items.
"""

from __future__ import annotations

import inspect
import math
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from tunewright.codegen.codec import has_default, optional
from tunewright.codegen.fields import check_items, check_number, check_type, quote
from tunewright.codegen.target import Target
from tunewright.db.bounds import LARGEST_ID
from tunewright.db.job import SearchBudget
from tunewright.db.translate import clean
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule

Read = Callable[[Any], Any]
"""Makes a value of JSON data. Raises ValueError."""

MOST_ITEMS = 20_000
"""Items of an array in arguments."""

DEEPEST = 64
"""Levels of data of any type."""

KEY_LETTERS, KEYS = 64, ("_key", "_keys", "sha256")
"""Letters of a key, and how the names of arguments end that are keys."""

ROW_COUNTS = ("limit", "position")
"""Names of arguments that are no number below zero."""

OWN_FORM: tuple[type[Any], ...] = (Task, Target, Schedule, SearchBudget)
"""Types with a form of their own: `to_json` and `from_json`."""

ARRAYS: dict[Any, Callable[[Iterable[Any]], Any]] = {
    list: list,
    Sequence: list,
    Collection: list,
    Iterable: list,
    set: set,
    frozenset: frozenset,
}
"""Types of several items, and what is made of an array for each."""

MAPPINGS: dict[Any, Callable[[dict[Any, Any]], Any]] = {dict: dict, Mapping: dict, Counter: Counter}
"""Types of mappings, and what is made of an object for each."""

NUMBERS = ("inf", "-inf", "nan")
"""Numbers that are none in JSON."""


def to_json(value: Any) -> Any:
    """JSON data of a value."""
    match value:
        case Enum():
            return value.value
        case float() if not math.isfinite(value):
            return str(value)
        case bytes():
            return b64encode(value).decode()
        case datetime():
            return value.isoformat()
        case _ if isinstance(value, OWN_FORM):
            return value.to_json()
        case _ if is_dataclass(value):
            return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
        case Mapping():
            if all(isinstance(key, str) for key in value):
                return {str(key): to_json(entry) for key, entry in value.items()}
            return [[to_json(key), to_json(entry)] for key, entry in value.items()]
        case str() | int() | float() | None:
            return value
        case _:
            return [to_json(entry) for entry in value]


def from_json(kind: Any, data: Any) -> Any:
    """The value of a type whose form is this data. Raises ValueError, in one line, where it is that of none."""
    try:
        return _reader(kind)(data)
    except (KeyError, TypeError, OverflowError, RecursionError) as error:  # as types with a form of their own may
        raise ValueError(f"{quote(data)} is not what was asked for") from error


@cache
def _reader(kind: Any) -> Read:
    """What reads a type. Raises TypeError for one that calls have no form for."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return _read_any
    if origin is Annotated:
        return _reader(arguments[0])
    if origin in (Union, UnionType):
        return _optional_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin in ARRAYS:
        return _array_reader(ARRAYS[origin], _reader(arguments[0]))
    if origin in MAPPINGS:
        key, entry = (arguments[0], int) if origin is Counter else arguments
        return _mapping_reader(MAPPINGS[origin], key, _reader(entry))
    if kind in OWN_FORM:
        return lambda data: kind.from_json(check_type("value", data, dict))
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    return _plain_reader(kind)


def _optional_reader(arguments: tuple[Any, ...]) -> Read:
    read = _reader(optional(arguments))
    return lambda data: None if data is None else read(data)


def _array_reader(make: Callable[[Iterable[Any]], Any], read: Read) -> Read:
    return lambda data: make(map(read, check_type("value", data, list)))


def _tuple_reader(arguments: tuple[Any, ...]) -> Read:
    if arguments[-1] is ...:
        return _array_reader(tuple, _reader(arguments[0]))
    readers = [_reader(argument) for argument in arguments]

    def read(data: Any) -> tuple[Any, ...]:
        entries = check_items("value", data, len(readers))
        return tuple(read_entry(entry) for read_entry, entry in zip(readers, entries, strict=True))

    return read


def _mapping_reader(make: Callable[[dict[Any, Any]], Any], key_kind: Any, read: Read) -> Read:
    read_key = _reader(key_kind)
    if isinstance(key_kind, type) and issubclass(key_kind, str):
        return lambda data: make({read_key(key): read(entry) for key, entry in check_type("value", data, dict).items()})
    read_pairs = _array_reader(list, _tuple_reader((key_kind, Any)))
    # An empty mapping does not tell what its keys would be.
    return lambda data: make({key: read(entry) for key, entry in read_pairs([] if data == {} else data)})


def _dataclass_reader(kind: Any) -> Read:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    needed = {field.name for field in fields(kind) if not has_default(field)}

    def read(data: Any) -> Any:
        entries = check_type("value", data, dict)
        if missing := sorted(needed - entries.keys()):
            raise ValueError(f"a {kind.__name__} without {', '.join(missing)}")
        if unknown := sorted(entries.keys() - readers.keys()):
            raise ValueError(f"a {kind.__name__} has no {', '.join(map(quote, unknown))}")
        return kind(**{name: readers[name](value) for name, value in entries.items()})

    return read


def _plain_reader(kind: Any) -> Read:
    match kind:
        case type() if issubclass(kind, Enum):
            return kind
        case type() if kind is str:
            return lambda data: clean(check_type("value", data, str))
        case type() if kind is int:
            return _read_whole_number
        case type() if kind in (bool, NoneType):
            return lambda data: check_type("value", data, kind)
        case type() if kind is float:
            return _read_number
        case type() if kind is bytes:
            return _read_bytes
        case type() if kind is datetime:
            return _read_moment
        case _:
            raise TypeError(f"calls have no form for {kind}")


def _read_whole_number(data: Any) -> int:
    number: int = check_type("value", data, int)
    if abs(number) > MOST_WHOLE:
        raise ValueError(f"{quote(data)} is too large for a number")
    return number


def _read_moment(data: Any) -> datetime:
    moment = datetime.fromisoformat(check_type("value", data, str))
    if moment.tzinfo is None:
        raise ValueError(f"{quote(data)} has no time zone")
    return moment


def _read_any(data: Any, depth: int = 0) -> Any:
    """JSON data as it is, but texts as databases keep them."""
    if depth > DEEPEST:
        raise ValueError(f"data is nested more than {DEEPEST} levels deep")
    match data:
        case str():
            return clean(data)
        case dict():
            return {clean(name): _read_any(entry, depth + 1) for name, entry in data.items()}
        case list():
            return [_read_any(entry, depth + 1) for entry in data]
        case int() if abs(data) > LARGEST_ID:
            raise ValueError(f"{quote(data)} is too large for a number")
        case float() if not math.isfinite(data):
            raise ValueError(f"{quote(data)} is no number of JSON")
        case _:
            return data


def _read_number(data: Any) -> float:
    return float(data) if data in NUMBERS else check_number("value", data)


def _read_bytes(data: Any) -> bytes:
    try:
        return b64decode(check_type("value", data, str), validate=True)
    except Base64Error as error:
        raise ValueError("bytes are not in base64") from error


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form of calls of one method: its parameters by name, and what it returns."""

    kinds: Mapping[str, Any]
    needed: frozenset[str]
    result: Any

    @staticmethod
    def of(method: Callable[..., Any], names: Collection[str] | None = None) -> CallForm:
        """That of a method of a part of a store, as it is called: what decorators add to its arguments is none.

        Where given, only the arguments with these names. Raises TypeError where there is no form for a type in it.
        """
        hints = get_type_hints(method)
        parameters = [*inspect.signature(method).parameters.values()][1:]  # without self
        if parameters and parameters[0].name in INJECTED:
            parameters = parameters[1:]
        if names is not None:
            parameters = [parameter for parameter in parameters if parameter.name in names]
        kinds = {parameter.name: hints[parameter.name] for parameter in parameters}
        for kind in (*kinds.values(), hints["return"]):
            _reader(kind)
        needed = frozenset(each.name for each in parameters if each.default is inspect.Parameter.empty)
        return CallForm(kinds, needed, hints["return"])

    def arguments(self, data: Any) -> dict[str, Any]:
        """The arguments of a call by name. Raises ValueError, in one line."""
        entries = check_type("arguments", data, dict)
        if unknown := sorted(entries.keys() - self.kinds.keys()):
            raise ValueError(f"there is no argument {', '.join(map(quote, unknown))}")
        if missing := sorted(self.needed - entries.keys()):
            raise ValueError(f"{', '.join(missing)} is missing")
        for name, value in entries.items():
            _check_bounds(name, value)
        return {name: from_json(self.kinds[name], value) for name, value in entries.items()}

    def arguments_json(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The inverse: JSON data of the arguments of a call."""
        values = {**dict(zip(self.kinds, args, strict=False)), **kwargs}
        return {name: to_json(_items(self.kinds[name], value)) for name, value in values.items()}


def _check_bounds(name: str, value: Any) -> None:
    """Raises ValueError for an argument with more than there can be of what its name says."""
    if isinstance(value, list | dict) and len(value) > MOST_ITEMS:
        raise ValueError(f"{name} has {len(value)} items; at most {MOST_ITEMS:,} are taken at once")
    if name in ROW_COUNTS and isinstance(value, int) and value < 0:
        raise ValueError(f"{name} is {value}, below 0")
    if name.endswith(KEYS):
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and len(text) > KEY_LETTERS for text in texts):
            raise ValueError(f"{name}: a key has at most {KEY_LETTERS} letters")


def _items(kind: Any, value: Any) -> Any:
    """The value, or the keys of a mapping where several items are expected: iterating over it yields them."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    is_array = any(get_origin(each) in ARRAYS for each in kinds)
    return list(value) if is_array and isinstance(value, Mapping) else value


MOST_WHOLE = 2**31 - 1
"""The largest whole number: columns that are no ids have 32 bits."""

INJECTED = ("session", "change", "write")
"""Names of first parameters that the decorators of stores fill in."""
