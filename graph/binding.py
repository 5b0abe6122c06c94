"""Bindings of dimensions and of inputs as one mapping. Light to import: the command line reads them."""

from __future__ import annotations

from collections.abc import Mapping

BOUND_MARK = "="
"""The end of a key that binds an input, where bindings of dimensions and of inputs are one mapping."""


def plain_names(bindings: Mapping[str, int]) -> dict[str, int]:
    """The bindings by names for people: the mark stays only where a dimension and an input have one name."""
    bare = {key: key.removesuffix(BOUND_MARK) for key in bindings}
    return {key if key != name and name in bindings else name: bindings[key] for key, name in bare.items()}
