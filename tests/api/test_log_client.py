"""The client of the log: what a server says is used, and what it does breaks nothing."""

import json
import logging
import threading
import time

import pytest

from tunewright.api.client import breaker, log
from tunewright.api.client.breaker import breaker_of
from tunewright.api.client.log import LogClient
from tunewright.db.access import KeyScope
from tunewright.db.logs.entry import Cost, CostEvidence, LogEntry, LogEnvironment, LogMatch
from tunewright.tuner.errors import Refused

from .planted import NO_SERVERS, http, planted, says

H100 = LogEnvironment("H100", "triton", {"cuda": "13.0"})
OLDER = LogEnvironment("H100", "triton", {"cuda": "12.8"})


@pytest.fixture(autouse=True)
def _told_anew(monkeypatch):
    monkeypatch.setattr(log, "_logged", set())


@pytest.fixture
def triton(one, monkeypatch):
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)
    return LogClient("triton", one.url, timeout_s=60)


def test_what_one_writes_another_finds(triton, one):
    cost = Cost(1e-3, 9e-4, 2e-3, 7, CostEvidence.CONFIRMED)
    entries = [LogEntry("a", b'{"w": 8}', H100, cost, machine="m"), LogEntry("b", b"\x80", H100)]
    assert triton.write(entries)
    other = LogClient("triton", one.url, timeout_s=60)
    found = other.look_up(["a", "b", "c"], H100)
    assert list(found) == ["a", "b"]
    assert (found["a"].match, found["a"].entry.cost, found["a"].entry.value) == (LogMatch.EXACT, cost, b'{"w": 8}')
    assert other.get("b", H100) == b"\x80"
    assert other.get("b") is None
    assert other.look_up(["a"], OLDER) == {}
    assert other.look_up(["a"], OLDER, [LogMatch.VERSION])["a"].match is LogMatch.VERSION
    assert [entry.key for entry in other.entries()] == ["b", "a"]
    assert [entry.key for entry in other.entries(most=1, environment=H100)] == ["b"]
    assert other.entries(environment=OLDER) == []


def test_a_namespace_that_nobody_wrote_to_is_empty(triton):
    assert triton.entries() == []
    assert not triton.is_resting
    assert triton.write([LogEntry("k", b"v")])


def test_entries_say_which_of_them_lookups_get(triton):
    assert triton.write([LogEntry("k", b"older"), LogEntry("k", b"newer")])
    assert {entry.value: entry.is_served for entry in triton.entries()} == {b"older": False, b"newer": True}
    assert triton.look_up(["k"])["k"].entry.is_served


def test_all_values_of_a_key(triton):
    values = [LogEntry("k", str(n).encode(), H100, Cost(n + 1e-3, evidence=CostEvidence.TIMED)) for n in range(3)]
    assert triton.values("k", H100) == []
    assert triton.write([*values, LogEntry("l", b"9", H100), LogEntry("k", b"8", OLDER)])
    assert [entry.value for entry in triton.values("k", H100)] == [b"2", b"1", b"0"]
    assert [entry.value for entry in triton.values("k", H100, most=2)] == [b"2", b"1"]
    assert [entry.is_served for entry in triton.values("k", H100)] == [False, False, True]
    assert triton.values("k") == []


@pytest.mark.slow
def test_values_that_are_known_are_not_asked_for_again(triton, monkeypatch):
    monkeypatch.setattr(log, "ENTRIES_OF_A_PAGE", 4)
    triton.write([LogEntry("k", str(n).encode()) for n in range(12)])
    known = {entry.choice for entry in triton.values("k")}
    assert len(known) == 12
    triton.write([LogEntry("k", str(n).encode()) for n in range(12, 17)])
    found = [entry.value for entry in triton.values("k", known=known)]
    assert found == [str(n).encode() for n in range(16, 4, -1)]  # two pages with news, and one without


def test_many_go_in_several_requests(triton, monkeypatch):
    monkeypatch.setattr(log, "KEYS_AT_ONCE", 7)
    monkeypatch.setattr(log, "ENTRIES_AT_ONCE", 7)
    monkeypatch.setattr(log, "ENTRIES_OF_A_PAGE", 7)
    keys = [f"k{n}" for n in range(20)]
    assert triton.write([LogEntry(key, key.encode()) for key in keys])
    assert {key: hit.entry.value.decode() for key, hit in triton.look_up(keys).items()} == {key: key for key in keys}
    assert [entry.key for entry in triton.entries(most=15)] == keys[:4:-1]


def test_threads_may_share_it(triton):
    def work(number):
        triton.write([LogEntry(f"k{number}", b"v")])
        seen.append(triton.get(f"k{number}"))

    seen: list[bytes | None] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [b"v"] * 8


def test_without_a_server_nothing_is_known(monkeypatch):
    monkeypatch.delenv("TUNEWRIGHT_SERVER", raising=False)
    client = LogClient("triton")
    assert client.get("k") is None
    assert not client.write([LogEntry("k", b"v")])
    assert client.entries() == []


def test_what_can_not_be_meant_is_refused():
    with pytest.raises(ValueError, match="is no namespace"):
        LogClient("../etc", "http://127.0.0.1:1")
    with pytest.raises(Refused, match="a server is http"):
        LogClient("triton", "ftp://x")


