"""A picture of a loop nest: a rounded box for each loop, in it what it repeats.

It is a nested list: words wrap in it as the screen allows, and it is read out in the order in which it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .figure import figure
from .frame import empty
from .svg import element

KINDS = frozenset({"serial", "parallel", "unroll", "block", "thread"})
"""The kinds of loops that have a colour of their own in the style sheet; all others look like serial ones."""


@dataclass(frozen=True, slots=True)
class Step:
    """A piece of straight code."""

    text: str


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over `extent` values of a variable; what it repeats, outer ones first."""

    kind: str
    var: str
    extent: int | str
    parts: tuple[Loop | Step, ...]


def nest(title: str, parts: Sequence[Loop | Step]) -> Markup:
    """A figure with the loops in each other and the steps as lines."""
    if not parts:
        return figure("nest", empty(title, "There is no loop."))
    return figure("nest", element("figcaption", {"class": "unseen"}, title), _listed(parts))


def _listed(parts: Sequence[Loop | Step]) -> Markup:
    return element("ol", {}, *map(_drawn, parts))


def _drawn(part: Loop | Step) -> Markup:
    match part:
        case Step(text):
            return element("li", {"class": "step"}, element("code", {}, text))
        case Loop(kind, var, extent, parts):
            head = element(
                "p",
                {},
                element("span", {"class": "kind"}, kind),
                " ",
                element("var", {}, var),
                " ",
                element("span", {"class": "extent"}, f"× {extent}"),
            )
            name = f"loop {kind if kind in KINDS else 'serial'}"
            return element("li", {"class": name}, head, _listed(parts) if parts else Markup(""))
