"""docs/api.md lists what there is: routes, scopes, problems, limits."""

import re
from pathlib import Path

import pytest

from tunewright.api.http.problems import ProblemKind
from tunewright.api.http.routes.records import LINE_BYTES
from tunewright.api.http.service import Options
from tunewright.db.access import KeyScope
from tunewright.db.job import EventKind

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def rows(section):
    """The cells of the rows of a section's table, without its head."""
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert text, section
    lines = re.findall(r"^\| (`.*) \|$", text[1], re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_a_body_that_is_no_text_is_the_problem_that_the_table_says(client):
    answer = client.post("/v1/jobs", content=b"\xff", headers={"Content-Type": "application/json"})
    [row] = [row for row in rows("Problems") if "UTF-8" in row[2]]
    assert row[:2] == [f"`{answer.json()['type']}`", str(answer.status_code)]


def test_every_route_is_listed(one):
    described = one.app.openapi()["paths"]
    routes = [f"`{method.upper()} {path}`" for path, operations in described.items() for method in operations]
    assert sorted(row[0] for row in rows("Routes")) == sorted(routes)


def test_every_scope_is_listed():
    assert [row[0] for row in rows("Ways in")] == [f"`{scope}`" for scope in KeyScope]


def test_every_problem_is_listed():
    listed = [(row[0].strip("`"), int(row[1])) for row in rows("Problems")]
    assert sorted(listed) == sorted((kind.type, kind.status) for kind in ProblemKind)
    assert [status for _, status in listed] == sorted(status for _, status in listed)


def test_every_kind_of_event_is_listed():
    assert all(f"`{kind}`" in PAGE for kind in EventKind)


@pytest.mark.parametrize(
    "said",
    [
        f"{Options().upload_bytes >> 20} MB (`--upload-mb`)",
        f"{Options().import_bytes >> 20} MB |",
        f"a line of it | {LINE_BYTES >> 20} MB |",
        f"any other body | {Options().body_bytes >> 20} MB |",
        f"being received | {Options().bodies} |",
        f"{Options().requests_per_minute:,} a minute, of which {Options().changes_per_minute}",
        f"{Options().failures_per_minute} a minute |",
        f"| {Options().most_unfinished} |",
    ],
)
def test_limits_are_those_that_hold(said):
    assert said in PAGE
