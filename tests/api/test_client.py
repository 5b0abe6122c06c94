"""The client, against a real service, and against servers that are not as they should be."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from tunewright.api.client import Client, Job, JobEvent, ServiceError
from tunewright.api.client import JobTask as Task
from tunewright.api.client.connection import failure_text, http_client, key_for
from tunewright.api.http.schemas.jobs import JobSubmitted
from tunewright.codegen.codec import from_json
from tunewright.db.access import KeyScope
from tunewright.db.job import EventKind, JobSpec, JobState, NewEvent, SearchBudget, SpecTask
from tunewright.tuner.errors import Refused

from ..waiting import wait_for

JOB = {
    "id": 7, "state": "running", "model": "a" * 64, "label": "m.onnx", "target": "b" * 64,
    "tasks": [{"key": "c" * 64, "op": "Conv", "occurrences": 2}], "trials": 100, "minutes": None, "until": None,
    "settings": {}, "priority": 0,
    "spent_s": 1.5, "attempts": 1, "holder": "h", "wish": None, "progress": None, "result": None, "error": "",
    "created_at": "2026-11-20T09:30:00Z", "updated_at": "2026-11-20T09:30:00Z",
}  # fmt: skip


@pytest.fixture
def mine(one: Any) -> Iterator[Client]:
    """A client of the service under test."""
    with Client(one.url, one.token, patience_s=5) as client:
        yield client


def queue(one: Any, kit: Any, extent: int = 8, label: str = "m.onnx") -> int:
    """A job that is waiting."""
    task, target = kit.task(extent), kit.target()
    one.store.add_task(task)
    spec = JobSpec("", target.key, (SpecTask(task.key, 1),), {"extent": extent})
    return int(one.store.jobs.submit(spec, label, SearchBudget(10)).job.id)


def test_jobs_are_listed_and_steered(one: Any, kit: Any, mine: Client) -> None:
    ids = [queue(one, kit, extent) for extent in (8, 9, 10)]
    assert [job.id for job in mine.jobs()] == ids[::-1]
    assert [job.id for job in mine.jobs(limit=2)] == ids[:0:-1]
    assert mine.pause(ids[0]).state == "paused"
    assert [job.id for job in mine.jobs("paused")] == ids[:1]
    assert mine.resume(ids[0]).state == "queued"
    assert mine.prioritise(ids[1], -3).priority == -3
    assert mine.cancel(ids[2]).is_finished
    job = mine.job(ids[2])
    assert (job.state, job.tasks, job.trials, job.label) == (
        "cancelled",
        (Task(kit.task(10).key, "Relu", 1),),
        10,
        "m.onnx",
    )
    assert from_json(Job, job.to_json()) == job
    with pytest.raises(ServiceError, match="The job is finished") as found:
        mine.pause(ids[2])
    assert (found.value.kind, found.value.status) == ("job-finished", 409)


def test_names_of_jobs_and_what_they_are_found_by(one: Any, kit: Any, mine: Client) -> None:
    ids = [queue(one, kit, extent) for extent in (8, 9)]
    assert mine.change(ids[0], label="new", add_tags=["b", "a"], notes="why").tags == ("a", "b")
    assert mine.change(ids[0], remove_tags=["b"]).tags == ("a",)
    job = mine.change(ids[0], tags=["c"])
    assert (job.label, job.tags, job.notes, job.owner) == ("new", ("c",), "why", None)
    assert from_json(Job, job.to_json()) == job
    for conditions in ({"tags": ["c"]}, {"search": "WHY"}):
        assert [found.id for found in mine.jobs(**conditions)] == ids[:1]
    assert list(mine.jobs(owner="me")) == list(mine.jobs(tags=["a", "c"])) == []
    for wrong in ("nightly", 5, [5], None):
        with pytest.raises(Refused, match="it must be a list of texts, such as"):
            mine.change(ids[0], add_tags=wrong)  # type: ignore[arg-type]


def test_a_job_goes_on_for_longer(one: Any, kit: Any, mine: Client) -> None:
    number = queue(one, kit)
    assert (mine.extend(number, trials=5).trials, mine.extend(number, trials=1).is_new) == (15, False)
    with pytest.raises(ServiceError, match="has no limit of minutes to raise; it has: 16 trials"):
        mine.extend(number, minutes=10)
    with pytest.raises(Refused, match="neither minutes nor trials"):
        mine.extend(number)
    mine.cancel(number)
    job = mine.extend(number, minutes=10)
    assert (job.is_new, job.minutes, job.trials, job.owner and job.owner.name) == (True, 10, None, "all")


def test_fields_come_in_the_order_of_the_server() -> None:
    assert [field.name for field in fields(Job)] == list(JobSubmitted.model_fields)


def test_lists_go_over_pages(one: Any, kit: Any, mine: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunewright.api.client.client.PAGE", 2)
    ids = [queue(one, kit, extent) for extent in range(8, 13)]
    assert [job.id for job in mine.jobs()] == ids[::-1]
    assert [job.id for job in mine.jobs(limit=3)] == ids[:1:-1]


def test_refusals_are_one_line(one: Any, mine: Client) -> None:
    with pytest.raises(ServiceError, match="There is no such job") as found:
        mine.job(99)
    assert found.value.kind == "no-such-job"
    with Client(one.url, one.key(KeyScope.METRICS)) as other, pytest.raises(ServiceError, match="jobs:read"):
        other.job(1)
    with Client(one.url, "tw_nobody") as nobody, pytest.raises(ServiceError) as refused:
        nobody.job(1)
    assert (refused.value.kind, refused.value.status) == ("no-key", 401)
    assert str(refused.value).isprintable()
    assert isinstance(refused.value, Refused)


def test_events_are_followed_to_the_end(one: Any, kit: Any, mine: Client) -> None:
    job_id = queue(one, kit)
    jobs = one.store.jobs
    seen: list[JobEvent] = []
    thread = threading.Thread(target=lambda: seen.extend(mine.events(job_id)))
    thread.start()
    lease = jobs.lease([kit.target().key], "tester")
    improved = {"task_key": kit.task().key, "op": "R\u2028elu", "best_ms": 1.0, "default_ms": 2.0, "trial": 1}
    jobs.renew(lease, events=[NewEvent(EventKind.IMPROVED, improved)])
    wait_for(lambda: any(event.kind == "improved" for event in seen))
    jobs.finish(lease, JobState.SUCCEEDED, result={"tasks": []})
    thread.join(60)
    assert not thread.is_alive()
    assert [event.number for event in seen] == list(range(1, len(seen) + 1))
    assert [event.kind for event in seen] == ["queued", "started", "improved", "succeeded"]
    assert seen[2].data == improved
    assert list(mine.events(job_id, after=2)) == seen[2:]
    assert list(mine.events(job_id, after=seen[-1].number)) == []
    assert mine.wait(job_id).result == {"tasks": []}


def test_lookups_never_fail(kit: Any) -> None:
    with Client("http://127.0.0.1:1") as client:
        found = client.lookup([kit.task()], kit.target())
        assert found.keys() == {kit.task().key}
        assert client.lookup([kit.task()], kit.target()) == found


def test_lookups_share_their_memory(one: Any, kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all clients that found their key by themselves; who has a key of their own has a memory of their own."""
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)
    for own, shares in ((None, True), (one.token, False)):
        with Client(one.url, own) as client:
            client.lookup([kit.task()], kit.target())
            assert (client._lookups is None) is shares


