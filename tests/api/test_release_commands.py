"""`tunewright log release`, `log rollback`, `log verify` and `audit`, on a real server."""

from __future__ import annotations

import json

import pytest

from tunewright.api.http.release_key import ReleaseKey

from .conftest import TARGET, make_target, make_task, points, store_best


@pytest.fixture
def filled(one):
    """A namespace that serves two keys."""
    client = one.client()
    for key in ("a%20key", "other"):
        client.put(f"/v1/logs/triton/{key}", json={"value": "v", "environment": {"device": "H100"}})
    return client


def test_a_release_from_its_making_to_its_end(run, filled, tmp_path):
    made = run("log", "release", "create", "triton", "2026.11", "--notes", "for the run")
    assert made.out.startswith("2026.11 of triton: 2 entries, made at 20")
    assert "it is not promoted" in made.out
    assert "lookups are answered from all entries" in run("log", "release", "list", "triton").out
    told = run("log", "release", "promote", "triton", "2026.11")
    assert told.out == "lookups of triton are answered from the release 2026.11\n"
    assert "2026.11 *" in run("log", "release", "list", "triton").out
    assert "2026.11" in run("log", "list").out
    filled.put("/v1/logs/triton/other", json={"value": "w", "environment": {"device": "H100"}})
    text = run("log", "release", "diff", "triton", "2026.11").out
    assert "changed" in text and "1 key is served otherwise" in text
    run("log", "release", "create", "triton", "2026.12")
    data = run("log", "release", "diff", "triton", "2026.11", "2026.12", "--json").data
    assert [(one["change"], one["key"]) for one in data["changes"]] == [("changed", "other")]
    assert run("log", "release", "promote", "triton", "2026.12", "--json").data["release"] == "2026.12"
    assert run("log", "rollback", "triton").out == "lookups of triton are answered from the release 2026.11\n"
    assert run("log", "rollback", "triton", "--json").data == {
        "namespace": "triton",
        "left": "2026.11",
        "release": None,
    }
    assert "no release that is promoted" in run("log", "rollback", "triton").err
    shown = run("log", "release", "show", "triton", "2026.11", "--json").data
    assert (shown["notes"], shown["promoted"], shown["entries"]) == ("for the run", False, 2)
    file = tmp_path / "release.jsonl"
    assert "2 entries in " in run("log", "release", "export", "triton", "2026.11", "-o", str(file)).out
    key = run("log", "release", "key").out.strip()
    assert key == shown["public_key"]
    assert "2026.11 of triton, 2 entries, as signed at" in run("log", "verify", str(file), "--key", key).out
    assert run("log", "verify", str(file), "--key", key, "--json").data["sha256"] == shown["sha256"]
    meant = ("log", "verify", str(file), "--key", key, "--namespace", "triton", "--name")
    assert run(*meant, "2026.11").code == 0
    other = run(*meant, "2026.12")
    assert other.code == 1 and "it is the release 2026.11 of triton, which is not what was asked for" in other.out
    imported = run("log", "import", "copy", str(file))
    assert imported.code == 2 and "is an exported release" in imported.err and "tail -n +2" in imported.err
    assert len(imported.err.splitlines()) == 1
    lines = tmp_path / "lines.jsonl"
    lines.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    assert run("log", "import", "copy", str(lines)).out == "2 added, 0 improved, 0 known already\n"
    file.write_bytes(file.read_bytes().replace(b'"v"', b'"w"'))
    refused = run("log", "verify", str(file), "--key", key)
    assert refused.code == 1 and "its entries are not those that were signed" in refused.out
    assert (
        run("log", "release", "delete", "triton", "2026.11").out == "2026.11 of triton is deleted; its entries stay\n"
    )
    assert [one["name"] for one in run("log", "release", "list", "triton", "--json").data["releases"]] == ["2026.12"]
    assert run("log", "release", "promote", "triton", "--none").out.endswith("from all entries\n")


