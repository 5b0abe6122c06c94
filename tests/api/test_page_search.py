"""The page of a search."""

from __future__ import annotations

import pytest

from tunewright.db.access import KeyScope

from .conftest import TARGET, make_task, problem, send, store_best
from .page import whole

MARKUP = ["<script>alert(1)</script>", '"', "'", "{{ 7 * 7 }}"]
HOSTILE = [*MARKUP, "", " ", "%", "_", "\\", "a\u202eb", "\x00", "x " * 100]


@pytest.fixture
def search(client):
    def find(words):
        answer = client.get("/v1/pages/search", params={"q": words})
        assert answer.status_code == 200, answer.text
        return answer.json(), whole(client.get("/search", params={"q": words}))

    return find


def test_hits_are_in_groups_with_the_way_there(one, client, search):
    model = send(client, 8, label="relu-net.onnx")
    job = client.post("/v1/jobs", json={"model": model, "tags": ["relu"]}).json()["id"]
    one.store.keys.create("relu team", {KeyScope.JOBS_READ})  # submitted nothing
    record = store_best(one.store, make_task(8))
    view, page = search("relu")
    assert [hit["id"] for hit in view["jobs"]] == [job]
    assert [(hit["task"], hit["target"]["key"]) for hit in view["tasks"]] == [(record.task_key, TARGET.key)]
    assert [hit["model"] for hit in view["models"]] == [model]
    assert [(hit["name"], hit["jobs"]) for hit in view["tags"]] == [("relu", 1)]
    assert view["owners"] == []
    links = page.links()
    for link in (f"/jobs/{job}", f"/tasks/{record.task_key}?target={TARGET.key}", f"/?model={model}", "/?tag=relu"):
        assert link in links
    [box] = page.of("input", name="q")
    assert box["value"] == "relu"


def test_owners_lead_to_their_jobs(one, client, search):
    client.post("/v1/jobs", json={"model": send(client, 8)})
    owner = one.token.split("_")[1]
    view, page = search("all")
    assert [(hit["id"], hit["name"], hit["jobs"]) for hit in view["owners"]] == [(owner, "all", 1)]
    assert f"/?owner={owner}" in page.links()


@pytest.mark.parametrize("words", HOSTILE)
def test_any_words_are_nothing_but_words(client, search, words):
    send(client, 8, label="100 sure")
    view, page = search(words)
    assert view["models"] == [] and view["jobs"] == []
    assert "alert(1)</script>" not in page.source and "\u202e" not in page.source and "49" not in page.words


def test_a_long_question_is_refused(client):
    problem(client.get("/v1/pages/search", params={"q": "x" * 10_000}), "invalid-request", 422)
    assert "at most 200" in client.get("/search", params={"q": "x" * 201}, headers={"Accept": "text/html"}).text


def test_there_are_few_hits_of_a_kind(client, search):
    for n in range(1, 13):
        send(client, n, label=f"net-{n}.onnx")
    view, page = search("net")
    assert (len(view["models"]), view["is_cut"]) == (10, True)
    assert "more of some kinds" in page.words


def test_tasks_are_for_those_who_may_read_records(one):
    store_best(one.store, make_task(8))
    reader = one.client(one.key(KeyScope.JOBS_READ, KeyScope.RECORDS_READ))
    other = one.client(one.key(KeyScope.JOBS_READ))
    assert len(reader.get("/v1/pages/search?q=relu").json()["tasks"]) == 1
    assert other.get("/v1/pages/search?q=relu").json()["tasks"] == []
    problem(one.client(one.key(KeyScope.RECORDS_READ)).get("/v1/pages/search?q=relu"), "missing-scope", 403)


def test_the_box_is_on_every_page_but_for_strangers(one, client):
    for path in ("/", "/records", "/cost-model", "/fleet", "/keys"):
        [box] = whole(client.get(path)).of("input", id="find")
        assert box["aria-keyshortcuts"] == "/"
    assert 'id="find"' not in one.client(token="").get("/", headers={"Accept": "text/html"}).text