def test_a_key_with_strange_letters() -> None:
    with pytest.raises(ServiceError, match="letters that no key has"):
        Client("http://127.0.0.1:1", "schlüssel")


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    start = time.monotonic()
    with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(ServiceError, match="nobody answers there"):
        client.job(1)
    assert time.monotonic() - start < 20  # less than there is patience for
    with Client(f"http://127.0.0.1:{port}", patience_s=0.5) as client, pytest.raises(ServiceError):
        list(client.events(1))


# Servers with faults of their own

Reply = Callable[[BaseHTTPRequestHandler], None]


class Faulty:
    """A server that gives these replies, one a request, and the last one for ever."""

    def __init__(self, *replies: Reply) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.requests.append((self.command, self.path, headers, body))
                replies[min(len(outer.requests), len(replies)) - 1](self)

            def log_message(self, *arguments: Any) -> None:
                pass

        for method in ("GET", "POST", "PUT", "PATCH"):
            setattr(Handler, f"do_{method}", Handler.answer)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def reply(status: int, data: Any = None, kind: str = "application/json", **headers: str) -> Reply:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return send


def problem(status: int, slug: str, **headers: str) -> Reply:
    data = {"type": f"/problems/{slug}", "title": "A title", "status": status, "detail": "what it is"}
    return reply(status, data, "application/problem+json", **headers)