def test_a_key_is_made_for_a_server(run, tmp_path):
    file = tmp_path / "release_key"
    made = run("log", "release", "key", "--make", str(file))
    assert made.out.strip() == ReleaseKey(file, makes=False).public_key
    content = file.read_bytes()
    refused = run("log", "release", "key", "--make", str(file))
    assert refused.code != 0 and "a release key is never replaced" in refused.err
    assert file.read_bytes() == content
    assert "without --server" in run("log", "release", "key", "--make", str(file), "--server", "http://x").err


def test_releases_of_some_environments(run, filled):
    fingerprint = filled.get("/v1/logs/triton").json()["items"][0]["fingerprint"]
    filled.put("/v1/logs/triton/elsewhere", json={"value": "v"})
    made = run("log", "release", "create", "triton", "some", "--environment", fingerprint, "--json").data
    assert made["entries"] == 2
    assert run("log", "release", "list", "none").code != 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("release", "create", "A", "one"), "is no namespace"),
        (("release", "create", "triton", "one"), "There is no such namespace"),
        (("release", "show", "triton", "A"), "is no name of a release"),
        (("release", "show", "triton", "one"), "There is no such"),
        (("release", "promote", "triton"), "name the release, or say --none"),
        (("release", "promote", "triton", "one", "--none"), "name the release, or say --none"),
        (("release", "export", "triton", "one", "-o", "/none/such"), "No such file"),
        (("rollback", "triton"), "There is no such namespace"),
        (("verify", "/none/such", "--key", "x"), "No such file"),
    ],
)
def test_what_can_not_be_is_one_line(run, arguments, word):
    refused = run("log", *arguments)
    assert refused.code != 0
    assert word in refused.err
    assert len(refused.err.strip().splitlines()) == 1


@pytest.mark.parametrize("place", ["server", "db"])
def test_an_audit(one, run, filled, monkeypatch, place):
    given = ("--server", one.url)
    if place == "db":
        monkeypatch.delenv("TUNEWRIGHT_SERVER")
        given = ("--db", str(one.store))
    fine = run("audit", *given)
    assert (fine.code, fine.out.splitlines()[-1]) == (0, "the machines of each fleet agree")
    older = {"device": "H100", "versions": {"cuda": "12"}}
    filled.put("/v1/logs/triton/other", json={"value": "w", "environment": older})
    filled.put("/v1/logs/tvm/other", json={"value": "w"})
    found = run("audit", "triton", *given)
    assert found.code == 1
    assert "triton: of 2 keys 1 are served differently, 0 by a tie, and 1 are missing somewhere" in found.out
    assert "machines of one fleet do not agree" in found.out
    data = run("audit", "triton", "--json", *given).data
    [log] = data["namespaces"]
    assert [(one["kind"], one["key"]) for one in log["findings"] if one["kind"] == "disagreement"] == [
        ("disagreement", "other")
    ]
    assert (data["agree"], data["schedules"]) == (False, None)
    assert run("audit", "tvm", *given).code == 0
    task = make_task(4096)
    store_best(one.store, task)
    other = make_target(8)
    store_best(one.store, task, other, points(task)[1])
    every = run("audit", *given)
    assert every.code == 1
    assert "1 task has different schedules on targets with the same processor" in every.out
    data = run("audit", "--json", *given).data
    assert [log["namespace"] for log in data["namespaces"]] == ["triton", "tvm"]
    [finding] = data["schedules"]["findings"]
    assert finding["differences"] == ["threads"]
    assert {best["target"] for best in finding["bests"]} == {TARGET.key, other.key}
    lines = one.client().get("/v1/audit").text.splitlines()
    assert [json.loads(line) for line in lines] == [finding, {"summary": {"disagreement": 1}}]


def test_an_audit_of_what_is_not_there(run, one, monkeypatch):
    assert "There is no such namespace" in run("audit", "nobody").err
    assert "which of them?" in run("audit", "--server", one.url, "--db", "sqlite:///x.db").err
    assert run("audit", "nobody", "--db", str(one.store)).code != 0
