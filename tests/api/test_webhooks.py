"""Webhooks: what a receiver on loopback gets, over real HTTP, and what is not sent."""

import json
import re
import socket
import ssl
import threading
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tunewright.api.http import webhook_hosts, webhook_sender
from tunewright.api.http.service import Options
from tunewright.api.http.webhook_hosts import WebhookHosts
from tunewright.api.http.webhook_sender import MOST_ADDRESSES, SLOTS
from tunewright.db.access import KeyScope
from tunewright.db.errors import Unreachable
from tunewright.db.job import EventKind, JobState, NewEvent
from tunewright.db.store import open_store
from tunewright.db.webhooks import ATTEMPTS_OF_OWNER, MOST_WEBHOOKS, PAUSES_S, TAKEN_S, WEBHOOK_KINDS

from ..waiting import wait_for
from .receiver import receiving, status
from .test_operations import numbers

LOOPBACK = WebhookHosts.of("127.0.0.0/8")

DOC = Path(__file__).resolve().parents[2] / "docs" / "webhooks.md"


@pytest.fixture(autouse=True)
def _prompt(monkeypatch):
    monkeypatch.setattr(webhook_sender, "POLL_S", 0.02)


@pytest.fixture
def receiver():
    with receiving() as started:
        yield started


@pytest.fixture
def one(serve, kit):
    with serve(Options(webhook_hosts=LOOPBACK)) as started:
        kit.enlist(started.store, kit.target())
        yield started


@pytest.fixture
def is_genuine():
    """The function of the page, as it stands there."""
    [code] = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    return names["is_genuine"]


@pytest.fixture
def later(one):
    """A function that lets time pass for the database."""
    passed = timedelta()

    def go(time_s):
        nonlocal passed
        passed += timedelta(seconds=time_s)

    one.store.database.clock = lambda: datetime.now(UTC) + passed
    return go


def create(client, url, *kinds):
    answer = client.post("/v1/webhooks", json={"url": url} | ({"on": kinds} if kinds else {}))
    assert answer.status_code == 201, answer.text
    return answer.json()


def deliveries(client, webhook):
    return client.get(f"/v1/webhooks/{webhook['id']}/deliveries").json()["items"]


def settled(client, webhook):
    """The newest delivery, once an attempt has failed, or it is over."""

    def look():
        [delivery, *_] = deliveries(client, webhook)
        return delivery if delivery["error"] or delivery["state"] != "waiting" else None

    return wait_for(look)


def answered(client, webhook, code):
    """The newest delivery, once it was answered with this status."""
    return wait_for(lambda: next((d for d in deliveries(client, webhook)[:1] if d["status"] == code), None))


def ended(one, client, kit, state=JobState.SUCCEEDED, **more):
    """A job of the client's that came to its end."""
    job = client.post("/v1/jobs", json={"model": kit.send(client, 8), "label": "<net>.onnx"}).json()
    lease = one.store.jobs.lease([kit.target().key], "h")
    return one.store.jobs.finish(lease, state, **more), job


