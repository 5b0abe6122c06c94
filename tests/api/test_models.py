"""Models: sent by digest, read elsewhere, kept as they came."""

import base64
import hashlib
import threading
import time
from types import SimpleNamespace

import pytest

from tunewright.api.http.service import Options
from tunewright.db.access import KeyScope
from tunewright.tuner.models.reader import Reader

from ..waiting import wait_for
from .conftest import problem

HOSTILE = [
    "<script>alert(1)</script>",
    "'; DROP TABLE uploads; --",
    "\x1b[31mred\x07\r\nX-Injected: 1",
    "../../etc/passwd",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.exe \ud7ff\U0001f600",
    '"><img src=x onerror=alert(1)>',
]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(client, data: bytes, sha256: str | None = None, **settings):
    return client.put(f"/v1/models/{sha256 or digest(data)}", content=data, **settings)


def begin_put(one, line, sha256: str, length: int, start: str) -> None:
    """Send the head of an upload, and the start of its body."""
    line.sendall(
        f"PUT /v1/models/{sha256} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {one.token}\r\n"
        f"Content-Length: {length}\r\n\r\n{start}".encode()
    )


def test_a_model_is_kept(one, client):
    data = b"[8, 9]"
    first = put(client, data, params={"label": "nets/a.onnx"})
    assert (first.status_code, first.headers["location"]) == (201, f"/v1/models/{digest(data)}")
    model = first.json()
    assert (model["label"], model["size_bytes"], model["description"]) == ("nets/a.onnx", 6, {"extents": [8, 9]})
    assert put(client, data, params={"label": "other"}).status_code == 200
    assert client.get(f"/v1/models/{digest(data)}").json() == model
    assert b"".join(one.store.uploads.read(digest(data))) == data


def test_a_model_whose_digest_the_sender_does_not_know(one, client):
    data = b"[8, 9]"
    first = client.post("/v1/models", content=data, params={"label": "a.onnx"})
    assert (first.status_code, first.headers["location"]) == (201, f"/v1/models/{digest(data)}")
    assert first.json()["sha256"] == digest(data) and first.json()["label"] == "a.onnx"
    again = client.post("/v1/models", content=data, params={"label": "b.onnx"})
    assert (again.status_code, again.json()) == (200, first.json())
    assert b"".join(one.store.uploads.read(digest(data))) == data
    right = base64.b64encode(hashlib.sha256(b"[1]").digest()).decode()
    headers = {"Content-Digest": f"sha-256=:{right}:"}
    problem(client.post("/v1/models", content=b"[2]", headers=headers), "digest-mismatch", 422)
    problem(client.post("/v1/models", content=b"{"), "bad-model", 422)
    assert client.post("/v1/models", content=b"[1]", headers=headers).status_code == 201
    problem(one.client(one.key(KeyScope.JOBS_READ)).post("/v1/models", content=data), "missing-scope", 403)


