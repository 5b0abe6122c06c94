"""Words about plain data."""

import pytest

from tunewright.codegen.fields import abridge, quote


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("short", "short"),
        ("12 letters!!", "12 letters!!"),
        ("one, two, three", "one, two..."),
        ("one two three", "one two..."),
        ("uninterrupted", "uninterru..."),
    ],
)
def test_what_is_too_long_ends_behind_a_word(text, said):
    assert abridge(text, 12) == said


def test_what_is_cut_off_shows_it():
    assert quote("a" * 40) == repr("a" * 40)
    assert quote("a" * 64) == repr("a" * 40) + "..."
    assert quote("abc", 2) == "'ab'..."
    assert quote([1] * 40) == f"[{13 * '1, '}..."
    assert quote("\ud800\n") == r"'\ud800\n'"
