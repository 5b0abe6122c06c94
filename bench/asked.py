"""Which cases a command line asks for: `NAME ...`, each a text that is in the names of those wanted."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence

ALL = "all"
"""What stands for all parts of a bench."""


def asked(parser: argparse.ArgumentParser, names: Iterable[str], texts: Sequence[str]) -> list[str]:
    """The names that have one of the texts in them, in their order, each once; all where there are no texts.

    A text that is in no name is an error of the command line.
    """
    names = list(dict.fromkeys(names))
    for text in texts:
        if not any(text in name for name in names):
            parser.error(f"no name has {text!r} in it; there are {', '.join(names)}")
    return [name for name in names if not texts or any(text in name for text in texts)]


def asked_of_part(
    parser: argparse.ArgumentParser, parts: Mapping[str, Collection[str]], part: str, texts: Sequence[str]
) -> list[str]:
    """The same of a bench in parts, each of which has cases of its own: of one part, or of `ALL`."""
    return asked(parser, (name for one in parts if part in (ALL, one) for name in parts[one]), texts)
