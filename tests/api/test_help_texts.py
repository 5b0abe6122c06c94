"""Help texts: each figure of the pages has one, each is used, and the docs list them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

import tunewright.api.dashboard
from tunewright.api.dashboard.help_texts import help_text, terms
from tunewright.api.dashboard.job.machine import GAUGE_CHARTS

DASHBOARD = Path(tunewright.api.dashboard.__file__).parent
DOCS = (DASHBOARD.parents[1] / "docs" / "dashboard.md").read_text(encoding="utf-8")
TEMPLATES = {
    str(path.relative_to(DASHBOARD)): Environment(trim_blocks=True).parse(path.read_text(encoding="utf-8"))
    for path in DASHBOARD.rglob("*.html")
}

TERM_AT = {"figure": 3, "help": 0, "head": 2, "sorted": 4, "judged": 2}
"""Where macros take a term, where it is not named."""


def calls(template: nodes.Template) -> Iterator[tuple[str, nodes.Node | None, str]]:
    """Each call of a macro that takes a term: the macro, the term, and where it is."""
    for call in template.find_all(nodes.Call):
        name = call.node.attr if isinstance(call.node, nodes.Getattr) else getattr(call.node, "name", "")
        if name in TERM_AT:
            named = [one.value for one in call.kwargs if one.key == "term"]
            told = named or call.args[TERM_AT[name] : TERM_AT[name] + 1]
            yield name, told[0] if told else None, f"line {call.lineno}"


def texts(node: nodes.Node) -> set[str]:
    """The texts that an expression may be."""
    if isinstance(node, nodes.CondExpr):
        return texts(node.expr1) | (texts(node.expr2) if node.expr2 else set())
    return {node.value} if isinstance(node, nodes.Const) and isinstance(node.value, str) else set()


def used(name: str) -> set[str]:
    """The terms that a template has a help of: as arguments, as those of heads of a table, and of a loop over heads."""
    template = TEMPLATES[name]
    found = {text for _, term, _ in calls(template) if term for text in texts(term)}
    tables = [one.node for one in template.find_all(nodes.Assign) if getattr(one.target, "name", "") == "terms"]
    tables += [one.value for call in template.find_all(nodes.Call) for one in call.kwargs if one.key == "terms"]
    for table in tables:
        if isinstance(table, nodes.Dict):
            found = found.union(*(texts(pair.value) for pair in table.items))
    for loop in template.find_all(nodes.For):
        names = [getattr(one, "name", "") for one in getattr(loop.target, "items", ())]
        if "term" in names and isinstance(loop.iter, nodes.List):
            rows = [row.items for row in loop.iter.items if isinstance(row, nodes.Tuple)]
            found |= {text for row in rows for text in texts(row[names.index("term")])}
    return found - {""}


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_figure_has_a_help(name: str) -> None:
    for macro, term, where in calls(TEMPLATES[name]):
        if macro == "figure":
            assert term is not None and texts(term) - {""}, f"{name}, {where}: parts.figure without a term"


def test_every_help_is_used_and_every_term_has_one() -> None:
    asked = set().union(*(used(name) for name in TEMPLATES), (chart.term for chart in GAUGE_CHARTS.values()))
    assert asked == set(terms())


@pytest.mark.parametrize("term", terms())
def test_a_help_is_two_sentences(term: str) -> None:
    text = help_text(term)
    sentences = re.findall(r"[A-Z].+?[.!?](?=\s[A-Z]|$)", text)
    assert len(sentences) == 2 and " ".join(sentences) == text
    assert len(text) <= 300, "two short ones"


def test_terms_are_in_order() -> None:
    assert list(terms()) == sorted(terms())


def test_the_docs_list_them_as_they_are() -> None:
    section = DOCS[DOCS.index("\n## Figures\n") :]
    _, _, *rows = re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE)  # but for the head
    assert rows == [(term, help_text(term)) for term in terms()]
