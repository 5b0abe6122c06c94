"""Releases of the log over HTTP: signed, promoted, and answered from."""

from __future__ import annotations

import base64
import json
import re
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tunewright.api.app import assemble
from tunewright.api.client import release_commands
from tunewright.api.client.connection import ServiceError
from tunewright.api.client.log import LogClient
from tunewright.api.client.releases import verify
from tunewright.api.http.problems import ProblemKind
from tunewright.api.http.release_key import ReleaseKey, ReleaseKeyFault, make_release_key
from tunewright.api.http.service import Options
from tunewright.db.access import KeyScope
from tunewright.db.logs.entry import ANYWHERE
from tunewright.db.logs.release import Manifest, parse_head
from tunewright.tuner.errors import Refused
from tunewright.tuner.settings import settings


def put(client, key="k", value="v", namespace="triton", **fields):
    assert client.put(f"/v1/logs/{namespace}/{key}", json={"value": value} | fields).status_code == 200


def create(client, name="one", namespace="triton", **fields):
    answer = client.post(f"/v1/logs/{namespace}:releases", json={"name": name} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def promote(client, name, namespace="triton"):
    answer = client.post(f"/v1/logs/{namespace}:promote", json={"release": name})
    assert answer.status_code == 200, answer.text
    return answer.json()["release"]


def look_up(client, *keys, namespace="triton", **fields):
    answer = client.post(f"/v1/logs/{namespace}:lookup", json={"keys": keys or ["k"]} | fields)
    assert answer.status_code == 200, answer.text
    data = answer.json()
    return data["release"], [item["entry"] and item["entry"]["value"] for item in data["items"]]


def test_what_is_promoted_is_what_is_served(client):
    put(client, value="first")
    release = create(client, notes="for the run")
    assert (release["namespace"], release["entries"], release["notes"]) == ("triton", 1, "for the run")
    put(client, value="second")
    put(client, "new")
    assert look_up(client, "k", "new") == (None, ["second", "v"])
    assert promote(client, "one") == "one"
    assert look_up(client, "k", "new") == ("one", ["first", None])
    assert client.get("/v1/logs/triton/k").json()["value"] == "first"
    assert client.get("/v1/logs/triton/k").json()["served"] is True
    assert client.get("/v1/logs/triton/new").status_code == 404
    [line] = client.get("/v1/logs/triton:snapshot").text.splitlines()
    assert json.loads(line)["value"] == "first"
    assert client.get("/v1/logs").json()[0]["release"] == "one"
    create(client, "two")
    assert promote(client, "two") == "two"
    assert look_up(client, "k", "new") == ("two", ["second", "v"])
    assert look_up(client, release="one") == ("one", ["first"])
    assert [one["name"] for one in client.get("/v1/logs/triton:releases").json()] == ["two", "one"]
    assert client.get("/v1/logs/triton:releases/two").json()["promoted"] is True
    back = {"release": "two"}
    assert client.post("/v1/logs/triton:rollback", json=back).json() == {"release": "one"}
    assert client.post("/v1/logs/triton:rollback", json=back).json() == {"release": "one"}
    assert promote(client, None) is None
    first = client.get("/v1/logs/triton:promotions?limit=3").json()
    second = client.get(f"/v1/logs/triton:promotions?cursor={first['next']}").json()
    assert [one["release"] for one in first["items"] + second["items"]] == [None, "one", "two", "one"]


def test_a_snapshot_is_another_one_after_a_promotion(client):
    put(client)
    create(client)
    tag = client.get("/v1/logs/triton:snapshot").headers["etag"]
    promote(client, "one")
    answer = client.get("/v1/logs/triton:snapshot", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.headers["etag"] != tag) == (200, True)
    again = client.get("/v1/logs/triton:snapshot", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


def test_keys_that_look_like_releases_are_keys(client):
    for key in ("releases", "releases/one", "one:promote"):
        put(client, key)
        assert client.get(f"/v1/logs/triton/{key}").json()["key"] == key


def test_clients_of_the_log_see_it(one, client, monkeypatch):
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)
    put(client, value="first")
    create(client)
    promote(client, "one")
    put(client, value="second")
    log = LogClient("triton", one.url, timeout_s=60.0)
    assert log.get("k") == b"first"
    create(client, "two")
    assert log.look_up(["k"], ANYWHERE, release="two")["k"].entry.value == b"second"


def test_an_export_is_checked_without_a_server(client, tmp_path):
    put(client, "a", time_s=1.0, environment={"device": "H100"})
    put(client, "b", value=None, value_base64="gA==")
    release = create(client)
    file = tmp_path / "release.jsonl"
    file.write_bytes(client.get("/v1/logs/triton:releases/one:export").content)
    key = client.get("/v1/release-key").json()["public_key"]
    assert release["public_key"] == key
    manifest = verify(file, key)
    assert (manifest.name, manifest.entries, manifest.sha256) == ("one", 2, release["sha256"])
    lines = file.read_text().partition("\n")[2]
    assert client.post("/v1/logs/copy:import", content=lines).json()["added"] == 2
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key))
    public.verify(base64.b64decode(release["signature"]), manifest.content)