def test_a_key_without_the_scope(one, monkeypatch, caplog):
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.key(KeyScope.JOBS_READ))
    with caplog.at_level(logging.WARNING, "tunewright.log"):
        assert LogClient("triton", one.url, timeout_s=60).get("k") is None
        assert breaker_of(one.url).rest_s == 0  # others may go on
    assert "the scope logs:read is needed (403)" in caplog.text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"detail": "not for\\u001b[31m you\\n"}', r"not for\x1b[31m you\n (403)"),
        (b'{"detail": "' + b"x" * 5000 + b'"}', f"{'x' * 300} (403)"),
        (b'{"detail": 1}', "the API key does not allow this (403)"),
        (b"[]", "the API key does not allow this (403)"),
        (b"{" * 100_000, "the API key does not allow this (403)"),
        (b"\xff", "the API key does not allow this (403)"),
    ],
    ids=["signs of a terminal", "long", "no text", "no object", "no JSON", "no text at all"],
)
def test_a_refusal_is_told_in_one_line(body, reason):
    answer = http(body, "403 Forbidden").replace(b"application/json", b"application/problem+json")
    with planted(says(answer)) as url:
        client = LogClient("triton", url, timeout_s=60)
        assert client.get("k") is None
        assert (client.key_fault, breaker_of(url).rest_s) == (reason, 0)


ENTRY = {"key": "k", "value": "v", "samples": 0, "evidence": "none", "state": "candidate", "machine": ""}
NO_LOGS = NO_SERVERS | {
    "items that are none": says(http(b'{"items": 1}')),
    "no entries": says(http(b'{"items": [{"entry": {}, "match": "exact"}]}')),
    "entries of text": says(http(b'{"items": [{"entry": "x", "match": "exact"}]}')),
    "no match": says(http(json.dumps({"items": [{"entry": ENTRY, "match": "sure"}]}).encode())),
    "a time that is none": says(
        http(b'{"items": [{"entry": {"key": "k", "value": "v", "time_s": 1' + b"0" * 400 + b'}, "match": "exact"}]}')
    ),
    "another environment": says(
        http(json.dumps({"items": [{"entry": ENTRY | {"environment": {"device": "A100"}}, "match": "exact"}]}).encode())
    ),
    "another key": says(http(json.dumps({"items": [{"entry": ENTRY | {"key": "l"}, "match": "exact"}]}).encode())),
}


@pytest.mark.parametrize("name", NO_LOGS)
def test_no_server_costs_more_than_a_moment(name):
    """Down, slow or answering garbage: nothing is found, nothing raised, and not a second lost in a process in all."""
    with planted(NO_LOGS[name]) as url:
        client, started_s = LogClient("triton", url, timeout_s=0.5), time.monotonic()
        for _ in range(50):
            assert client.look_up(["k"]) == {}
        if name != "another key":  # that is an answer, of what nobody asked for
            assert breaker_of(url).rest_s > 0
            assert client.is_resting
            assert not client.write([LogEntry("k", b"v")])
            assert client.entries() == []
            assert time.monotonic() - started_s < 10  # with room for a busy machine


def test_a_list_of_another_environment_is_no_answer():
    """Of a server that does not tell entries apart: what was found on another device is never taken."""
    listed = {"items": [ENTRY | {"environment": {"device": "A100"}}], "next": None}
    with planted(says(http(json.dumps(listed).encode()))) as url:
        client = LogClient("tvm", url, timeout_s=0.5)
        assert client.values("k", H100) == [] and client.is_resting


def test_slow_answers_cost_one_time_limit_in_all(monkeypatch, caplog):
    """Each in time, and right: here every one of them counts as slow."""
    quick_s = breaker.QUICK_S
    monkeypatch.setattr(breaker, "QUICK_S", 0.0)
    answer = says(http(json.dumps({"items": [{"entry": ENTRY | {"served": True}, "match": "exact"}]}).encode()))
    asked = 0
    with planted(answer) as url, caplog.at_level(logging.WARNING, "tunewright.log"):
        client = LogClient("triton", url, timeout_s=0.5)
        assert client.get("k") is not None
        while not client.is_resting:
            client.get("k")
            asked += 1
            assert asked < 5000
        assert client.get("k") is None
        assert breaker_of(url).left_s(0.5) <= quick_s
        monkeypatch.setattr(breaker_of(url), "_slow_from_s", time.monotonic() - breaker.OPEN_S)
        assert breaker_of(url).left_s(0.5) == 0.5
    assert "is not used for now" in caplog.text


def test_quick_answers_cost_nothing():
    one = breaker.Breaker()
    for _ in range(1000):
        one.record_slowness(breaker.QUICK_S)
    assert one.left_s(1.0) == 1.0
    one.record_slowness(0.4)
    assert one.left_s(1.0) == 0.6


def test_a_failure_is_told_once(caplog):
    with caplog.at_level(logging.WARNING, "tunewright.log"):
        for _ in range(3):
            assert LogClient("triton", "http://127.0.0.1:1").get("k") is None
    assert len(caplog.messages) == 1
    assert "what it knows is not used for now" in caplog.text
