"""Selection of cases by the arguments `NAME ...`, each a part of their names."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence

ALL = "all"
"""The argument for all parts of a bench."""


def select_names(parser: argparse.ArgumentParser, names: Iterable[str], texts: Sequence[str]) -> list[str]:
    """The names that contain one of the texts, in their order, each once; all without texts.

    A text that no name contains is an error of the command line.
    """
    names = list(dict.fromkeys(names))
    for text in texts:
        if not any(text in name for name in names):
            parser.error(f"no name has {text!r} in it; there are {', '.join(names)}")
    return [name for name in names if not texts or any(text in name for text in texts)]


def select_in_part(
    parser: argparse.ArgumentParser, parts: Mapping[str, Collection[str]], part: str, texts: Sequence[str]
) -> list[str]:
    """As `select_names`, for a bench in parts with cases of their own: names of one part, or of `ALL`."""
    return select_names(
        parser, (name for part_name in parts if part in (ALL, part_name) for name in parts[part_name]), texts
    )
