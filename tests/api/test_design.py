"""The design sheet: what pages are built from is what docs/design.md says, and nothing else is used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

import tunewright.api.dashboard
from tunewright.api.dashboard.html import assets
from tunewright.api.dashboard.job.overview import Answered
from tunewright.db.job import JobState

from .test_style import colours, contrast

DASHBOARD = Path(tunewright.api.dashboard.__file__).parent
SHEET = (DASHBOARD.parents[1] / "docs" / "design.md").read_text(encoding="utf-8")
TOKENS = assets()["tokens.css"].content.decode()
RULES = "".join(
    re.sub(r"/\*.*?\*/", "", assets()[name].content.decode(), flags=re.DOTALL) for name in ("charts.css", "style.css")
)
TEMPLATES = {str(path.relative_to(DASHBOARD)): path.read_text(encoding="utf-8") for path in DASHBOARD.rglob("*.html")}
SCRIPTS = "".join(asset.content.decode() for name, asset in assets().items() if name.endswith(".js"))

OWN = {"--own", "--dash", "--thick"}
"""What classes of charts set for what is drawn inside of them."""

NUMBERED = re.compile(r"(series|gutter|heat|dash)-\d+")
"""Classes that are made of a number."""

SILENT = {
    # Charts, and parts of them, that need no rule of their own.
    *("blank", "histogram", "named", "pile", "step", "steps"),
    # Left out of reports: `report/fragment.py`.
    "served",
    # What scripts look for.
    "pick",
}
"""Classes without a rule."""

COLOUR = re.compile(r"#[0-9a-f]{3}|\b(rgb|hsl|hwb|lab|lch|oklab|oklch)a?\(|\b(black|white|gr[ae]y|red|blue|green)\b")
"""What a colour looks like that is told as such."""

MADE_OF_NUMBERS = (".frame", ".gutter-", ".sparkline", ".find input", ".stacked [data-name]")
"""Room for what is drawn or lies above, by its own size."""


def rows(head: str) -> dict[str, list[str]]:
    """The cells of the tables under a heading of the sheet, by what stands between backquotes in the first one."""
    section = re.search(rf"^## {head}\n(.*?)(?=^## |\Z)", SHEET, re.MULTILINE | re.DOTALL)
    assert section, head
    lines = re.findall(r"^\| `([^`]+)` \|(.*)\|$", section[1], re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in lines}


def tokens() -> tuple[dict[str, str], ...]:
    """What the first sheet sets in the light, and differently in the dark."""
    light, dark = re.findall(r":root \{(.*?)\}", TOKENS, re.DOTALL)
    return tuple(dict(re.findall(r"(--[\w-]+): ([^;]+);", block)) for block in (light, dark))


def test_colours_are_as_the_sheet_says() -> None:
    light, dark = tokens()
    told = rows("Colour")
    assert {name: (cells[0], cells[1]) for name, cells in told.items()} == {
        name: (f"`{light[name]}`", f"`{value}`") for name, value in dark.items()
    }


@pytest.mark.parametrize("is_dark", [False, True])
def test_contrasts_are_as_the_sheet_says(is_dark: bool) -> None:
    known = colours(is_dark)
    for name, cells in rows("Colour").items():
        least = min(contrast(known[name], known[ground]) for ground in ("--paper", "--panel"))
        told = cells[2].split(", ")[is_dark] if cells[2] != "-" else None
        assert told is None or told == f"{int(10 * least) / 10:.1f}", (name, least)


def test_sizes_spaces_and_corners_are_as_the_sheet_says() -> None:
    light, dark = tokens()
    told = {name: cells[0].strip("`") for head in ("Type", "Spacing", "Corners") for name, cells in rows(head).items()}
    assert told == {name: value for name, value in light.items() if name not in dark}


def test_all_that_is_set_is_used() -> None:
    used = set(re.findall(r"var\((--[\w-]+)", RULES))
    assert used - OWN == set(tokens()[0])
    assert set(re.findall(r"(--[\w-]+):", RULES)) == OWN == {name for name in rows("Marks of charts") if name in OWN}


def declarations() -> Iterator[tuple[str, str, str]]:
    """Each rule's selector with each of its properties and the value of that."""
    for selector, block in re.findall(r"([^{};]+)\{([^{}]*)\}", RULES):
        for name, value in re.findall(r"([\w-]+):\s*([^;]+)", block):
            yield selector.strip(), name, value.strip()


