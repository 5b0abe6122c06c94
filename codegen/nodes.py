"""Nodes of which no two are alike: making one that there is already gives that one.

So equal means identical, hashing is free, and whatever follows from a node alone is worked out once in its life, for
all that contain it (`fact`).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar
from weakref import ref

Key = tuple[object, ...]
N = TypeVar("N", bound="Node")
Fact = TypeVar("Fact")


class Node:
    """What is frozen, and made by `make` alone. Its fields are the slots of its class."""

    __slots__ = ("__weakref__", "children", "facts")
    __match_args__: tuple[str, ...] = ()

    children: tuple[Any, ...]
    """The nodes directly inside."""

    facts: dict[Callable[..., Any], Any]
    """What was worked out about the node: see `fact`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)


class _Entry(ref[Any]):
    """A node in the table, and the key it is under there."""

    __slots__ = ("key",)

    key: Key


TABLE: dict[Key, ref[Any]] = {}
"""Every node there is: `TABLE.get(key, nowhere)()` is the one with a key, or None.

A key begins with the class. Children are part of it by identity, which is as good as equality.
"""

_MAKING = RLock()
"""Held to add a node or to take one out, so that threads don't make two alike."""

_SETTERS: dict[type[Node], list[Callable[[Node, object], None]]] = {}


def nowhere() -> None:
    """What stands in for a reference to a node that there isn't."""


def make(cls: type[N], key: Key, children: tuple[Any, ...], *values: object) -> N:
    """The node with this key, with these values of its fields if there is none yet."""
    with _MAKING:
        node: N | None = TABLE.get(key, nowhere)()
        if node is None:
            node = object.__new__(cls)
            for put, value in zip(_setters(cls), (children, {}, *values), strict=True):
                put(node, value)
            TABLE[key] = entry = _Entry(node, _forget)
            entry.key = key
        return node


def _setters(cls: type[Node]) -> list[Callable[[Node, object], None]]:
    """What sets the fields of a node, frozen as it is."""
    found = _SETTERS.get(cls)
    if found is None:
        found = _SETTERS[cls] = [getattr(cls, name).__set__ for name in ("children", "facts", *cls.__slots__)]
    return found


def _forget(gone: _Entry, nodes: dict[Key, ref[Any]] = TABLE, making: RLock = _MAKING) -> None:
    """Take out a node that is gone, unless there is another one like it by now. Works while Python shuts down."""
    with making:
        if nodes.get(gone.key) is gone:
            del nodes[gone.key]


def fact(function: Callable[[N], Fact]) -> Callable[[N], Fact]:
    """A function of a node alone, worked out once in the life of the node. Not for what may be None."""

    def known(node: N) -> Fact:
        found: Fact | None = node.facts.get(function)
        if found is None:
            found = node.facts[function] = function(node)
        return found

    return known
