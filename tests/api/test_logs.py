"""The log of other compilers over HTTP."""

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from tunewright.api.http.service import Options
from tunewright.db.access import KeyScope
from tunewright.db.logs.logs import LogQuota

H100 = {"device": "H100", "toolchain": "triton", "versions": {"cuda": "13.0"}}
OLDER = H100 | {"versions": {"cuda": "12.8"}}


def put(client, key="k", namespace="triton", **fields):
    return client.put(f"/v1/logs/{namespace}/{quote(key, safe='')}", json={"value": "v"} | fields)


def look_up(client, *keys, namespace="triton", **fields):
    answer = client.post(f"/v1/logs/{namespace}:lookup", json={"keys": keys or ["k"]} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


def test_what_is_put_is_got(client):
    fields = {"value": '{"num_warps": 8}', "environment": H100, "time_s": 1e-4, "low_s": 9e-5, "high_s": 2e-4}
    assert put(client, samples=7, machine="host/3", **fields).json() == {"added": 1, "improved": 0, "known": 0}
    assert put(client, samples=7, machine="host/3", **fields).json() == {"added": 0, "improved": 0, "known": 1}
    [item] = look_up(client, environment=H100)
    assert item["match"] == "exact"
    entry = item["entry"]
    assert {name: entry[name] for name in (*fields, "samples", "machine")} == fields | {
        "samples": 7,
        "machine": "host/3",
    }
    assert (entry["evidence"], entry["state"], entry["served"]) == ("timed", "candidate", True)
    got = client.get(f"/v1/logs/triton/k?environment={entry['fingerprint']}")
    assert got.json() == entry
    headers = {"If-None-Match": got.headers["etag"]}
    assert client.get(f"/v1/logs/triton/k?environment={entry['fingerprint']}", headers=headers).status_code == 304
    assert look_up(client, "k", "other") == [
        {"key": "k", "match": "none", "entry": None},
        {"key": "other", "match": "none", "entry": None},
    ]


@pytest.mark.parametrize("key", ["a/b/../c", "pt2:x::y:c1", "<script>", "a b", "100%", "a:lookup", ":lookup", "?q#f"])
def test_any_line_is_a_key(client, key):
    assert put(client, key).json()["added"] == 1
    assert client.get(f"/v1/logs/triton/{quote(key, safe='')}").json()["key"] == key
    assert look_up(client, key)[0]["entry"]["value"] == "v"
    assert [entry["key"] for entry in client.get("/v1/logs/triton", params={"key": key}).json()["items"]] == [key]


def test_values_are_bytes(client):
    packed = base64.b64encode(b"\x80\x04cposix\nsystem").decode()
    assert put(client, value=None, value_base64=packed).json()["added"] == 1
    entry = client.get("/v1/logs/triton/k").json()
    assert (entry["value"], entry["value_base64"]) == (None, packed)


@pytest.mark.parametrize(
    "fields",
    [
        {"value": None},
        {"value_base64": "AA=="},
        {"value": None, "value_base64": "!"},
        {"value": "x" * (64 << 10) + "x"},
        {"value": "ü" * (64 << 10)},
        {"time_s": 0},
        {"time_s": "1"},
        {"low_s": 1.0, "high_s": 2.0},
        {"time_s": 1.0, "evidence": "none"},
        {"time_s": 1.0, "evidence": "sure"},
        {"environment": {"device": "a\nb"}},
        {"environment": {"gpu": "a"}},
        {"state": "approved"},
        {"machine": "a\tb"},
    ],
)
def test_bad_entries_are_told_where(kit, client, fields):
    problem = kit.problem(put(client, **fields), "invalid-request", 422)
    assert problem["errors"][0]["in"] == "body"
    assert client.get("/v1/logs").json() == []


def test_bad_names_are_refused(kit, client):
    for namespace in ("A", "a..", ".a", "x" * 65):
        kit.problem(client.put(f"/v1/logs/{namespace}/k", json={"value": "v"}), "invalid-request", 422)
    kit.problem(put(client, "k" * 513), "invalid-request", 422)
    kit.problem(put(client, "a\tb"), "invalid-request", 422)
    kit.problem(put(client, "ü"), "invalid-request", 422)
    kit.problem(client.post("/v1/logs/n:lookup", json={"keys": ["k"] * 1025}), "invalid-request", 422)
    kit.problem(client.get("/v1/logs/triton/k?environment=00"), "invalid-request", 422)


def test_what_is_not_there(kit, client):
    kit.problem(client.get("/v1/logs/triton/k"), "no-such-entry", 404)
    for path in ("triton", "triton:snapshot", "triton:export"):
        kit.problem(client.get(f"/v1/logs/{path}"), "no-such-namespace", 404)
    kit.problem(client.delete("/v1/logs/triton"), "no-such-namespace", 404)
    decision = {"key": "k", "choice": "00" * 16, "state": "retired"}
    kit.problem(client.post("/v1/logs/triton:decide", json=decision), "no-such-entry", 404)


def test_loose_matches_are_marked(client):
    put(client, value="older", environment=OLDER)
    assert look_up(client, environment=H100)[0]["match"] == "none"
    [item] = look_up(client, environment=H100, loose=["version"])
    assert (item["match"], item["entry"]["value"], item["entry"]["environment"]) == ("version", "older", OLDER)


def test_ties_are_the_same_for_all(client):
    """Twenty ranks ask for the keys that three machines wrote, whose times lie within each other's noise."""
    keys = [f"k{n}" for n in range(50)]
    lines = [
        {"key": key, "value": value, "time_s": time_s, "low_s": 0.9, "high_s": 1.2}
        for key in keys
        for value, time_s in (("a", 1.0), ("b", 1.01), ("c", 0.99))
    ]
    sent = client.post("/v1/logs/triton:import", content="\n".join(map(json.dumps, lines)))
    assert sent.json() == {"added": 150, "improved": 0, "known": 0}
    start = threading.Barrier(20)

    def ask(_):
        start.wait()
        return [item["entry"]["choice"] for item in look_up(client, *keys)]

    with ThreadPoolExecutor(20) as ranks:
        first, *others = ranks.map(ask, range(20))
    assert len(set(first)) == 1
    assert all(other == first for other in others)


def test_people_decide(client):
    put(client, value="fast", time_s=1.0)
    put(client, value="slow", time_s=2.0)
    fast = look_up(client)[0]["entry"]
    assert fast["value"] == "fast"
    decision = {"key": "k", "choice": fast["choice"], "state": "retired"}
    assert client.post("/v1/logs/triton:decide", json=decision).json()["entry"]["value"] == "slow"
    assert [entry["state"] for entry in client.get("/v1/logs/triton").json()["items"]] == ["candidate", "retired"]
    client.post("/v1/logs/triton:decide", json=decision | {"state": "approved"})
    assert look_up(client)[0]["entry"]["state"] == "approved"


def test_keys_are_for_their_namespaces(one, kit):
    """Who may use one can neither read another nor learn whether it is there."""
    put(one.client(), namespace="team-b")
    _, token = one.store.keys.create("a", [KeyScope.LOGS_READ, KeyScope.LOGS_WRITE], namespaces=["team-a"])
    mine = one.client(token)
    assert put(mine, namespace="team-a").json()["added"] == 1
    assert put(mine, namespace="team-a.gpu").json()["added"] == 1
    assert [space["name"] for space in mine.get("/v1/logs").json()] == ["team-a", "team-a.gpu"]
    for name in ("team-b", "team-ab", "nobody"):
        for answer in (
            put(mine, namespace=name),
            mine.get(f"/v1/logs/{name}"),
            mine.get(f"/v1/logs/{name}/k"),
            mine.get(f"/v1/logs/{name}:export"),
            mine.get(f"/v1/logs/{name}:snapshot"),
            mine.post(f"/v1/logs/{name}:lookup", json={"keys": ["k"]}),
            mine.post(f"/v1/logs/{name}:import", content=b""),
        ):
            said = kit.problem(answer, "missing-scope", 403)
            assert said["detail"] == f"this key is not for the namespace {name}"


def test_scopes(one, kit):
    put(one.client())
    reader = one.client(one.key(KeyScope.LOGS_READ))
    writer = one.client(one.key(KeyScope.LOGS_WRITE))
    kit.problem(put(reader), "missing-scope", 403)
    kit.problem(writer.get("/v1/logs/triton/k"), "missing-scope", 403)
    for client in (reader, writer):
        kit.problem(client.delete("/v1/logs/triton"), "missing-scope", 403)
        decision = {"key": "k", "choice": "00" * 16, "state": "retired"}
        kit.problem(client.post("/v1/logs/triton:decide", json=decision), "missing-scope", 403)
    approved = json.dumps({"key": "x", "value": "v", "state": "approved"})
    assert writer.post("/v1/logs/triton:import", content=approved).json()["added"] == 1
    assert reader.get("/v1/logs/triton/x").json()["state"] == "candidate"  # that is not for writers to say


def test_lists_go_through_all(client):
    for n in range(5):
        put(client, f"k{n}", environment=H100 if n % 2 else OLDER)
    first = client.get("/v1/logs/triton?limit=3").json()
    second = client.get(f"/v1/logs/triton?limit=3&cursor={first['next']}").json()
    assert [entry["key"] for entry in first["items"] + second["items"]] == ["k4", "k3", "k2", "k1", "k0"]
    assert second["next"] is None
    fingerprint = first["items"][0]["fingerprint"]
    assert [e["key"] for e in client.get(f"/v1/logs/triton?environment={fingerprint}").json()["items"]] == [
        "k4",
        "k2",
        "k0",
    ]


def test_an_export_is_an_import(client):
    put(client, "a", time_s=1.0, environment=H100)
    put(client, "a", value="w", time_s=2.0, environment=H100)
    put(client, "b", value=None, value_base64="gA==")
    text = client.get("/v1/logs/triton:export").text
    assert len(text.splitlines()) == 3
    assert client.post("/v1/logs/copy:import", content=text).json()["added"] == 3
    assert client.get("/v1/logs/copy:export").text == text
    revision = client.get("/v1/logs").json()[1]["revision"]
    put(client, "c")
    [line] = client.get(f"/v1/logs/triton:export?since={revision}").text.splitlines()
    assert json.loads(line)["key"] == "c"


@pytest.mark.parametrize("line", ["{", "[]", '{"key": "k"}', '{"key": "", "value": "v"}', "[" * 9000, "\udc80"])
def test_lines_that_are_no_entries(kit, client, line):
    text = "\n".join(['{"key": "k", "value": "v"}', line]).encode(errors="surrogateescape")
    said = kit.problem(client.post("/v1/logs/triton:import", content=text), "bad-records", 422)
    assert said["detail"].startswith("line 2: ")


def test_large_values_are_imported_too(client):
    """More than other bodies may have."""
    lines = [json.dumps({"key": f"k{n}", "value": "x" * (64 << 10)}) for n in range(80)]
    assert client.post("/v1/logs/big:import", content="\n".join(lines)).json()["added"] == 80


def test_a_number_of_many_digits_is_none(kit, client):
    line = '{"key": "k", "value": "v", "time_s": 1' + "0" * 400 + "}"
    said = kit.problem(client.post("/v1/logs/triton:import", content=line), "bad-records", 422)
    assert "time_s is no number of seconds" in said["detail"]
    kit.problem(client.get("/v1/logs/triton?key=%00"), "invalid-request", 422)


def test_a_snapshot_is_what_is_served(client):
    put(client, "a", time_s=2.0)
    put(client, "a", value="best", time_s=1.0)
    put(client, "b")
    put(client, "c", environment=H100)
    taken = client.get("/v1/logs/triton:snapshot")
    assert [(json.loads(line)["key"], json.loads(line)["value"]) for line in taken.text.splitlines()] == [
        ("a", "best"),
        ("b", "v"),
    ]
    headers = {"If-None-Match": taken.headers["etag"]}
    assert client.get("/v1/logs/triton:snapshot", headers=headers).status_code == 304
    put(client, "d")
    assert client.get("/v1/logs/triton:snapshot", headers=headers).status_code == 200


def test_a_namespace_has_a_quota(serve, kit):
    with serve(Options(log_quota=LogQuota(entries=1))) as one:
        assert put(one.client()).json()["added"] == 1
        said = kit.problem(put(one.client(), "other"), "log-full", 409)
        assert said["detail"].startswith("triton has 1 entries already")
        assert put(one.client(), time_s=1.0).json()["improved"] == 1


def test_a_namespace_is_deleted(client):
    put(client)
    put(client, "l")
    assert client.delete("/v1/logs/triton").json() == {"entries": 2}
    assert client.get("/v1/logs").json() == []
