"""Pages: what people see, with nothing in it that a browser would run."""

import re

import pytest
from markupsafe import escape

from tunewright.api.problems import Kind
from tunewright.db.jobs import JobState

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}",
    "' onclick='x",
    "</td></table>",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_come_as_text(one, client, kit, name):
    model = kit.send(client, 8, label=name)
    job = client.post("/v1/jobs", json={"model": model}).json()
    lease = one.store.jobs.lease([kit.target().key], holder=name)
    one.store.fleet.enlist("t2", name, 1, name, "local")
    text = client.get("/").text
    assert text.count(str(escape(name))) == 3  # label, holder, host
    one.store.jobs.finish(lease, JobState.FAILED, error=name)
    failed = client.get("/").text
    assert str(escape(name)) in failed
    assert name not in failed or name == escape(name)
    assert f"<td>{job['id']}</td>" in failed


def test_the_overview(one, client, kit):
    empty = client.get("/")
    assert "tunewright submit" in empty.text
    policy = empty.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src" not in policy
    model = kit.send(client, 8, label="net.onnx")
    for seed in range(52):
        client.post("/v1/jobs", json={"model": model, "seed": seed})
    first = client.get("/").text
    assert first.count("<td>queued</td>") == 50
    (link,) = re.findall(r'href="(/\?cursor=[^"]+)"', first)
    older = client.get(link).text
    assert older.count("<td>queued</td>") == 2
    assert "host-1" in first and "<script" not in first and "style=" not in first
    style = client.get("/static/style.css")
    assert (style.status_code, style.headers["content-type"]) == (200, "text/css; charset=utf-8")
    kit.problem(client.get("/", params={"cursor": "?"}), "invalid-request", 422)


@pytest.mark.parametrize("kind", list(Kind))
def test_each_problem_has_a_page(client, kind):
    answer = client.get(kind.type)
    assert answer.status_code == 200
    assert escape(kind.title) in answer.text


def test_problems_that_are_none(client, kit):
    kit.problem(client.get("/problems/<script>"), "not-found", 404)
