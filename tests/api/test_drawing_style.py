"""The style sheet of the charts: readable in light and in dark, nothing from elsewhere."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import tunewright.api.dashboard.drawing
from tunewright.api.dashboard.drawing.frame import MARGINS_PX

STATIC = Path(tunewright.api.dashboard.drawing.__file__).parent.parent / "static"
CSS = (STATIC / "charts.css").read_text(encoding="utf-8")
TOKENS = (STATIC / "tokens.css").read_text(encoding="utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    for block in re.findall(r":root \{(.*?)\}", TOKENS, re.DOTALL)
)
INSIDE = [f"series-{n}" for n in range(6)]  # numbers in the colour of the paper stand on these
TEXT = ["ink", "faint", *INSIDE, "best", "default", "failed"]
SHAPES = ["axis", "ceiling", "other", "candidate", "focus"]


def luminance(color: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: str, b: str) -> float:
    """Contrast ratio (WCAG 2.2)."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(colors: dict[str, str]) -> None:
    for name in TEXT:
        assert contrast(colors[name], colors["paper"]) >= 4.5, name
    for name in SHAPES:
        assert contrast(colors[name], colors["paper"]) >= 3.0, name


def test_both_themes_have_the_same_colours() -> None:
    assert LIGHT.keys() == DARK.keys()
    used = set(re.findall(r"var\(--([\w-]+)", CSS)) - {"own", "dash", "thick"}
    assert used <= set(re.findall(r"--([\w-]+):", TOKENS))


def test_series_are_told_apart_by_dash() -> None:
    dashes = re.findall(r"\.series-\d \{[^}]*--dash: ([^;]+);", CSS)
    assert len(set(dashes)) == 6


def test_nothing_comes_from_elsewhere() -> None:
    assert "url(" not in CSS
    assert "@import" not in CSS
    assert CSS.count("{") == CSS.count("}")
    assert "<" not in CSS, "it is put into a page of its own, too"


def test_charts_know_nothing_of_jobs() -> None:
    imported = set()
    for path in Path(tunewright.api.dashboard.drawing.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names):
                    imported |= {name.name.split(".")[0] for name in names}
                case ast.ImportFrom(module=str(module), level=0):
                    imported.add(module if module.startswith("tunewright") else module.split(".")[0])
                case ast.ImportFrom(level=level):
                    assert level == 1
    assert imported - sys.stdlib_module_names == {"markupsafe", "tunewright.tuner.text"}


def test_frames_have_the_room_that_they_count_on() -> None:
    top, bottom = re.search(r"\.frame \{[^}]*padding: (\d+)px \S+ (\d+)px", CSS).groups()  # type: ignore[union-attr]
    assert int(top) + int(bottom) == MARGINS_PX
