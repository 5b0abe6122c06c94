"""What an LruCache keeps and drops."""

from __future__ import annotations

import weakref

import pytest

from tunewright.codegen.lru_cache import LruCache


class Large:
    """Something that can be seen to be gone."""


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    recent: LruCache[str, str] = LruCache(10)
    calls: list[str] = []

    def ask(key: str, size: int) -> None:
        def make() -> str:
            calls.append(key)
            return key.upper()

        assert recent.get(key, make, size) == key.upper()

    for key in "abab":
        ask(key, 4)
    assert calls == ["a", "b"]
    ask("c", 3)  # b was asked for last
    ask("b", 4)
    assert calls == ["a", "b", "c"]
    ask("a", 4)
    assert calls == ["a", "b", "c", "a"]


def test_there_is_room_for_one() -> None:
    recent: LruCache[int, object] = LruCache(10)
    small, large = recent.get(1, object), recent.get(2, object, 11)
    assert recent.get(2, object, 11) is large
    assert recent.get(1, object) is not small


def test_what_goes_is_gone_before_another_is_made() -> None:
    """So its memory may be what the other one takes."""
    recent: LruCache[int, Large] = LruCache(10)
    gone = weakref.ref(recent.get(1, Large, 6))
    left: list[Large | None] = []

    def made() -> Large:
        left.append(gone())
        return Large()

    recent.get(2, made, 5)
    assert left == [None]


def test_what_could_not_be_made_is_tried_again() -> None:
    recent: LruCache[int, float] = LruCache(10)
    with pytest.raises(ZeroDivisionError):
        recent.get(1, lambda: 1 / 0)
    assert recent.get(1, lambda: 0.5) == 0.5


def test_what_is_dropped_is_closed() -> None:
    closed: list[str] = []
    recent: LruCache[str, str] = LruCache(2, closed.append)
    for key in "abac":
        recent.get(key, key.upper)
    assert closed == ["B"] and list(recent) == ["a", "c"]
    recent.clear()
    assert closed == ["B", "C", "A"] and not list(recent)
