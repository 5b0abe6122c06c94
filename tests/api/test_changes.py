"""The stream of changes: tells pages when to look again."""

import json
import threading
import time

import pytest

from tunewright.api.http.routes import changes
from tunewright.api.http.service import Options
from tunewright.db.access import KeyScope

from ..waiting import wait_for
from .conftest import problem


def listen(lines, most=None):
    """The data of the events among the lines of a stream, until there are so many, or it ends."""
    found, kinds = [], set()
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kinds.add(value)
        if name == "data":
            found.append(json.loads(value))
            if len(found) == most:
                break
    assert kinds <= {"change"}
    return found


def test_it_tells_at_once_and_then_of_each_change(serve, url, kit, monkeypatch):
    monkeypatch.setattr(changes, "LEAST_S", 0.05)
    with serve(url=url) as one:
        client = one.client()
        with one.client().stream("GET", "/v1/changes") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["cache-control"] == "no-cache"
            found = listen(answer.iter_lines(), 1)
        with one.client().stream("GET", "/v1/changes") as answer:
            told = threading.Event()

            def change():
                while not told.wait(0.05):
                    kit.enlist(one.store, kit.target())
                    client.post("/v1/jobs", json={"model": kit.send(client, 8)})

            changing = threading.Thread(target=change)
            changing.start()
            found += listen(answer.iter_lines(), 3)
            told.set()
            changing.join()
    assert all(event.keys() == {"number"} for event in found)
    numbers = [event["number"] for event in found[1:]]
    assert numbers == sorted(set(numbers))


def test_many_changes_are_one_event(one, client, kit, monkeypatch):
    monkeypatch.setattr(changes, "LEAST_S", 0.5)
    found = []
    with one.client().stream("GET", "/v1/changes") as answer:
        listening = threading.Thread(target=lambda: found.extend(listen(answer.iter_lines(), 3)))
        listening.start()
        began_s = time.monotonic()
        while listening.is_alive():
            kit.send(client, 8)
            kit.enlist(one.store, kit.target())
        assert time.monotonic() - began_s > 0.9
    assert len(found) == 3


def test_it_ends_with_the_service_and_takes_a_place(serve):
    with serve(Options(streams=1)) as one:
        client = one.client()
        with one.client().stream("GET", "/v1/changes") as answer:
            lines = answer.iter_lines()
            assert listen(lines, 1)
            problem(client.get("/v1/changes"), "busy", 503)
            assert "tunewright_event_streams 1.0" in client.get("/metrics").text
            one.service.drain()
            assert listen(lines) == []
        wait_for(lambda: one.service.stream_slots.borrowed_tokens == 0)
        problem(client.get("/v1/changes"), "busy", 503)


def test_it_ends_with_the_key(serve, kit, monkeypatch):
    monkeypatch.setattr("tunewright.api.http.access.TRUST_S", 0.05)
    with serve() as one:
        token = one.key()
        with one.client(token).stream("GET", "/v1/changes") as answer:
            one.store.keys.revoke(token.split("_")[1])
            assert len(listen(answer.iter_lines())) <= 3


@pytest.mark.parametrize("scope", [KeyScope.METRICS, KeyScope.RECORDS_READ])
def test_it_needs_the_scope(one, scope):
    problem(one.client(one.key(scope)).get("/v1/changes"), "missing-scope", 403)