def cut(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def stream(*events: tuple[int, str], end: bool = True, raw: bytes = b"") -> Reply:
    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(b": ping\r\n\r\n" + raw)
        for number, kind in events:
            data = {"job": 7, "number": number, "kind": kind, "data": {}, "created_at": "2026-11-20T09:30:00Z"}
            text = json.dumps(data)
            handler.wfile.write(f"event: {kind}\nid: {number}\ndata: {text[:20]}\ndata:{text[20:]}\n\n".encode())
        handler.wfile.flush()
        handler.close_connection = True

    return send


@pytest.mark.slow
def test_a_passing_fault_is_waited_for() -> None:
    answers = (
        problem(503, "busy", Retry_After="0"),
        cut,
        problem(429, "rate-limited", Retry_After="1"),
        reply(200, JOB),
    )
    said: list[ServiceError] = []
    with Faulty(*answers) as server, Client(server.url, "k", waits=said.append) as client:
        start = time.monotonic()
        assert client.job(7).id == 7
        assert time.monotonic() - start >= 1
        assert len(server.requests) == 4
    assert [error.kind for error in said] == ["busy", "", "rate-limited"]


def test_patience_ends() -> None:
    with Faulty(problem(503, "busy", Retry_After="600")) as server, Client(server.url, patience_s=60) as client:
        start = time.monotonic()
        with pytest.raises(ServiceError, match="A title: what it is"):
            client.job(7)
        assert time.monotonic() - start < 30  # 600 s are more than there is patience for
        assert len(server.requests) == 1


def test_a_fault_of_the_request_is_not_repeated() -> None:
    with Faulty(problem(422, "invalid-request")) as server, Client(server.url) as client:
        with pytest.raises(ServiceError):
            client.cancel(7)
        assert len(server.requests) == 1


@pytest.mark.slow
def test_a_submission_is_repeated_under_one_name(tmp_path: Path) -> None:
    answers = (reply(201, {}), problem(503, "busy", Retry_After="0"), cut, reply(202, JOB))
    with Faulty(*answers) as server, Client(server.url, "k") as client:
        job = client.submit(tiny_model(), trials=5, dims={"n": 2}, label="x" * 300)
        assert job.id == 7
        put, *posts = server.requests
        assert put[0] == "PUT"
        assert len(put[1]) < 300
        assert put[2]["authorization"] == "Bearer k"
        assert len({request[2]["idempotency-key"] for request in posts}) == 1
        assert {request[3] for request in posts} == {posts[0][3]}
        asked = json.loads(posts[0][3])
        assert asked["label"] == "x" * 200
        assert (asked["trials"], asked["dims"], asked["target"]) == (5, {"n": 2}, None)


@pytest.mark.slow
def test_an_event_stream_is_taken_up_where_it_broke() -> None:
    streams = (
        stream((1, "queued"), (2, "started")),
        cut,
        problem(503, "busy"),
        stream((2, "started"), (3, "improved")),
        stream((4, "succeeded")),
    )
    with Faulty(*streams) as server, Client(server.url, patience_s=20) as client:
        events = list(client.events(7))
        assert [(event.number, event.kind) for event in events] == [
            (1, "queued"), (2, "started"), (3, "improved"), (4, "succeeded")
        ]  # fmt: skip
        assert [request[2].get("last-event-id") for request in server.requests] == [None, "2", "2", "2", "3"]


def test_a_refused_stream_is_not_repeated() -> None:
    with Faulty(problem(404, "no-such-job")) as server, Client(server.url) as client:
        with pytest.raises(ServiceError, match="A title"):
            list(client.events(7))
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, b"<html>", "text/html"),
        reply(200, b"{", "application/json"),
        reply(200, b"[" * 100_000, "application/json"),
        reply(200, []),
        reply(200, {"id": "seven"}),
        reply(200, {**JOB, "tasks": 3}),
        reply(200, {**JOB, "created_at": 3}),
        reply(200, {**JOB, "settings": "x"}),
        reply(302, {}, Location="http://127.0.0.1:1/"),
        reply(404, b"nginx", "text/html"),
        reply(404, b'"text"', "application/problem+json"),
    ],
)
def test_what_is_no_server_of_ours(answer: Reply) -> None:
    with Faulty(answer) as server, Client(server.url, patience_s=0.1) as client, pytest.raises(ServiceError) as found:
        client.job(7)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("raw", [b"data: {\n\n", b"data: 5\n\n", b'data: {"job": 1}\n\n'])
def test_events_that_make_no_sense(raw: bytes) -> None:
    with (
        Faulty(stream(raw=raw)) as server,
        Client(server.url) as client,
        pytest.raises(ServiceError, match="not asked"),
    ):
        list(client.events(7))


def test_a_line_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunewright.api.client.connection.LINE_BYTES", 1000)
    faulty = Faulty(stream(raw=b"data: " + b"x" * 5000))
    with (
        faulty as server,
        Client(server.url, patience_s=0.1) as client,
        pytest.raises(ServiceError, match="a line of more than 1000 bytes"),
    ):
        list(client.events(7))