def test_an_export_is_that_of_the_release_that_is_meant(client, tmp_path):
    """Another release of the same key is as well signed."""
    put(client)
    release = create(client)
    file = tmp_path / "release.jsonl"
    file.write_bytes(client.get("/v1/logs/triton:releases/one:export").content)
    assert verify(file, release["public_key"], "triton", "one").name == "one"
    for namespace, name in (("triton", "two"), ("tvm", "one"), (None, "two"), ("tvm", None)):
        with pytest.raises(Refused, match="it is the release one of triton, which is not what was asked for"):
            verify(file, release["public_key"], namespace, name)


def test_an_export_that_breaks_off_leaves_no_file(one, client, monkeypatch, tmp_path):
    monkeypatch.setenv("TUNEWRIGHT_SERVER", one.url)
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)
    for key in "abc":
        put(client, key)
    releases, file = one.store.releases, tmp_path / "release.jsonl"
    create(client)
    export, read = releases.export, releases._read

    def deleted(*args):
        if any(release.manifest.name == "one" for release in releases.list("triton")):
            releases.delete("triton", "one")
        return read(*args)

    with monkeypatch.context() as patch:
        patch.setattr(releases, "_read", deleted)
        with pytest.raises(ServiceError):
            release_commands.export(None, "triton", "one", file)
    create(client)
    with monkeypatch.context() as patch:  # a proxy, say, ends it well
        patch.setattr(releases, "export", lambda release: iter([next(export(release))]))
        with pytest.raises(ServiceError, match="the answer broke off"):
            release_commands.export(None, "triton", "one", file)
    assert list(tmp_path.glob("*release*")) == []
    assert release_commands.export(None, "triton", "one", file)["entries"] == 3


@pytest.mark.parametrize(
    "tamper",
    [
        lambda head, lines: [head, *lines[:-1]],
        lambda head, lines: [head, *lines, lines[0]],
        lambda head, lines: [head, *reversed(lines)],
        lambda head, lines: [head, lines[0].replace(b'"v"', b'"w"'), *lines[1:]],
        lambda head, lines: [head, *lines[:-1], lines[-1] + b"\n"],
        lambda head, lines: [head, *lines[:-1], lines[-1].rstrip(b"\n")],
        lambda head, lines: [head.replace(b'"one"', b'"two"'), *lines],
        lambda head, lines: [head.replace(b'"entries":3', b'"entries":2'), *lines[:-1]],
        lambda head, lines: [head.replace(b'"triton"', b'"others"'), *lines],
        lambda head, lines: [
            re.sub(b'"created_at":"[^"]+"', b'"created_at":"0001-01-01T00:00:00+23:59"', head),
            *lines,
        ],
        lambda head, lines: lines,
        lambda head, lines: [b"[]\n", *lines],
        lambda head, lines: [b"[" * 9000],
        lambda head, lines: [b"\xff\n", *lines],
        lambda head, lines: [],
    ],
)
def test_exports_that_were_tampered_with_are_refused(client, tmp_path, tamper):
    for key in "abc":
        put(client, key)
    release = create(client)
    head, *lines = client.get("/v1/logs/triton:releases/one:export").content.splitlines(keepends=True)
    file = tmp_path / "release.jsonl"
    file.write_bytes(b"".join([head, *lines]))
    verify(file, release["public_key"])
    file.write_bytes(b"".join(tamper(head, lines)))
    with pytest.raises(Refused) as refused:
        verify(file, release["public_key"])
    assert len(str(refused.value).splitlines()) == 1


