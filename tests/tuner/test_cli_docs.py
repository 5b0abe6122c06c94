"""The keys that docs/cli.md promises are those that the commands answer with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tunewright.tuner import tune

from ..commands import Command

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def promised(name: str) -> tuple[set[str], dict[str, set[str]]]:
    """The keys of a command's JSON, and those of each entry of the keys that are lists."""
    section = DOCS.read_text().split(f"\n## {name}\n")[1].split("\n## ")[0]
    text = re.split(r"\n\n(?!- )", section.split("\nJSON: ")[1])[0]
    text = without(r"\((?!each with)[^()]*\)", text)
    entries = {
        key: set(re.findall(r"`(\w+)`", inner)) for key, inner in re.findall(r"`(\w+)` \(each with ([^)]*)\)", text)
    }
    return set(re.findall(r"`(\w+)`", without(r"\([^()]*\)", text))), entries


def without(pattern: str, text: str) -> str:
    """The text, less what matches, and what matches once that is gone."""
    while (shorter := re.sub(pattern, "", text)) != text:
        text = shorter
    return text


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, model: Path) -> list[object]:
    """Arguments that name a model and the database of a job for it."""
    database = f"sqlite:///{tmp_path_factory.mktemp('db') / 'tuning.db'}"
    tune(model, db=database, trials=2, threads=1)
    return [model, "--db", database, "--threads", "1"]


@pytest.mark.parametrize("name", ["tune", "bench", "lookup", "tasks"])
def test_json(name: str, tuned: list[object], command: Command) -> None:
    options = {"tune": ["--trials", "2"], "bench": ["--against", "onnxruntime"]}.get(name, [])
    if name == "bench":
        pytest.importorskip("onnxruntime")
    data = command(name, *tuned, *options, "--json").data
    keys, entries = promised(name)
    assert keys == data.keys()
    assert name == "bench" or entries["tasks"]
    for key, names in entries.items():
        assert data[key]
        for entry in data[key]:
            assert names == entry.keys()
