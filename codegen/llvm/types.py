"""What all emitters of LLVM's text share: where instructions go, and names of vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..target import Target

Emit = Callable[[str], str]
"""Writes an instruction and answers with the name of its value."""


class Widths(NamedTuple):
    """The widest vectors of a machine's instructions, in bits; 0 where it has none."""

    x86: int = 0  # all of an x86
    dot: int = 0  # as in `Target`, and so the following
    pair: int = 0
    bf16: int = 0

    @staticmethod
    def of(target: Target) -> Widths:
        """Those of a target."""
        x86 = target.vector_bits if target.triple.startswith("x86_64") else 0
        return Widths(x86, target.dot_bits, target.pair_bits, target.bf16_bits)


def vector_of(scalar: str, lanes: int) -> str:
    """LLVM's name of a vector of a type, such as "<8 x i32>"; of one lane, the type's own."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def constant_of(scalar: str, text: str | int, lanes: int) -> str:
    """A constant with the same value in each lane, which for one lane is the text itself."""
    return str(text) if lanes == 1 else f"splat ({scalar} {text})"
