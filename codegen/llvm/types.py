"""What all emitters of LLVM's text share: where instructions go, and names of vectors."""

from __future__ import annotations

from collections.abc import Callable

Emit = Callable[[str], str]
"""Places an instruction and answers with the name of its value."""


def vector_of(scalar: str, lanes: int) -> str:
    """LLVM's name of a vector of a type, such as "<8 x i32>"; of one lane, the type's own."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def constant_of(scalar: str, text: str | int, lanes: int) -> str:
    """A constant with the same value in each lane, which for one lane is the text itself."""
    return str(text) if lanes == 1 else f"splat ({scalar} {text})"
