"""Names: nouns of the field or verbs in the imperative, and one class for a name. Both counts only go down."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
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
MOST_REUSED = 3


RIVALS = ROOT / "bench" / "rivals"
"""Left as they are: results that took hours are of these very bytes."""


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.is_relative_to(RIVALS):
                continue
            yield path, ast.parse(path.read_text(encoding="utf-8"))


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


def test_a_name_is_of_one_class() -> None:
    classes = Counter(node.name for _, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    reused = [name for name, count in classes.items() if count > 1]
    assert len(reused) <= MOST_REUSED, ", ".join(reused)
