"""`tunewright webhook`, on a real server."""

import pytest

from tunewright.api import program
from tunewright.api.http import webhook_sender
from tunewright.api.http.service import Options
from tunewright.api.http.webhook_hosts import WebhookHosts

from ..commands import commands
from ..waiting import wait_for
from .receiver import receiving, status


@pytest.fixture
def receiver():
    with receiving() as started:
        yield started


@pytest.fixture
def run(serve, monkeypatch, capfd):
    monkeypatch.setattr(webhook_sender, "POLL_S", 0.02)
    with serve(Options(webhook_hosts=WebhookHosts.of("127.0.0.1"))) as one:
        monkeypatch.setenv("TUNEWRIGHT_SERVER", one.url)
        monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)
        yield commands(program.execute, capfd)


def test_from_its_begin_to_its_end(run, receiver):
    assert run("webhook", "list").out == "no webhooks yet; tunewright webhook create URL makes one\n"
    created = run("webhook", "create", receiver.url(), "--on", "failed", "--on", "regressed")
    assert created.out.startswith("whsec_") and len(created.out.split()) == 1
    assert receiver.url() in created.err and "failed, regressed" in created.err
    [webhook] = run("webhook", "list", "--json").data["webhooks"]
    assert (webhook["url"], webhook["on"]) == (receiver.url(), ["failed", "regressed"])
    text = run("webhook", "list").out
    assert webhook["id"] in text and receiver.url() in text
    assert run("webhook", "deliveries", webhook["id"]).out == "it was told nothing yet\n"
    receiver.answers.append(status(500))
    queued = run("webhook", "test", webhook["id"])
    assert queued.out.startswith(f"queued: {webhook['id']}-1; ") and webhook["id"] in queued.out
    [delivery] = wait_for(
        lambda: [d for d in run("webhook", "deliveries", webhook["id"], "--json").data["deliveries"] if d["error"]]
    )
    assert (delivery["kind"], delivery["status"], delivery["job"]) == ("test", 500, None)
    shown = run("webhook", "deliveries", webhook["id"]).out
    assert "waiting" in shown and "it was answered with 500" in shown
    assert run("webhook", "delete", webhook["id"]).out == f"deleted: {webhook['id']}, {receiver.url()}\n"
    assert run("webhook", "list", "--json").data == {"webhooks": []}


def test_without_kinds_it_is_told_of_all(run, receiver):
    data = run("webhook", "create", receiver.url(), "--json").data
    assert data["on"] == ["succeeded", "failed", "cancelled", "regressed"] and data["secret"].startswith("whsec_")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "http://example.org/"), "the URL "),
        (("create", "https://u:p@example.org/"), "the URL must have no user and password"),
        (("create", "https://example.org/", "--on", "queued"), "--on 'queued' is none of"),
        (("delete", "../jobs/1"), "is no webhook's id"),
        (("test", "0" * 16), "no such webhook"),
        (("deliveries", "0" * 16), "no such webhook"),
    ],
)
def test_what_is_refused(run, arguments, said):
    refused = run("webhook", *arguments)
    assert refused.code != 0 and said in refused.err