class TestDelivery:
    def test_a_receiver_knows_who_sent_it(self, one, client, kit, receiver, is_genuine):
        webhook = create(client, receiver.url())
        job, _ = ended(one, client, kit, result={"speedup": 1.5, "tasks": []})
        [request] = receiver.wait(1)
        assert is_genuine(webhook["secret"], request.headers, request.body)
        for wrong in (
            (webhook["secret"][:-5] + "AAAA=", request.headers, request.body),
            (webhook["secret"], request.headers, request.body + b" "),
            (webhook["secret"], request.headers | {"webhook-id": "another"}, request.body),
            (webhook["secret"], request.headers | {"webhook-timestamp": "1"}, request.body),
        ):
            assert not is_genuine(*wrong)
        assert (request.path, request.headers["content-type"]) == ("/hook", "application/json")
        assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
        content = json.loads(request.body)
        assert content["id"] == request.headers["webhook-id"]
        assert (content["kind"], content["event"]["data"]) == ("succeeded", {"speedup": 1.5})
        assert (content["job"]["id"], content["job"]["label"]) == (job.id, "<net>.onnx")
        delivery = settled(client, webhook)
        assert delivery == {
            "id": content["id"],
            "kind": "succeeded",
            "job": job.id,
            "state": "delivered",
            "attempts": 1,
            "due_at": None,
            "status": 204,
            "error": "",
            "created_at": delivery["created_at"],
        }

    def test_only_of_what_is_asked_for(self, one, client, kit, receiver):
        webhook = create(client, receiver.url(), "failed", "regressed")
        ended(one, client, kit)
        client.post("/v1/jobs", json={"model": kit.send(client, 9)})
        lease = one.store.jobs.lease([kit.target().key], "h")
        one.store.jobs.renew(lease, events=[NewEvent(EventKind.REGRESSED, {"now_ms": 2.0})])
        receiver.wait(1)
        one.store.jobs.finish(lease, JobState.FAILED, error="it broke")
        first, second = (json.loads(request.body) for request in receiver.wait(2))
        assert (first["kind"], first["event"]["data"], first["job"]["state"]) == (
            "regressed",
            {"now_ms": 2.0},
            "running",
        )
        assert (second["kind"], second["event"]["data"]) == ("failed", {"error": "it broke"})
        assert len(deliveries(client, webhook)) == 2

    def test_it_is_sent_again_until_it_is_taken(self, one, client, receiver, later, is_genuine):
        receiver.answers += [status(500), status(404), status(200)]
        webhook = create(client, receiver.url())
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        first = answered(client, webhook, 500)
        assert (first["state"], first["error"]) == ("waiting", "it was answered with 500")
        later(PAUSES_S[0])
        assert answered(client, webhook, 404)["state"] == "waiting"
        later(PAUSES_S[1])
        assert answered(client, webhook, 200)["state"] == "delivered"
        requests = receiver.wait(3)
        assert len({request.headers["webhook-id"] for request in requests}) == 1
        assert len({request.body for request in requests}) == 1
        assert all(is_genuine(webhook["secret"], request.headers, request.body) for request in requests)

    def test_it_is_given_up(self, client, receiver, later):
        statuses = [500 + number for number in range(len(PAUSES_S) + 1)]
        receiver.answers += map(status, statuses)
        webhook = create(client, receiver.url())
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        for told, pause_s in zip(statuses, PAUSES_S, strict=False):
            assert answered(client, webhook, told)["state"] == "waiting"
            later(pause_s)
        last = answered(client, webhook, statuses[-1])
        assert (last["state"], last["due_at"], last["attempts"]) == ("given up", None, len(statuses))

    def test_a_database_that_goes_away_meanwhile(self, one, client, receiver, later, monkeypatch):
        """Nothing is sent while it is away; what was sent when it went is sent again, under the same name."""
        webhook = create(client, receiver.url())
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        wait_for(lambda: deliveries(client, webhook)[0]["state"] == "delivered")
        calls, settle, take = [], one.store.webhooks.settle, one.store.webhooks.take

        def away(*_):
            calls.append(1)
            raise Unreachable("gone")

        with monkeypatch.context() as patch:
            patch.setattr(one.store.webhooks, "settle", away)
            client.post(f"/v1/webhooks/{webhook['id']}:test")
            wait_for(lambda: calls)
            patch.setattr(one.store.webhooks, "take", away)
            wait_for(lambda: len(calls) > 3)
            later(TAKEN_S)
        assert (one.store.webhooks.settle, one.store.webhooks.take) == (settle, take)
        assert len({request.headers["webhook-id"] for request in receiver.wait(3)}) == 2
        wait_for(lambda: deliveries(client, webhook)[0]["state"] == "delivered")

    def test_a_look_that_breaks_off(self, one, client, receiver, monkeypatch, caplog):
        monkeypatch.setattr(webhook_sender, "FAULT_S", 0.02)
        take, calls = one.store.webhooks.take, []

        def broken(*_):
            calls.append(1)
            raise ZeroDivisionError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(one.store.webhooks, "take", broken)
            wait_for(lambda: len(calls) > 1)
        webhook = create(client, receiver.url())
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        assert settled(client, webhook)["state"] == "delivered"
        assert one.store.webhooks.take == take
        [logged, *_] = [line for line in caplog.records if line.message.endswith("due to webhooks broke off")]
        assert logged.exc_info[0] is ZeroDivisionError

    def test_two_services_send_once(self, serve, url, kit, receiver):
        options = Options(webhook_hosts=LOOPBACK)
        with serve(options, url) as one, serve(options, url) as other:
            webhooks = [create(one.client(), receiver.url()) for _ in range(8)]
            client = other.client(one.token)
            for _ in range(4):
                for webhook in webhooks:
                    client.post(f"/v1/webhooks/{webhook['id']}:test")
            wait_for(lambda: all(d["state"] == "delivered" for w in webhooks for d in deliveries(client, w)))
            ids = [request.headers["webhook-id"] for request in receiver.requests]
            assert len(ids) == len(set(ids)) == 32

    def test_what_waited_is_sent_by_the_next_service(self, url, serve, receiver):
        with open_store(url) as store:
            key, _ = store.keys.create("n", [KeyScope.JOBS_WRITE])
            webhook, _ = store.webhooks.create(receiver.url(), WEBHOOK_KINDS, key.id)
            waiting = store.webhooks.test(webhook.id, key.id)
        with serve(Options(webhook_hosts=LOOPBACK), url):
            [request] = receiver.wait(1)
        assert request.headers["webhook-id"] == waiting.id


