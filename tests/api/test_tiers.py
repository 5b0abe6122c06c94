"""The client's tiers: answers are kept, and no server, whatever it does, breaks or holds up who asks."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from tunewright.api.client import tiers, wire
from tunewright.api.client.breaker import PROBE_S, breaker_of
from tunewright.api.client.tiers import Lookups
from tunewright.api.http.routes import lookup_cache
from tunewright.search_space.measurement import Record
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.errors import Refused
from tunewright.tuner.lookup.result import Basis, LookupResult, Match

from ..waiting import wait_for
from .conftest import CRASHED, TARGET, exact_answer, make_task, measured, points, store_best
from .planted import NESTED, NO_SERVERS, Behaviour, http, planted, read_request, says

TASKS = [make_task(extent) for extent in (64, 128, 192)]


@pytest.fixture
def make(tmp_path) -> Callable[..., Lookups]:
    def make(server, key="tw_x", **settings):
        return Lookups(getattr(server, "url", server), key, tmp_path / "lookups", **settings)

    return make


def of(one, make, **settings):
    """Those of a real service."""
    return make(one, one.token, timeout_s=60.0, **settings)


def told(found):
    """What people and files are told; times in seconds may differ in the last bit."""
    return {key: one.to_json() for key, one in found.items()}


class TestRealServer:
    def test_every_rung_comes_through(self, one, make):
        exact, sibling, nearest, default = (*TASKS, make_task(7))
        record = store_best(one.store, exact, confirm=True)
        store_best(one.store, sibling, replace(TARGET, threads=2))
        found = of(one, make).lookup([exact, sibling, nearest, default], TARGET)
        assert [one.match for one in found.values()] == [Match.EXACT, Match.SIBLING, Match.NEAREST, Match.NEAREST]
        assert (found[exact.key].schedule, found[exact.key].confirmed) == (record.schedule, True)
        assert found[exact.key].expected_s == pytest.approx(1e-3)
        assert found[exact.key].to_json()["provenance"] == measured().provenance
        assert found[sibling.key].to_json()["source"]["target_name"] == str(replace(TARGET, threads=2))
        assert found[nearest.key].basis is Basis.SCALED and found[nearest.key].interval_s is None

    def test_the_target_may_be_json(self, one, make):
        store_best(one.store, TASKS[0])
        found = of(one, make).lookup(TASKS[:1], TARGET.to_json())
        assert found[TASKS[0].key].match is Match.EXACT
        with pytest.raises(ValueError, match="no target"):
            of(one, make).lookup(TASKS[:1], {"kind": "cpu"})

    def test_many_tasks_go_in_parts(self, one, make, monkeypatch):
        monkeypatch.setattr(wire, "KEYS_AT_ONCE", 4)
        monkeypatch.setattr(wire, "DEFINITIONS_AT_ONCE", 3)
        tasks = [make_task(16 * extent) for extent in range(1, 21)]
        for task in tasks[::3]:
            store_best(one.store, task)
        found = of(one, make).lookup(tasks, TARGET)
        assert [found[task.key].match for task in tasks[::3]] == [Match.EXACT] * 7
        assert {one.match for one in found.values()} <= {Match.EXACT, Match.NEAREST, Match.DEFAULT}

    def test_confirmed_answers_are_not_asked_for_again(self, one, make, monkeypatch):
        store_best(one.store, TASKS[0], confirm=True)
        lookups = of(one, make)
        first = lookups.lookup(TASKS[:1], TARGET)
        monkeypatch.setattr(wire.Exchange, "lookups", None)
        assert lookups.lookup(TASKS[:1], TARGET) == first  # from memory
        assert told(of(one, make).lookup(TASKS[:1], TARGET)) == told(first)  # from the file

    def test_what_nobody_measured_is_asked_for_again(self, one, make, monkeypatch):
        monkeypatch.setattr(lookup_cache, "LOOK_S", 0.0)  # the server sees at once what is stored
        lookups = of(one, make)
        assert lookups.lookup(TASKS[:1], TARGET)[TASKS[0].key].match is Match.DEFAULT
        store_best(one.store, TASKS[0])
        assert lookups.lookup(TASKS[:1], TARGET)[TASKS[0].key].match is Match.EXACT

    def test_what_a_server_takes_back_is_not_kept_either(self, one, make, monkeypatch):
        monkeypatch.setattr(lookup_cache, "LOOK_S", 0.0)
        [task, *_] = TASKS
        record = store_best(one.store, task, confirm=True)
        lookups = of(one, make)

        def match(asked):
            return asked.answers([task], TARGET, is_model=True).found[task.key].match

        assert match(lookups) is Match.EXACT
        one.store.voids.void(task.key, TARGET.key, record.schedule.key, "it was wrong")
        assert match(lookups) is Match.EXACT  # for a minute
        with monkeypatch.context() as later:
            later.setattr(tiers, "FRESH_S", -1.0)
            assert match(lookups) is Match.DEFAULT
        assert match(lookups) is match(of(one, make)) is Match.DEFAULT

    def test_stale_answers_are_used_when_the_server_is_away(self, one, make, monkeypatch):
        store_best(one.store, TASKS[0])
        first = of(one, make).lookup(TASKS, TARGET)
        monkeypatch.setattr(tiers, "FRESH_S", 0.0)
        one.server.should_exit = True

        def is_away():
            with suppress(OSError), one.line():
                return False
            return True

        wait_for(is_away)
        away = make(one, one.token)
        assert told(away.lookup(TASKS[:1], TARGET)) == told({TASKS[0].key: first[TASKS[0].key]})
        assert "kept answers and defaults are used" in away.notes[0]

    def test_a_snapshot_serves_without_the_server(self, one, make, monkeypatch):
        for task in TASKS:
            store_best(one.store, task)
        assert of(one, make).download(TARGET) == 3
        monkeypatch.setattr(wire.Exchange, "lookups", None)
        found = of(one, make).lookup(TASKS, TARGET)
        assert {one.match for one in found.values()} == {Match.EXACT}
        with pytest.raises(Refused, match="404"):
            of(one, make).download(replace(TARGET, threads=99))

    def test_nothing_works(self, one, make, monkeypatch):
        monkeypatch.setattr("tunewright.tuner.lookup.result.DRAWN", 0)
        task = TASKS[0]
        store_best(one.store, task, replace(TARGET, threads=2), default_schedule(task, TARGET))
        one.store.add_target(TARGET)
        one.store.record(Record(task.key, TARGET.key, default_schedule(task, TARGET), CRASHED))
        assert of(one, make).lookup([task], TARGET)[task.key].match is Match.NONE

    def test_a_wrong_key(self, one, make):
        lookups = make(one, "tw_wrong")
        assert lookups.lookup(TASKS, TARGET)[TASKS[0].key].match is Match.DEFAULT
        assert "it refuses the API key (401)" in lookups.notes[0]
        lookups = make(one.url.replace("127.0.0.1", "localhost"), "\N{SNOWMAN}")
        assert lookups.lookup(TASKS, TARGET)[TASKS[0].key].match is Match.DEFAULT

    def test_no_key(self, one, make):
        with pytest.raises(Refused, match="no API key: set TUNEWRIGHT_API_KEY"):
            make(one, "").download(TARGET)


# Servers that are none


def answers(items: object, **more: object) -> Behaviour:
    return says(http(json.dumps({"target": TARGET.key, "items": items, **more}).encode()))


BAD = NO_SERVERS | {
    "no items": answers(None),
    "too few items": answers([]),
    "other items": answers([1, 2, 3]),
    "another target": says(http(json.dumps({"target": "ab" * 32, "items": [{}, {}, {}]}).encode())),
    "unknown for ever": answers([{"key": task.key, "match": "unknown"} for task in TASKS]),
}


@pytest.mark.parametrize("name", BAD)
def test_no_server_breaks_a_build(name, make):
    with planted(BAD[name]) as url:
        lookups = make(url)
        started_s = time.monotonic()
        for _ in range(20):
            found = lookups.lookup(TASKS, TARGET)
            assert [one.match for one in found.values()] == [Match.DEFAULT] * 3
            assert [one.schedule for one in found.values()] == [default_schedule(task, TARGET) for task in TASKS]
        for _ in range(5):  # nor other sessions of the process
            make(url).lookup(TASKS, TARGET)
        assert time.monotonic() - started_s < 30
    if name != "unknown for ever":
        assert len(lookups.notes) == 2 and "kept answers and defaults are used" in lookups.notes[0], lookups.notes


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no-such-host.invalid", "https://127.0.0.1:1"])
def test_no_server(url, make):
    lookups = make(url)
    started_s = time.monotonic()
    for _ in range(20):
        assert lookups.lookup(TASKS, TARGET)[TASKS[0].key].match is Match.DEFAULT
    assert time.monotonic() - started_s < 30
    assert len(lookups.notes) == 2


def test_tls_where_there_is_none(make):
    with planted(answers([])) as url:
        lookups = make(url.replace("http", "https"))
        started_s = time.monotonic()
        assert lookups.lookup(TASKS, TARGET)[TASKS[0].key].match is Match.DEFAULT
        assert time.monotonic() - started_s < 30
        assert lookups.notes


def test_it_is_said_once_in_a_process(make, caplog):
    with caplog.at_level(logging.WARNING, "tunewright.lookup"):
        for _ in range(3):
            make("http://127.0.0.1:1").lookup(TASKS, TARGET)
    assert len([line for line in caplog.messages if "nobody answers there" in line]) == 1


def test_one_failure_opens_the_breaker_and_an_answer_closes_it(make, monkeypatch):
    asked = []

    def behave(connection):
        asked.append(read_request(connection))
        if len(asked) > 2:
            connection.sendall(http(json.dumps(good()).encode()))

    def good():
        return {"target": TARGET.key, "items": [{"key": TASKS[0].key, "match": "default", "schedule": None}]}

    with planted(behave) as url:
        lookups = make(url)
        for _ in range(3):
            lookups.lookup(TASKS[:1], TARGET)
        assert len(asked) == 1
        breaker = breaker_of(url)
        assert 59 < breaker.rest_s <= 60
        assert breaker.limit_s(1.0) == PROBE_S
        monkeypatch.setattr(breaker, "_open_until_s", 0.0)
        lookups.lookup(TASKS[:1], TARGET)
        assert len(asked) == 2 and 119 < breaker.rest_s <= 120
        monkeypatch.setattr(breaker, "_open_until_s", 0.0)
        lookups.lookup(TASKS[:1], TARGET)
        assert len(asked) == 3 and breaker.rest_s == 0 and breaker.limit_s(1.0) == 1.0


def test_tasks_may_be_json_objects_under_any_names(make):
    """Both keys are the one that the task has under the names that servers give it."""
    task = TASKS[0].renamed()
    written = json.loads(re.sub(r'"t(\d)', r'"some\1', json.dumps(task.to_json())))

    def behave(connection):
        asked = json.loads(read_request(connection))
        items = [{"key": key, "match": "default", "schedule": None} for key in asked["tasks"]]
        connection.sendall(http(json.dumps({"target": TARGET.key, "items": items}).encode()))

    with planted(behave) as url:
        assert [*make(url).lookup([written], TARGET.to_json())] == [task.key]
        for fault in ("x" * 64, {"op": "Neg"}):
            with pytest.raises(ValueError, match=r"a task is|that is no task"):
                make(url).lookup([fault], TARGET)


def answer(task=TASKS[0], **changes):
    return exact_answer(task, **({"confirmed": True} | changes))


HUGE = dict.fromkeys(answer()["schedule"]["values"], 10**30)

WRONG = {
    "another task": answer(key=TASKS[1].key),
    "no schedule": answer(schedule=None),
    "another sketch": answer(schedule={"sketch": "none", "version": 1, "values": {}}),
    "another version": answer(schedule=answer()["schedule"] | {"version": 99}),
    "code for a schedule": answer(schedule={"sketch": "generic", "version": 1, "values": "__import__('os')"}),
    "an illegal point": answer(schedule=answer()["schedule"] | {"values": HUGE}),
    "text for numbers": answer(schedule=answer()["schedule"] | {"values": {"x": "y"}}),
    "negative time": answer(expected_ms=-1.0),
    "text for a time": answer(expected_ms="soon"),
    "no time": answer(expected_ms=None),
    "infinite time": answer(expected_ms=float("inf")),
    "another rung": answer(match="best"),
    "a list": answer(match=["exact"]),
    "interval": answer(interval_ms=[1]),
    "provenance": answer(provenance=[1]),
    "source": answer(source="x"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_not_used(name, make):
    with planted(answers([WRONG[name], answer(TASKS[1])])) as url:
        lookups = make(url)
        found = lookups.lookup(TASKS[:2], TARGET)
        assert found[TASKS[0].key].match is Match.DEFAULT
        assert found[TASKS[1].key].match is Match.EXACT
        assert "can't be used" in lookups.notes[0]
        assert make(url)._stored_answer(TASKS[0], TARGET) is None


def test_what_comes_along_is_cut_short(make):
    long = answer(provenance={f"{number}": "x" * 100_000 for number in range(300)}, more="y")
    with planted(answers([long])) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "ANSWER_BYTES", 1 << 26)
        found = make(url, timeout_s=60.0).lookup(TASKS[:1], TARGET)[TASKS[0].key]
    assert found.match is Match.EXACT
    assert len(found.measurement.provenance) <= 64
    assert max(map(len, found.measurement.provenance.values())) <= 1000


class TestFiles:
    @pytest.fixture
    def lookups(self, make):
        with planted(answers([answer()])) as url:
            lookups = make(url, timeout_s=60.0)
            lookups.lookup(TASKS[:1], TARGET)
            yield lookups

    def path(self, lookups):
        [path] = lookups._folder.glob("*/*")
        return path

    def test_names_are_digests(self, lookups, tmp_path):
        path = self.path(lookups)
        assert path.name == f"{TASKS[0].key}.json" and path.parent.name == TARGET.key
        assert path.parent.parent.parent == tmp_path / "lookups"
        assert path.parent.stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"null",
            b"[]",
            b'{"kept_s": "x", "answer": {}}',
            b'{"kept_s": NaN}',
            NESTED,
            b"\xff\xfe",
            b"x" * (2 << 20),
            json.dumps({"kept_s": 1e18, "answer": WRONG["an illegal point"]}).encode(),
            json.dumps({"kept_s": 1.0, "answer": answer(TASKS[1])}).encode(),
        ],
        ids=str,
    )
    def test_damaged_and_foreign_ones_are_passed_over(self, content, lookups, make):
        self.path(lookups).write_bytes(content)
        again = make(lookups.server)
        assert again._stored_answer(TASKS[0], TARGET) is None
        breaker_of(lookups.server).record_failure()
        assert again.lookup(TASKS[:1], TARGET)[TASKS[0].key].match is Match.DEFAULT

    def test_a_file_from_the_future_is_asked_for_again(self, lookups, make):
        path = self.path(lookups)
        path.write_text(json.dumps({"kept_s": time.time() + 10_000, "answer": answer()}))
        breaker_of(lookups.server).record_failure()
        again = make(lookups.server)
        assert again.lookup(TASKS[:1], TARGET)[TASKS[0].key].match is Match.EXACT
        assert "is not asked for a while" in again.notes[0]

    def test_a_folder_in_the_way_is_no_failure(self, lookups, make):
        path = self.path(lookups)
        path.unlink()
        path.mkdir()
        again = make(lookups.server, timeout_s=60.0)
        assert again.lookup(TASKS[:1], TARGET)[TASKS[0].key].match is Match.EXACT
        assert "can't be kept" in again.notes[0]

    def test_another_server_has_its_own(self, lookups, make):
        assert make("http://127.0.0.1:1")._stored_answer(TASKS[0], TARGET) is None

    @pytest.mark.parametrize("test", ["one", "the next"])
    def test_a_test_finds_none_of_an_earlier_one_whose_server_had_the_same_port(self, test):
        shared = tiers.lookups("http://127.0.0.1:1")
        assert shared._stored_answer(TASKS[0], TARGET) is None and not shared._breaker.rest_s
        shared._store_answer(LookupResult(TASKS[0], Match.EXACT, points(TASKS[0])[0], measured()), TARGET)
        shared._breaker.record_failure()
        tiers._shared.clear()
        assert tiers.lookups("http://127.0.0.1:1")._stored_answer(TASKS[0], TARGET) is not None

    def test_there_is_an_end_to_them(self, lookups, make, monkeypatch):
        monkeypatch.setattr(tiers, "KEPT", 3)
        folder = self.path(lookups).parent
        for number in range(9):
            path = folder / f"{number:064x}.json"
            path.write_text("{}")
            os.utime(path, (number, number))
        make(lookups.server, timeout_s=60.0).lookup(TASKS[:1], TARGET)
        again = make(lookups.server)
        again._write("ab" * 32, TARGET, answer(), 1.0)
        assert len(list(folder.iterdir())) <= 4

    def test_memory_too(self, lookups, monkeypatch):
        monkeypatch.setattr(tiers, "REMEMBERED", 2)
        for task in TASKS:
            lookups._store_answer(LookupResult(task, Match.EXACT, points(task)[0], measured()), TARGET)
        assert len(lookups._memory) == 2


def test_nothing_heavy_is_imported(tmp_path):
    code = """
import json, sys
from tunewright.api.client import tiers
from tunewright.graph.task import Task

task, target = json.load(sys.stdin)
found = tiers.lookups("http://127.0.0.1:1").lookup([Task.from_json(task)], target)
assert [one.match.value for one in found.values()] == ["default"]
heavy = {"onnx", "llvmlite", "sqlalchemy", "alembic", "xgboost", "ray", "fastapi", "pydantic", "typer"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""
    env = os.environ | {"TUNEWRIGHT_HOME": str(tmp_path)}
    given = json.dumps([TASKS[0].to_json(), TARGET.to_json()])
    run = subprocess.run(
        [sys.executable, "-c", code], input=given, capture_output=True, text=True, env=env, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"
