"""What was asked for last is kept, as far as there is room."""

from __future__ import annotations

import weakref

import pytest

from tunewright.workers.recent import Recent


class Large:
    """Something that can be seen to be gone."""


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    recent: Recent[str, str] = Recent(10)
    made: list[str] = []

    def ask(key: str, size_bytes: int) -> None:
        def make() -> str:
            made.append(key)
            return key.upper()

        assert recent.get(key, size_bytes, make) == key.upper()

    for key in "abab":
        ask(key, 4)
    assert made == ["a", "b"]
    ask("c", 3)  # b was asked for last
    ask("b", 4)
    assert made == ["a", "b", "c"]
    ask("a", 4)
    assert made == ["a", "b", "c", "a"]


def test_there_is_room_for_one() -> None:
    recent: Recent[int, object] = Recent(10)
    small, large = recent.get(1, 1, object), recent.get(2, 11, object)
    assert recent.get(2, 11, object) is large
    assert recent.get(1, 1, object) is not small


def test_what_goes_is_gone_before_another_is_made() -> None:
    """So its memory may be what the other one takes."""
    recent: Recent[int, Large] = Recent(10)
    gone = weakref.ref(recent.get(1, 6, Large))
    left: list[Large | None] = []

    def made() -> Large:
        left.append(gone())
        return Large()

    recent.get(2, 5, made)
    assert left == [None]


def test_what_could_not_be_made_is_tried_again() -> None:
    recent: Recent[int, float] = Recent(10)
    with pytest.raises(ZeroDivisionError):
        recent.get(1, 1, lambda: 1 / 0)
    assert recent.get(1, 1, lambda: 0.5) == 0.5
