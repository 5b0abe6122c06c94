"""Words about plain data."""

import pytest

from tunewright.codegen.fields import abridge


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