def test_what_broke_off_keeps_nothing_else_open(serve, monkeypatch, caplog):
    async def broken(_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(webhook_sender.WebhookSender, "run", broken)
    with serve() as one:
        close = Mock(wraps=one.store.close)
        monkeypatch.setattr(one.store, "close", close)
    close.assert_called()
    [logged] = [line for line in caplog.records if line.message == "what runs beside the requests broke off"]
    assert logged.exc_info[0] is ZeroDivisionError


class TestCare:
    def test_redirects_are_not_followed(self, client, receiver):
        receiver.answers.append(status(302, Location=receiver.url() + "/elsewhere"))
        webhook = create(client, receiver.url())
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        delivery = settled(client, webhook)
        assert (delivery["status"], delivery["state"]) == (302, "waiting")
        assert delivery["error"] == "it was answered with 302; redirects are not followed"
        assert [request.path for request in receiver.requests] == ["/hook"]

    def test_a_receiver_that_says_nothing(self, client, receiver, monkeypatch):
        monkeypatch.setattr(webhook_sender, "TIMEOUT_S", 0.2)
        over = threading.Event()
        receiver.answers.append(lambda handler: over.wait(60))
        webhook = create(client, receiver.url())
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        delivery = settled(client, webhook)
        over.set()
        assert (delivery["status"], delivery["error"]) == (None, "no answer within 0.2 s")

    def test_one_that_says_a_bit_now_and_then(self, client, receiver, monkeypatch):
        monkeypatch.setattr(webhook_sender, "TIMEOUT_S", 0.3)
        over = threading.Event()

        def drip(handler):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not over.wait(0.01):
                handler.wfile.write(b"x")

        receiver.answers.append(drip)
        webhook = create(client, receiver.url())
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        assert settled(client, webhook)["error"] == "no answer within 0.3 s"
        over.set()

    def test_of_an_endless_answer_the_begin_is_read(self, client, receiver):
        broken = threading.Event()

        def flood(handler):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n")
            try:
                while True:
                    handler.wfile.write(b"x" * (1 << 16))
            except OSError:
                broken.set()

        receiver.answers.append(flood)
        webhook = create(client, receiver.url())
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        assert settled(client, webhook)["state"] == "delivered"
        assert broken.wait(60)

    def test_what_is_no_http(self, client, receiver):
        receiver.answers.append(lambda handler: handler.wfile.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n"))
        webhook = create(client, receiver.url())
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        assert settled(client, webhook)["error"] == "the answer is none of HTTP, or broke off"

    def test_nobody_there(self, client, receiver):
        webhook = create(client, "http://127.0.0.1:1/")
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        assert settled(client, webhook)["error"].startswith("no connection: ")

    def test_one_that_is_slow_keeps_no_other_waiting(self, client, receiver):
        over = threading.Event()
        receiver.answers.append(lambda handler: over.wait(60))
        slow, quick = create(client, receiver.url()), create(client, receiver.url())
        client.post(f"/v1/webhooks/{slow['id']}:test")
        receiver.wait(1)
        client.post(f"/v1/webhooks/{quick['id']}:test")
        assert settled(client, quick)["state"] == "delivered"
        assert deliveries(client, slow)[0]["state"] == "waiting"
        over.set()

    def test_one_key_keeps_no_other_waiting(self, one, client, receiver, monkeypatch):
        monkeypatch.setattr(webhook_sender, "TIMEOUT_S", 100.0)
        over = threading.Event()

        def answer(handler):
            if handler.path == "/slow":
                over.wait(60)
            status(204)(handler)

        receiver.answers += [answer] * (SLOTS + 1)
        slow = [create(client, receiver.url().replace("/hook", "/slow")) for _ in range(SLOTS)]
        for webhook in slow:
            client.post(f"/v1/webhooks/{webhook['id']}:test")
        receiver.wait(ATTEMPTS_OF_OWNER)
        other = one.client(one.key())
        quick = create(other, receiver.url())
        other.post(f"/v1/webhooks/{quick['id']}:test")
        assert settled(other, quick)["state"] == "delivered"
        paths = [request.path for request in receiver.requests]
        assert paths == ["/slow"] * ATTEMPTS_OF_OWNER + ["/hook"]
        over.set()

    def test_proxies_are_not_used(self, client, receiver, monkeypatch):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        webhook = create(client, receiver.url())
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        assert settled(client, webhook)["state"] == "delivered"


class TestAddresses:
    @pytest.mark.parametrize(
        "url",
        [
            "https://127.0.0.1/",
            "https://localhost/",
            "https://[::ffff:169.254.169.254]/latest/meta-data",
            "http://example.org/",
            "https://user:pw@example.org/",
            "file:///etc/passwd",
        ],
    )
    def test_private_ones_are_refused(self, serve, kit, url):
        with serve() as one:
            body = kit.problem(one.client().post("/v1/webhooks", json={"url": url}), "invalid-request", 422)
            assert [fault["pointer"] for fault in body["errors"]] == ["#/url"]
            assert one.client().get("/v1/webhooks").json() == []

    def test_names_that_all_hang(self, client, kit, monkeypatch):
        monkeypatch.setattr(webhook_hosts, "_resolving", threading.Semaphore(0))
        body = kit.problem(client.post("/v1/webhooks", json={"url": "https://hook.test/"}), "busy", 503)
        assert body["detail"] == "too many names are being resolved at once"

    def test_a_name_that_leads_elsewhere_later(self, serve, kit, receiver, monkeypatch):
        """It was public when the webhook was created."""
        leads_to = ["93.184.215.14"]

        async def resolve(host, port):
            return list(leads_to)

        monkeypatch.setattr(webhook_hosts, "resolve", resolve)
        with serve() as one:
            client = one.client()
            webhook = create(client, receiver.url("hook.test", "https"))
            leads_to[:] = ["127.0.0.1"]
            client.post(f"/v1/webhooks/{webhook['id']}:test")
            error = settled(client, webhook)["error"]
        assert error.startswith("the host of the URL has an address that is not of the public Internet; TUNEWRIGHT_")
        assert receiver.requests == []

    def test_the_address_that_was_checked_is_the_one_that_is_called(self, one, client, receiver, monkeypatch):
        """Nothing looks the name up again: no system knows it."""
        asked = []

        async def resolve(host, port):
            asked.append((host, port))
            return ["127.0.0.2", "127.0.0.1"]  # nobody listens at the first

        monkeypatch.setattr(webhook_hosts, "resolve", resolve)
        webhook = create(client, receiver.url("hook.test"))
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        assert settled(client, webhook)["state"] == "delivered"
        assert asked == [("hook.test", receiver.port)] * 2
        assert receiver.requests[0].headers["host"] == f"hook.test:{receiver.port}"

    def test_after_an_address_that_hangs_the_next_is_called(self, one, client, receiver, monkeypatch):
        monkeypatch.setattr(webhook_sender, "CONNECT_S", 0.2)
        leads_to(monkeypatch, "127.0.0.2", "127.0.0.1")
        with hanging("127.0.0.2", receiver.port):
            webhook = create(client, receiver.url("hook.test"))
            client.post(f"/v1/webhooks/{webhook['id']}:test")
            assert settled(client, webhook)["state"] == "delivered"

    def test_where_all_hang(self, one, client, receiver, monkeypatch):
        monkeypatch.setattr(webhook_sender, "CONNECT_S", 0.2)
        leads_to(monkeypatch, "127.0.0.2")
        with hanging("127.0.0.2", receiver.port):
            webhook = create(client, receiver.url("hook.test"))
            client.post(f"/v1/webhooks/{webhook['id']}:test")
            assert settled(client, webhook)["error"] == "no connection within 0.2 s"

    def test_so_many_addresses_are_tried(self, one, client, receiver, monkeypatch):
        leads_to(monkeypatch, *(f"127.0.1.{number}" for number in range(MOST_ADDRESSES)), "127.0.0.1")
        webhook = create(client, receiver.url("hook.test"))
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        assert settled(client, webhook)["error"].startswith("no connection: ")
        assert receiver.requests == []

    @pytest.mark.parametrize(("name", "is_told"), [("hook.test", True), ("other.test", False)])
    def test_the_certificate_is_of_the_name(self, one, client, monkeypatch, tmp_path, name, is_told):
        async def resolve(host, port):
            return ["127.0.0.1"]

        monkeypatch.setattr(webhook_hosts, "resolve", resolve)
        server_side, client_side = tls_of("hook.test", tmp_path)
        monkeypatch.setattr(one.app.state.webhook_sender, "_tls", client_side)
        with receiving(server_side) as receiver:
            webhook = create(client, receiver.url(name, "https"))
            client.post(f"/v1/webhooks/{webhook['id']}:test")
            delivery = settled(client, webhook)
        assert delivery["state"] == ("delivered" if is_told else "waiting")
        assert is_told or "certificate" in delivery["error"]


def leads_to(monkeypatch, *addresses):
    """Let every name have these addresses."""

    async def resolve(host, port):
        return list(addresses)

    monkeypatch.setattr(webhook_hosts, "resolve", resolve)


@contextmanager
def hanging(address, port):
    """Somebody who accepts no connection, and refuses none."""
    with socket.create_server((address, port), backlog=0), ExitStack() as stack:
        for _ in range(2):  # Linux queues one more than it is told
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex((address, port))
        yield


def tls_of(name, folder):
    """TLS of a server with a certificate of a name, and of a client that trusts it."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(pem, form, serialization.NoEncryption())
    (folder / "tls.pem").write_bytes(private + certificate.public_bytes(pem))
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(folder / "tls.pem")
    client_side = ssl.create_default_context(cafile=folder / "tls.pem")
    return server_side, client_side


class TestRoutes:
    def test_a_webhook(self, client, receiver):
        created = create(client, receiver.url(), "failed")
        shown = {name: value for name, value in created.items() if name != "secret"}
        assert created["secret"].startswith("whsec_") and shown["on"] == ["failed"]
        assert client.get("/v1/webhooks").json() == [shown]
        assert client.get(f"/v1/webhooks/{created['id']}").json() == shown
        assert client.delete(f"/v1/webhooks/{created['id']}").json() == shown
        assert client.get("/v1/webhooks").json() == []

    def test_of_another_key(self, one, client, kit, receiver):
        webhook = create(client, receiver.url())
        other = one.client(one.key())
        path = f"/v1/webhooks/{webhook['id']}"
        assert other.get("/v1/webhooks").json() == []
        for answer in (
            other.get(path),
            other.delete(path),
            other.post(f"{path}:test"),
            other.get(f"{path}/deliveries"),
            client.get(f"/v1/webhooks/{'0' * 16}"),
        ):
            kit.problem(answer, "no-such-webhook", 404)
        kit.problem(client.get("/v1/webhooks/nothing"), "invalid-request", 422)

    def test_scopes(self, one, client, kit, receiver):
        path = f"/v1/webhooks/{create(client, receiver.url())['id']}"
        reader, writer = (one.client(one.key(scope)) for scope in (KeyScope.JOBS_READ, KeyScope.JOBS_WRITE))
        for answer in (
            reader.post("/v1/webhooks", json={"url": receiver.url()}),
            reader.delete(path),
            reader.post(f"{path}:test"),
            writer.get("/v1/webhooks"),
            writer.get(path),
            writer.get(f"{path}/deliveries"),
        ):
            kit.problem(answer, "missing-scope", 403)

    def test_a_session_is_of_its_key(self, one, client, receiver):
        webhook = create(client, receiver.url())
        session = one.store.keys.begin_session(one.token, [KeyScope.JOBS_READ], 60)
        assert [shown["id"] for shown in one.client(session[1]).get("/v1/webhooks").json()] == [webhook["id"]]

    def test_of_a_key_that_is_revoked_while_the_name_is_resolved(self, one, client, kit, receiver, monkeypatch):
        [key] = [key for key in one.store.keys.list() if one.token.startswith(f"tw_{key.id}_")]

        async def resolve(host, port):
            one.store.keys.revoke(key.id)
            return ["127.0.0.1"]

        monkeypatch.setattr(webhook_hosts, "resolve", resolve)
        answer = client.post("/v1/webhooks", json={"url": receiver.url()})
        assert kit.problem(answer, "no-key", 401)["detail"] == "the key is unknown, expired or revoked"
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert one.store.webhooks.list(key.id) == []

    def test_so_many_of_a_key(self, one, client, kit, receiver):
        for _ in range(MOST_WEBHOOKS):
            create(client, receiver.url())
        kit.problem(client.post("/v1/webhooks", json={"url": receiver.url()}), "too-many-webhooks", 409)
        create(one.client(one.key()), receiver.url())

    def test_so_many_deliveries_wait(self, client, kit, receiver, monkeypatch):
        monkeypatch.setattr("tunewright.db.webhooks.MOST_WAITING", 1)
        receiver.answers.append(status(500))
        webhook = create(client, receiver.url())
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        settled(client, webhook)
        kit.problem(client.post(f"/v1/webhooks/{webhook['id']}:test"), "too-many-deliveries", 409)

    @pytest.mark.parametrize("on", [[], ["queued"], ["test"], "failed", None, ["failed"] * 5])
    def test_kinds_that_are_none(self, client, kit, receiver, on):
        kit.problem(client.post("/v1/webhooks", json={"url": receiver.url(), "on": on}), "invalid-request", 422)

    def test_pages_of_deliveries(self, one, client, receiver):
        webhook = create(client, receiver.url())
        ids = [client.post(f"/v1/webhooks/{webhook['id']}:test").json()["id"] for _ in range(5)]
        seen, params = [], {"limit": "2"}
        while "cursor" not in params or params["cursor"]:
            page = client.get(f"/v1/webhooks/{webhook['id']}/deliveries", params=params).json()
            seen += [delivery["id"] for delivery in page["items"]]
            params["cursor"] = page["next"]
        assert seen == ids[::-1]

    def test_metrics(self, client, receiver, monkeypatch):
        receiver.answers.append(status(500))
        webhook = create(client, receiver.url())
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        settled(client, webhook)
        client.post(f"/v1/webhooks/{webhook['id']}:test")
        wait_for(lambda: deliveries(client, webhook)[0]["state"] == "delivered")
        found = wait_for(
            lambda: (now := numbers(client)).get(("tunewright_webhook_deliveries_total", "delivered")) and now
        )
        assert found["tunewright_webhook_deliveries_total", "waiting"] == 1
        assert found["tunewright_webhook_deliveries_due",] == 0