def test_a_release_that_another_key_signed_is_refused(client, tmp_path):
    """Also where the file names that key as its own."""
    put(client)
    release = create(client)
    head, *lines = client.get("/v1/logs/triton:releases/one:export").content.splitlines(keepends=True)
    manifest, _ = parse_head(head)
    forger = ReleaseKey(tmp_path / "forged")
    signature = forger.sign(manifest.content)
    forged = json.dumps(
        {"manifest": manifest.to_json(), "public_key": signature.public_key, "signature": signature.signature}
    )
    file = tmp_path / "release.jsonl"
    file.write_bytes(forged.encode() + b"\n" + b"".join(lines))
    assert isinstance(verify(file, forger.public_key), Manifest)
    with pytest.raises(Refused, match="not signed by that key"):
        verify(file, release["public_key"])
    for key in ("", "x", "A" * 44, base64.b64encode(b"short").decode()):
        with pytest.raises(Refused):
            verify(file, key)


def test_the_difference_is_told_line_by_line(client):
    put(client, "same")
    put(client, "k", "slow", time_s=2.0)
    put(client, "gone", environment={"device": "H100"})
    create(client, "one")
    put(client, "k", "fast", time_s=1.0)
    put(client, "more")
    create(client, "two")
    *changes, last = map(json.loads, client.get("/v1/logs/triton:releases/one:diff?with=two").text.splitlines())
    assert last == {"changes": 2}
    told = {change["key"]: change for change in changes}
    assert (told["more"]["change"], told["more"]["before"]) == ("added", None)
    assert told["k"]["change"] == "changed"
    assert (told["k"]["before"]["time_s"], told["k"]["after"]["time_s"]) == (2.0, 1.0)
    put(client, "later")
    lines = client.get("/v1/logs/triton:releases/two:diff").text.splitlines()
    assert [json.loads(line).get("key") for line in lines] == ["later", None]
    back = client.get("/v1/logs/triton:releases/two:diff?with=one").text.splitlines()
    assert sorted(json.loads(line)["change"] for line in back[:-1]) == ["changed", "removed"]


def test_what_is_not_there_or_in_the_way(kit, client):
    kit.problem(client.post("/v1/logs/triton:releases", json={"name": "one"}), "no-such-namespace", 404)
    kit.problem(client.get("/v1/logs/triton:releases"), "no-such-namespace", 404)
    kit.problem(client.get("/v1/logs/triton:promotions"), "no-such-namespace", 404)
    put(client)
    for answer in (
        client.get("/v1/logs/triton:releases/one"),
        client.get("/v1/logs/triton:releases/one:export"),
        client.get("/v1/logs/triton:releases/one:diff"),
        client.delete("/v1/logs/triton:releases/one"),
        client.post("/v1/logs/triton:promote", json={"release": "one"}),
        client.post("/v1/logs/triton:rollback", json={"release": "one"}),
        client.post("/v1/logs/triton:lookup", json={"keys": ["k"], "release": "one"}),
    ):
        assert kit.problem(answer, "no-such-release", 404)["detail"] == "triton has no release one"
    create(client)
    kit.problem(client.get("/v1/logs/triton:releases/one:diff?with=two"), "no-such-release", 404)
    promote(client, "one")
    for answer in (
        client.post("/v1/logs/triton:releases", json={"name": "one"}),
        client.delete("/v1/logs/triton:releases/one"),
        client.delete("/v1/logs/triton"),
    ):
        assert "one" in kit.problem(answer, "release-conflict", 409)["detail"]
    promote(client, None)
    kit.problem(client.post("/v1/logs/triton:rollback", json={"release": "two"}), "no-such-release", 404)
    assert client.delete("/v1/logs/triton:releases/one").status_code == 204
    assert client.delete("/v1/logs/triton").json() == {"entries": 1}