def test_models_are_listed_in_pages(client):
    sent = [digest(data) for number in range(5) if put(client, data := f"[{number}]".encode()).status_code == 201]
    found, cursor = [], None
    for size in (2, 2, 1):
        page = client.get("/v1/models", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
        assert len(page["items"]) == size
        found += [item["sha256"] for item in page["items"]]
        cursor = page["next"]
    assert found == sent[::-1]
    assert cursor is None


@pytest.mark.parametrize("cursor", ["x", "é", "NDI", "%00", "A" * 200, "' OR 1=1"])
def test_what_is_no_cursor(client, cursor):
    problem(client.get("/v1/models", params={"cursor": cursor}), "invalid-request", 422)


def test_the_digest_must_fit(one, client):
    problem(put(client, b"[1]", digest(b"[2]")), "digest-mismatch", 422)
    right = base64.b64encode(hashlib.sha256(b"[1]").digest()).decode()
    wrong = base64.b64encode(hashlib.sha256(b"[2]").digest()).decode()
    problem(put(client, b"[1]", headers={"Content-Digest": f"sha-256=:{wrong}:"}), "digest-mismatch", 422)
    problem(put(client, b"[1]", headers={"Content-Digest": "sha-256=:!:"}), "digest-mismatch", 422)
    assert one.store.uploads.list() == []
    assert put(client, b"[1]", headers={"Content-Digest": f"md5=:AA==:, sha-256=:{right}:"}).status_code == 201
    assert put(client, b"[3]", headers={"Content-Digest": "md5=:AA==:"}).status_code == 201


@pytest.mark.parametrize("path", ["x", "0" * 63, "0" * 65, "G" * 64, "A" * 64])
def test_what_is_no_digest(client, path):
    problem(client.put(f"/v1/models/{path}", content=b""), "invalid-request", 422)


@pytest.mark.parametrize("path", ["%2e%2e%2f", "x/y"])
def test_what_is_no_path_of_a_model(client, path):
    problem(client.put(f"/v1/models/{path}", content=b""), "not-found", 404)


def test_models_that_are_not_here(client):
    problem(client.get(f"/v1/models/{'0' * 64}"), "no-such-model", 404)


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_body_that_is_too_large(serve, is_declared):
    with serve(Options(upload_bytes=1000, body_bytes=100)) as one:
        data = b"[" + b" " * 2000 + b"1]"
        content = data if is_declared else iter([data[:900], data[900:]])
        answer = one.client().put(f"/v1/models/{digest(data)}", content=content)
        problem(answer, "too-large", 413)
        content = data if is_declared else iter([data[:900], data[900:]])
        problem(one.client().post("/v1/models", content=content), "too-large", 413)
        assert put(one.client(), b"[" + b" " * 900 + b"1]").status_code == 201
        answer = one.client().post("/v1/jobs", json={"model": "x" * 200})
        problem(answer, "too-large", 413)
        assert one.store.uploads.list()[0].size_bytes == 903


def test_a_body_that_does_not_come(serve):
    with (
        serve(Options(body_s=0.3)) as one,
        one.line() as line,
    ):
        begin_put(one, line, "0" * 64, 10, "abc")
        started_s = time.monotonic()
        assert b" 408 " in line.recv(4000).split(b"\r\n")[0]
        assert time.monotonic() - started_s < 20


@pytest.mark.parametrize("label", HOSTILE)
def test_hostile_labels_are_text(one, client, label):
    answer = put(client, b"[5]", params={"label": label})
    assert answer.status_code == 201
    assert answer.json()["label"] == label
    assert client.get("/v1/models").json()["items"][0]["label"] == label
    assert "x-injected" not in answer.headers


def test_labels_have_a_length(client):
    problem(put(client, b"[5]", params={"label": "x" * 201}), "invalid-request", 422)


def test_what_no_model_is(serve):
    """The real reader, in its child."""
    with serve(make_reader=lambda: Reader(time_s=20)) as one:
        client = one.client()
        for data in (
            b"",
            b"\x00" * 100,
            b"\xff" * 1000,
            b"PK\x03\x04",
            b"\x08\x08\x12\x04junk:" + b"\x80" * 50,
            b"[8]",
        ):
            answer = put(client, data)
            problem(answer, "bad-model", 422)
            assert "Traceback" not in answer.text and "/tmp" not in answer.text
        assert client.get("/v1/models").json()["items"] == []


def test_large_bodies_are_few_at_once(serve):
    with (
        serve(Options(bodies=1)) as one,
        one.line() as line,
    ):
        begin_put(one, line, digest(b"[8]"), 3, "[")
        wait_for(lambda: one.service.upload_slots.borrowed_tokens == 1)
        answer = put(one.client(), b"[9]")
        problem(answer, "busy", 503)
        line.sendall(b"8]")
        assert b" 201 " in line.recv(4000).split(b"\r\n")[0]
        assert put(one.client(), b"[9]").status_code == 201


class SlowReader:
    """Reads nothing until it is told to go on; counts how many are at work."""

    def __init__(self, gate, reader):
        self._gate = gate
        self._reader = reader

    def describe(self, path):
        with self._gate.lock:
            self._gate.at_work += 1
            self._gate.most = max(self._gate.most, self._gate.at_work)
        self._gate.go.wait(60)
        with self._gate.lock:
            self._gate.at_work -= 1
        return self._reader.describe(path)

    def close(self):
        pass


def test_readers_are_few(serve, kit):
    """More models than readers: each waits for its turn, and other requests do not wait."""
    gate = SimpleNamespace(lock=threading.Lock(), go=threading.Event(), at_work=0, most=0)
    with serve(Options(readers=2), make_reader=lambda: SlowReader(gate, kit.reader())) as one:
        threads = [threading.Thread(target=put, args=(one.client(), f"[{n}]".encode())) for n in range(5)]
        for thread in threads:
            thread.start()
        wait_for(lambda: gate.most == 2)
        assert one.client().get("/v1/jobs").status_code == 200
        gate.go.set()
        for thread in threads:
            thread.join(60)
        assert gate.most == 2
        assert len(one.store.uploads.list()) == 5
