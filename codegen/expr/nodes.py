"""Hash-consed nodes: constructing a node equal to an existing one returns that one.

So equal means identical, hashing is free, and a property of a node alone is computed once in its life (`fact`).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar
from weakref import ref

Key = tuple[object, ...]
N = TypeVar("N", bound="ExprNode")
Fact = TypeVar("Fact")


class ExprNode:
    """The base of immutable nodes, created by `make` alone. The fields are the slots of the class."""

    __slots__ = ("__weakref__", "children", "facts")
    __match_args__: tuple[str, ...] = ()

    children: tuple[Any, ...]
    """The nodes directly inside."""

    facts: dict[Callable[..., Any], Any]
    """Cached results of functions of the node: see `fact`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)


class _Entry(ref[Any]):
    """A node in the table, and the key it is under there."""

    __slots__ = ("key",)

    key: Key


TABLE: dict[Key, ref[Any]] = {}
"""All live nodes: `TABLE.get(key, nowhere)()` is the one with a key, or None.

A key begins with the class. Children are part of it by identity, which is as good as equality.
"""

_TABLE_LOCK = RLock()
"""Held to add or remove a node, so that threads don't create two equal ones."""

_SETTERS: dict[type[ExprNode], list[Callable[[ExprNode, object], None]]] = {}
"""Functions that set the fields of a frozen node, by its class."""


def no_node() -> None:
    """The stand-in for a reference to a missing node."""


def make(cls: type[N], key: Key, children: tuple[Any, ...], *values: object) -> N:
    """The node with this key, with these values of its fields if there is none yet."""
    with _TABLE_LOCK:
        node: N | None = TABLE.get(key, no_node)()
        if node is None:
            node = object.__new__(cls)
            setters = _SETTERS.get(cls)
            if setters is None:
                setters = _SETTERS[cls] = [getattr(cls, name).__set__ for name in ("children", "facts", *cls.__slots__)]
            for put, value in zip(setters, (children, {}, *values), strict=True):
                put(node, value)
            TABLE[key] = entry = _Entry(node, _forget)
            entry.key = key
        return node


def _forget(entry: _Entry, nodes: dict[Key, ref[Any]] = TABLE, making: RLock = _TABLE_LOCK) -> None:
    """Remove a dead node, unless an equal one has replaced it. Works while Python shuts down."""
    with making:
        if nodes.get(entry.key) is entry:
            del nodes[entry.key]


def fact(function: Callable[[N], Fact]) -> Callable[[N], Fact]:
    """Cache a function of a node alone in the node. Its results must not be None."""

    def cached(node: N) -> Fact:
        value: Fact | None = node.facts.get(function)
        if value is None:
            value = node.facts[function] = function(node)
        return value

    return cached