def test_bad_requests_are_told_where(kit, client):
    put(client)
    for name in ("", "A", "x" * 65, "-a", "a b"):
        said = kit.problem(client.post("/v1/logs/triton:releases", json={"name": name}), "invalid-request", 422)
        assert said["errors"][0]["pointer"] == "#/name"
    kit.problem(client.get("/v1/logs/triton:releases/A"), "invalid-request", 422)
    for environments in ([], ["00"], ["00" * 16]):
        body = {"name": "one", "environments": environments}
        said = kit.problem(client.post("/v1/logs/triton:releases", json=body), "invalid-request", 422)
        assert said["errors"][0]["pointer"].startswith("#/environments")
    kit.problem(client.post("/v1/logs/triton:promote", json={}), "invalid-request", 422)
    kit.problem(
        client.post("/v1/logs/triton:releases", json={"name": "a", "notes": "x" * 2001}), "invalid-request", 422
    )


def test_scopes_and_namespaces(one, kit):
    put(one.client())
    create(one.client())
    promote(one.client(), "one")
    reader = one.client(one.key(KeyScope.LOGS_READ, KeyScope.LOGS_WRITE))
    _, token = one.store.keys.create(
        "a", [scope for scope in KeyScope if scope.value.startswith("logs:")], namespaces=["x"]
    )
    stranger = one.client(token)
    looks = ["", "/one", "/one:export", "/one:diff"]
    for path in looks:
        assert reader.get(f"/v1/logs/triton:releases{path}").status_code == 200
    assert reader.get("/v1/logs/triton:promotions").status_code == 200
    assert reader.get("/v1/logs/triton:audit").status_code == 200

    def changes(client):
        yield client.post("/v1/logs/triton:releases", json={"name": "two"})
        yield client.post("/v1/logs/triton:promote", json={"release": None})
        yield client.post("/v1/logs/triton:rollback", json={"release": "one"})
        yield client.delete("/v1/logs/triton:releases/one")

    for answer in changes(reader):
        kit.problem(answer, "missing-scope", 403)
    for answer in (*changes(stranger), *(stranger.get(f"/v1/logs/triton:releases{path}") for path in looks)):
        said = kit.problem(answer, "missing-scope", 403)
        assert said["detail"] == "this key is not for the namespace triton"
    for path in (":promotions", ":audit"):
        kit.problem(stranger.get(f"/v1/logs/triton{path}"), "missing-scope", 403)
    assert look_up(one.client()) == ("one", ["v"])
    assert len(one.client().get("/v1/logs/triton:releases").json()) == 1


@pytest.mark.slow
def test_lookups_during_promotions_are_each_of_one_release(client):
    keys = [f"k{n}" for n in range(200)]
    for name in ("one", "two"):
        lines = "\n".join(json.dumps({"key": key, "value": name}) for key in keys)
        assert client.post("/v1/logs/triton:import", content=lines).status_code == 200
        create(client, name)
    promote(client, "one")
    ended, start = threading.Event(), threading.Barrier(21)

    def steps():
        start.wait()
        for name in islice(cycle(("two", "one")), 300):  # a key may change no more within a minute
            promote(client, name)
            if ended.is_set():
                return

    def look(_):
        start.wait()
        for _ in range(5):
            release, values = look_up(client, *keys)
            assert set(values) == {release}

    with ThreadPoolExecutor(21) as threads:
        promoting = threads.submit(steps)
        try:
            list(threads.map(look, range(20)))
        finally:
            ended.set()
        promoting.result()
    assert len(client.get("/v1/logs/triton:promotions").json()["items"]) > 1