def test_hostile_text_is_shown_as_text() -> None:
    data = {"type": "/problems/x", "title": "\x1b[31m", "status": 400, "detail": "a\nb" + "c" * 9999}
    faulty = Faulty(reply(400, data, "application/problem+json"))
    with faulty as server, Client(server.url) as client, pytest.raises(ServiceError) as found:
        client.job(7)
    assert str(found.value).isprintable()
    assert len(str(found.value)) <= 500


# Keys


def test_keys_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    monkeypatch.delenv("TUNEWRIGHT_API_KEY", raising=False)
    assert key_for("http://127.0.0.1:8433") is None
    (tmp_path / "local_key").write_text("tw_local\n")
    assert key_for("http://127.0.0.1:8433") == "tw_local"
    assert key_for("http://localhost:8433") == "tw_local"
    assert key_for("https://tuner.example.org") is None  # it is no business of other servers
    assert key_for("http://127.evil.example.org") is None
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", "tw_mine")
    assert key_for("http://127.0.0.1:8433") == "tw_mine"
    assert key_for("https://tuner.example.org") == "tw_mine"


@pytest.mark.parametrize(("server", "is_read"), [("http://10.0.0.1:8433", False), ("https://10.0.0.1", True)])
def test_authorities_are_read_where_there_is_tls(server: str, is_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def create(**given: object) -> ssl.SSLContext:
        made.append(given)
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    monkeypatch.setattr(ssl, "create_default_context", create)
    http_client(server, None, 1.0).close()
    assert bool(made) is is_read


def test_importing_it_is_light() -> None:
    heavy = {"onnx", "llvmlite", "xgboost", "sqlalchemy", "ray", "fastapi", "google.protobuf"}
    code = (
        "import sys; import tunewright.api.client as c; client = c.Client('http://127.0.0.1:1');"
        f"print(sorted({heavy!r} & sys.modules.keys()))"
    )
    out = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def tiny_model() -> bytes:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


@pytest.mark.parametrize("wrong", ["x", "7", None, 1.5, True, 0, -3, 2**53, 10**30])
def test_what_is_no_number_of_a_job(wrong: Any) -> None:
    with Client("http://127.0.0.1:1", patience_s=0) as client:
        for call in (client.job, client.cancel, client.wait, lambda one: client.prioritise(one, 1), client.change):
            with pytest.raises(Refused, match=r"number of a job is .*; it must be .* from 1 to 9,007,199,254,740,991$"):
                call(wrong)


def test_a_target_is_named_as_on_the_command_line(one: Any, kit: Any, mine: Client, tmp_path: Path) -> None:
    kit.enlist(one.store, kit.target())
    key = kit.target().key
    assert [mine.target_key(given) for given in (None, key, key[:9], str(kit.target()))] == [None, key, key, key]
    with pytest.raises(Refused, match=r"^target tpu: no such target is at work; at work: cpu:znver5:"):
        mine.submit(tmp_path / "none.onnx", target="tpu")


def test_settings_of_a_submission_are_what_they_mean() -> None:
    with Client("http://127.0.0.1:1", patience_s=0) as client:
        with pytest.raises(Refused, match=r"^with_weights is 'no'; it must be True or False$"):
            client.submit(b"", with_weights="no")  # type: ignore[arg-type]
        with pytest.raises(Refused, match=r"^label is a int; it must be a text, such as net\.onnx$"):
            client.submit(b"", label=5)  # type: ignore[arg-type]
        with pytest.raises(Refused, match=r"^tags is 'nightly'; it must be a list of texts"):  # before anything is sent
            client.submit(b"", tags="nightly")


@pytest.mark.parametrize("wrong", ["x", 5, [1], None])
def test_what_is_no_target_of_a_lookup(wrong: Any) -> None:
    with (
        Client("http://127.0.0.1:1") as client,
        pytest.raises(ValueError, match="give a Target, or the JSON object"),
    ):
        client.lookup([], wrong)


def test_failures_of_connections_are_told_in_words() -> None:
    """Whatever a library raises, nothing of its names or of the system's numbers is told."""
    unknown = httpx.ConnectError("[Errno -2] Name or service not known")
    unknown.__cause__ = socket.gaierror(-2, "Name or service not known")
    untrusted = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]")
    untrusted.__context__ = ssl.SSLError(1, "certificate verify failed")
    texts = {
        failure_text(error)
        for error in (
            unknown,
            untrusted,
            httpx.ConnectError("[Errno 111] Connection refused"),
            httpx.ReadTimeout("x"),
            httpx.InvalidURL("x"),
            httpx.RemoteProtocolError("x"),
            zlib.error("x"),
            OSError(104, "Connection reset by peer"),
        )
    }
    assert len(texts) == 7 and not re.search(r"Errno|Error|SSL:|x$", " ".join(texts)), texts