def test_no_other_sheet_has_colours_of_its_own() -> None:
    for selector, name, value in declarations():
        assert not COLOUR.search(value), (selector, name)
    for source in chain([SCRIPTS], TEMPLATES.values()):
        assert not re.search(r"[\"'\s:]#[0-9a-f]{6}\b", source)


def test_text_spaces_and_corners_are_of_the_scale() -> None:
    for selector, name, value in declarations():
        where = (selector, name, value)
        if name == "font-size":
            assert value == "inherit" or re.fullmatch(r"var\(--text[\w-]*\)", value), where
        elif name == "border-radius":
            assert all(part in ("0", "50%") or part.startswith("var(--radius") for part in value.split()), where
        elif re.fullmatch(r"((padding|margin)(-\w+)?|(row-|column-)?gap)", name):
            assert "rem" not in value or any(one in selector for one in MADE_OF_NUMBERS), where


# Components


def macros() -> dict[str, str]:
    """The parts that pages share, with their source."""
    found = re.findall(r"\{% macro (\w+)\(.*?%\}(.*?)\{% endmacro %\}", TEMPLATES["parts.html"], re.DOTALL)
    return dict(found)


def test_every_component_stands_in_the_sheet_with_its_classes() -> None:
    told = rows("Components")
    assert told.keys() == macros().keys()
    for name, source in macros().items():
        for word in literal(source):
            assert f"`{word}`" in told[name][-1], (name, word)


# Classes


def literal(source: str) -> set[str]:
    """The classes that stand in a template as such: by themselves, or as a text of an expression."""
    found: set[str] = set()
    for value in re.findall(r'class="((?:\{\{.*?\}\}|\{%.*?%\}|[^"{])*)"', source):
        found |= set(re.sub(r"\{\{.*?\}\}|\{%.*?%\}", " ", value).split())
        for expression in re.findall(r"\{[{%](.*?)[%}]\}", value):
            tests = re.sub(r'[=!]= "[^"]*"|replace\([^)]*\)', "", expression)
            found |= {word for text in re.findall(r'"([^"]*)"', tests) for word in text.split()}
    return found


def spoken() -> set[str]:
    """Every word of a text in the code of pages: in templates, drawings and scripts."""
    texts: list[str] = []
    for source in TEMPLATES.values():
        for expression in re.findall(r"\{[{%](.*?)[%}]\}", source, re.DOTALL):
            texts += re.findall(r'"([^"]*)"', expression)
    for path in DASHBOARD.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts += [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes
        ]
    texts += chain.from_iterable(re.findall(r'"([^"\n]*)"|`([^`]*)`', SCRIPTS))
    return {word for text in texts for word in re.findall(r"[a-z][a-z0-9-]*", text)}


def ruled() -> set[str]:
    """Classes with a rule."""
    return set(re.findall(r"\.([a-z][a-z0-9-]*)", " ".join(re.findall(r"([^{};]+)\{", RULES))))


def drawn() -> set[str]:
    """Classes that drawings and scripts give as such."""
    found: set[str] = set()
    for path in (DASHBOARD / "drawing").glob("*.py"):
        for value in re.findall(r'"class": f?"([^"]*)"', path.read_text(encoding="utf-8")):
            found |= {word for word in value.split() if re.fullmatch("[a-z-]+", word)}
    for value in re.findall(r'class(?:Name)?: ["`]([^"`]*)["`]', SCRIPTS):
        found |= {word for word in value.split() if "$" not in word}
    return found


def test_every_class_has_a_rule_or_none_on_purpose() -> None:
    used = drawn().union(*map(literal, TEMPLATES.values()))
    assert used - ruled() <= SILENT
    assert not ruled() & SILENT


def test_every_class_of_a_page_stands_in_the_sheet() -> None:
    """But for those of a state, which are its word."""
    told = set(re.findall(r"`([a-z0-9-]+)`", SHEET)) | {state.value for state in JobState}
    assert set().union(*map(literal, TEMPLATES.values())) & ruled() <= told


def test_every_rule_is_for_something() -> None:
    answers = {answer.name.lower() for answer in Answered}
    had = spoken().union(answers, *map(literal, TEMPLATES.values()))
    assert {name for name in ruled() if not NUMBERED.fullmatch(name)} <= had
