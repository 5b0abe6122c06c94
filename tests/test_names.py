"""Names: nouns of the field or verbs in the imperative, one class for a name, one meaning. All counts only go down."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FOLDERS = ("api", "bench", "codegen", "costmodel", "db", "graph", "integrations", "search_space", "tuner", "workers")

PARTICIPLES = {
    "asked", "begun", "called", "confided", "found", "given", "heard", "held", "kept", "laid",
    "left", "made", "met", "named", "offered", "offering", "said", "seen", "sent", "shown",
    "stolen", "taken", "taught", "timed", "told", "tried", "turned", "wanted",
}  # fmt: skip
"""What no module, class or function is called: it says that something was done, and not what there is."""

MOST_PARTICIPLES = 0
MOST_REUSED = 2

VAGUE = {"place", "places"}
"""What variables and parameters are called no more: the glossary has one meaning for it, where the field has a word for
each of the others, such as index, coordinates, address or operand."""

MOST_VAGUE = 608


RIVALS = ROOT / "bench" / "rivals"
"""Left as they are: results that took hours are of these very bytes."""


@functools.cache
def trees() -> list[tuple[Path, ast.Module]]:
    """What is read once for all tests."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths if not path.is_relative_to(RIVALS)]


def test_no_name_is_a_participle() -> None:
    names: list[str] = []
    for path, tree in trees():
        place = path.relative_to(ROOT)
        names += [f"{place}"] if path.stem in PARTICIPLES else []
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                is_banned = node.name.strip("_").lower() in PARTICIPLES
                names += [f"{place}:{node.lineno} {node.name}"] if is_banned else []
    assert len(names) <= MOST_PARTICIPLES, "\n".join(names)


def test_no_more_variables_are_places() -> None:
    names = [
        node.id if isinstance(node, ast.Name) else node.arg
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    ]
    assert sum(name in VAGUE for name in names) <= MOST_VAGUE


def test_a_name_is_of_one_class() -> None:
    classes = Counter(node.name for _, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    reused = [name for name, count in classes.items() if count > 1]
    assert len(reused) <= MOST_REUSED, ", ".join(reused)