def test_the_key_is_a_file_that_nobody_else_may_read(client, monkeypatch, tmp_path):
    path = tmp_path / "home" / "release_key"
    first = ReleaseKey(path)
    assert not path.exists()
    signature = first.sign(b"content")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["release_key"]
    assert ReleaseKey(path).sign(b"content") == signature  # of another process
    monkeypatch.setenv("TUNEWRIGHT_RELEASE_KEY", str(path))
    assert settings().release_key == path
    monkeypatch.delenv("TUNEWRIGHT_RELEASE_KEY")
    assert settings().release_key == settings().home / "release_key"


def test_of_processes_that_make_it_at_once_one_wins(tmp_path):
    keys = [ReleaseKey(tmp_path / "release_key") for _ in range(8)]
    start = threading.Barrier(8)

    def make(key):
        start.wait()
        return key.public_key

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(make, keys))) == 1


def test_a_key_that_people_have_placed_is_not_made_where_it_is_missing(one, kit, monkeypatch, tmp_path):
    """Else each of several services would make one of its own."""
    path = tmp_path / "keys" / "release_key"
    monkeypatch.setenv("TUNEWRIGHT_RELEASE_KEY", str(path))
    service = assemble(one.store, Options()).state.service
    with pytest.raises(ReleaseKeyFault, match="release_key is missing: tunewright log release key --make"):
        _ = service.release_key.public_key
    assert not path.exists()
    monkeypatch.setattr(one.service, "release_key", service.release_key)
    kit.problem(one.client().get("/v1/release-key"), "no-release-key", 503)
    assert "`tunewright log release key --make FILE`" in ProblemKind.UNSIGNED.remedy
    made = make_release_key(path)
    assert service.release_key.public_key == made.public_key  # without another start
    with pytest.raises(FileExistsError):
        make_release_key(path)
    assert ReleaseKey(path).public_key == made.public_key


def test_a_key_that_is_made_is_logged_and_on_the_disk(monkeypatch, tmp_path, caplog):
    synced: list[Path] = []
    monkeypatch.setattr("tunewright.api.http.release_key.sync", synced.append)
    path = tmp_path / "home" / "release_key"
    for _ in range(2):
        _ = ReleaseKey(path).public_key
    [record] = caplog.records
    assert (record.getMessage(), record.file) == ("a release key was made", str(path))
    assert synced == [path.parent]


@pytest.mark.parametrize("fault", ["readable", "text", "other", "folder"])
def test_a_key_that_can_not_be_used_is_never_replaced(one, kit, monkeypatch, tmp_path, fault):
    path = tmp_path / "release_key"
    if fault == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"no key")
        path.chmod(0o644 if fault == "readable" else 0o600)
    if fault == "other":
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        other = X25519PrivateKey.generate()
        path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(ReleaseKeyFault):
        _ = ReleaseKey(path).public_key
    client = one.client()
    put(client)
    monkeypatch.setattr(one.service, "release_key", ReleaseKey(path))
    kit.problem(client.get("/v1/release-key"), "no-release-key", 503)
    said = kit.problem(client.post("/v1/logs/triton:releases", json={"name": "one"}), "no-release-key", 503)
    assert str(tmp_path) not in json.dumps(said)
    assert client.get("/v1/logs/triton:releases").json() == []
    if fault != "folder":
        assert len(path.read_bytes()) > 0


def test_services_may_share_a_key(tmp_path):
    key = Ed25519PrivateKey.generate()
    path = tmp_path / "shared"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o440)
    raw = key.public_key().public_bytes_raw()
    assert ReleaseKey(path).public_key == base64.b64encode(raw).decode()
