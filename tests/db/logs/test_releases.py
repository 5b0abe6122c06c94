"""Releases: lookups get the one that is promoted, whole, whatever is written meanwhile."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import cycle

import pytest
from sqlalchemy import func, select

from tunewright.db.errors import NotFound
from tunewright.db.logs.difference import ChangeKind
from tunewright.db.logs.drafts import DRAFT_S, remove_draft
from tunewright.db.logs.entry import Cost, CostEvidence, EntryState, LogEntry, LogEnvironment
from tunewright.db.logs.lines import parse_line
from tunewright.db.logs.release import (
    LONGEST_NOTES,
    Manifest,
    ReleaseConflict,
    ReleaseSignature,
    parse_head,
    predecessor,
)
from tunewright.db.logs.tables import ReleaseEntryRow, ReleaseRow
from tunewright.db.store import open_store

from ..conftest import in_threads, plan, selected

H100 = LogEnvironment("H100", "triton", {"cuda": "13.0"})
OLDER = LogEnvironment("H100", "triton", {"cuda": "12.8"})

SIGNATURE = ReleaseSignature("A" * 43 + "=", "B" * 86 + "==")


def sign(content):
    return SIGNATURE


def entry(key="k", value=b"v", environment=H100, time_s=None):
    cost = Cost(time_s, evidence=CostEvidence.TIMED) if time_s is not None else Cost()
    return LogEntry(key, value, environment, cost)


def served(store, namespace="n", keys=("k", "l"), environment=H100, release=None):
    answer = store.logs.answer(namespace, keys, environment, release=release)
    return answer.release, {key: hit.entry.value for key, hit in answer.hits.items()}


def test_lookups_get_the_promoted_release_alone(store):
    store.logs.write("n", [entry(value=b"first"), entry("l", b"l")])
    release = store.releases.create("n", "2026.11", sign, notes="for the run", owner="me")
    assert (release.manifest.entries, release.notes, release.owner, release.is_promoted) == (
        2,
        "for the run",
        "me",
        False,
    )
    store.logs.write("n", [entry(value=b"second"), entry("new")])
    assert served(store, keys=["k", "new"]) == (None, {"k": b"second", "new": b"v"})
    store.releases.promote("n", "2026.11")
    assert served(store, keys=["k", "new"]) == ("2026.11", {"k": b"first"})
    assert store.releases.get("n", "2026.11").is_promoted
    [flag] = [e.value for e in store.logs.list("n", key="k") if e.is_served]
    assert flag == b"first"
    assert {(e.key, e.value) for e in store.logs.list("n", served=True)} == {("k", b"first"), ("l", b"l")}
    store.logs.write("n", [entry(value=b"third")])
    assert served(store) == ("2026.11", {"k": b"first", "l": b"l"})
    store.releases.promote("n", None)
    assert served(store)[1]["k"] == b"third"


def test_a_lookup_may_name_a_release(store):
    store.logs.write("n", [entry(value=b"a")])
    store.releases.create("n", "one", sign)
    store.logs.write("n", [entry(value=b"b")])
    store.releases.create("n", "two", sign)
    store.releases.promote("n", "two")
    assert served(store, release="one") == ("one", {"k": b"a"})
    for namespace, name in (("n", "three"), ("m", "one")):
        with pytest.raises(NotFound, match=f"{namespace} has no release {name}"):
            served(store, namespace, release=name)


def test_a_promotion_changes_the_revision_once(store):
    store.logs.write("n", [entry()])
    store.releases.create("n", "one", sign)
    before = store.logs.namespace("n").revision
    store.releases.promote("n", "one", "me")
    store.releases.promote("n", "one", "me")
    after = store.logs.namespace("n")
    assert (after.revision, after.release) == (before + 1, "one")
    [promotion] = store.releases.promotions("n")
    assert (promotion.release, promotion.owner) == ("one", "me")


def test_its_lines_stay_as_they_are_whatever_becomes_of_the_entries(store):
    store.logs.write("n", [entry(time_s=2.0), entry("bytes", b"\x80"), entry("l", environment=OLDER)])
    release = store.releases.create("n", "one", sign)
    exported = b"".join(store.releases.export(release))
    store.logs.write("n", [entry(time_s=1.0)])
    store.logs.decide("n", "k", H100, entry().choice, EntryState.RETIRED)
    assert b"".join(store.releases.export(store.releases.get("n", "one"))) == exported
    head, *lines = exported.splitlines(keepends=True)
    assert parse_head(head) == (release.manifest, SIGNATURE)
    assert hashlib.sha256(b"".join(lines)).hexdigest() == release.manifest.sha256
    assert len(lines) == release.manifest.entries == 3
    told = {(e.key, e.value, e.environment.fingerprint) for e in (parse_line(line.decode()) for line in lines)}
    here, there = H100.fingerprint, OLDER.fingerprint
    assert told == {("k", b"v", here), ("bytes", b"\x80", here), ("l", b"v", there)}
    for line in lines:
        assert json.dumps(json.loads(line), sort_keys=True, separators=(",", ":")) == line.decode().strip()


def test_the_digest_does_not_depend_on_the_database(store, make_url):
    """Whatever numbers its environments have, and in whatever order entries came."""
    entries = [entry(f"k{n}", b"v%d" % n, environment) for n in range(20) for environment in (H100, OLDER)]
    store.logs.write("n", entries)
    with open_store(make_url("memory")) as other:
        other.logs.write("n", list(reversed(entries)))
        releases = [one.releases.create("n", "one", sign) for one in (store, other)]
    first, second = (release.manifest.sha256 for release in releases)
    assert first == second


def test_a_release_of_some_environments(store):
    store.logs.write("n", [entry(), entry(environment=OLDER)])
    release = store.releases.create("n", "older", sign, fingerprints=[OLDER.fingerprint])
    assert release.manifest.entries == 1
    assert served(store, environment=H100, release="older")[1] == {}
    assert served(store, environment=OLDER, release="older")[1] == {"k": b"v"}
    with pytest.raises(ValueError, match="nothing is served in the environment"):
        store.releases.create("n", "none", sign, fingerprints=[OLDER.fingerprint, LogEnvironment().fingerprint])


def test_what_no_release_can_be(store):
    with pytest.raises(NotFound):
        store.releases.create("n", "one", sign)
    store.logs.write("n", [entry()])
    for name in ("", "A", ".a", "a" * 65, "a/b", "a\n"):
        with pytest.raises(ValueError, match="is no name of a release"):
            store.releases.create("n", name, sign)
    store.logs.decide("n", "k", H100, entry().choice, EntryState.RETIRED)
    with pytest.raises(ValueError, match="nothing is served"):
        store.releases.create("n", "one", sign)
    assert store.releases.list("n") == []


def test_creating_it_again_is_harmless_while_nothing_changed(store):
    store.logs.write("n", [entry()])
    release = store.releases.create("n", "one", sign, notes="a\0b" + "x" * LONGEST_NOTES)
    assert store.releases.create("n", "one", sign, notes="a\0b" + "x" * LONGEST_NOTES) == release
    with pytest.raises(ReleaseConflict, match="n has a release one already, of revision 2"):
        store.releases.create("n", "one", sign)
    store.logs.write("n", [entry("l")])
    with pytest.raises(ReleaseConflict):
        store.releases.create("n", "one", sign, notes="a")
    assert [one.manifest.name for one in store.releases.list("n")] == ["one"]


def test_going_back_leads_to_the_one_before(store):
    for name in ("a", "b", "c"):
        store.logs.write("n", [entry(value=name.encode())])
        store.releases.create("n", name, sign)
        store.releases.promote("n", name)
    with pytest.raises(ReleaseConflict, match="not answered from a"):
        store.releases.roll_back("n", "a")
    assert store.releases.roll_back("n", "c") == "b"
    assert store.releases.roll_back("n", "c") == "b"  # the same again, whose first answer was lost
    assert served(store) == ("b", {"k": b"b"})
    assert store.releases.roll_back("n", "b") == "a"
    assert store.releases.roll_back("n", "a") is None
    assert served(store) == (None, {"k": b"c"})
    assert [one.release for one in store.releases.promotions("n")] == [None, "a", "b", "c", "b", "a"]
    assert [one.release for one in store.releases.promotions("n", limit=2)] == [None, "a"]
    last = store.releases.promotions("n")[-2]
    assert [one.release for one in store.releases.promotions("n", before=last.id)] == ["a"]


@pytest.mark.parametrize(
    ("history", "before"),
    [
        ([], None),
        ([1], None),
        ([1, 2, 3], 2),
        ([1, 2, 3, 2], 1),
        ([1, 2, 3, 2, 1], None),
        ([1, 2, 3, 1, 4], 1),
        ([1, 2, 3, 1, 4, 1], 3),
        ([1, None, 2], None),
        ([1, 2, None], 2),
        ([1, 1, 2, 2], 1),
    ],
)
def test_the_way_back(history, before):
    assert predecessor(history) == before


def test_entries_of_a_release_can_not_be_deleted(store):
    store.logs.write("n", [entry()])
    store.logs.write("m", [entry()])
    store.releases.create("n", "one", sign)
    with pytest.raises(ReleaseConflict, match="the release one of n has entries of it"):
        store.logs.delete("n")
    assert store.logs.delete("m") == 1
    store.releases.promote("n", "one")
    with pytest.raises(ReleaseConflict, match="promote another one first"):
        store.releases.delete("n", "one")
    store.releases.promote("n", None)
    store.releases.delete("n", "one")
    assert store.logs.delete("n") == 1
    with pytest.raises(NotFound):
        store.releases.list("n")


def test_releases_are_of_their_namespace(store):
    store.logs.write("n", [entry(value=b"n")])
    store.logs.write("m", [entry(value=b"m")])
    store.releases.create("n", "one", sign)
    store.releases.create("m", "one", sign)
    store.releases.promote("n", "one")
    assert served(store, "m") == (None, {"k": b"m"})
    store.releases.delete("m", "one")
    for change in (store.releases.promote, store.releases.roll_back, store.releases.delete, store.releases.get):
        with pytest.raises(NotFound, match="m has no release one"):
            change("m", "one")
    assert served(store, "n") == ("one", {"k": b"n"})


def test_the_difference_of_two_releases_and_now(store):
    store.logs.write(
        "n", [entry("same"), entry("less"), entry("other", b"a", time_s=2.0), entry("other", environment=OLDER)]
    )
    one = store.releases.create("n", "one", sign)
    store.logs.write("n", [entry("more"), entry("other", b"b", time_s=1.0)])
    store.logs.decide("n", "less", H100, entry().choice, EntryState.RETIRED)
    two = store.releases.create("n", "two", sign)
    store.logs.write("n", [entry("later")])

    def told(changes):
        return {(change.kind, change.key, change.environment.fingerprint) for change in changes}

    now = {
        (ChangeKind.REMOVED, "less", H100.fingerprint),
        (ChangeKind.ADDED, "more", H100.fingerprint),
        (ChangeKind.CHANGED, "other", H100.fingerprint),
    }
    assert told(store.releases.changes(one, two)) == now
    assert told(store.releases.changes(one, None)) == now | {(ChangeKind.ADDED, "later", H100.fingerprint)}
    assert told(store.releases.changes(two, two)) == set()
    [changed] = [one for one in store.releases.changes(one, two) if one.kind is ChangeKind.CHANGED]
    assert (changed.before.cost.time_s, changed.after.cost.time_s) == (2.0, 1.0)
    assert changed.after.choice.hex() == entry(value=b"b").choice


def test_many_pages(store, monkeypatch):
    monkeypatch.setattr("tunewright.db.logs.releases.PAGE", 3)
    store.logs.write("n", [entry(f"k{n}", environment=e) for n in range(20) for e in (H100, OLDER)])
    one = store.releases.create("n", "one", sign)
    assert len(b"".join(store.releases.export(one)).splitlines()) == 41
    store.logs.write("n", [entry(f"k{n}", b"w") for n in range(0, 20, 2)])
    assert len(list(store.releases.changes(one, None))) == 10


class Model:
    """A namespace as it should be: what the rule serves, releases, and the way back."""

    def __init__(self):
        self.now: dict[tuple[str, str], bytes] = {}
        self.releases: dict[str, dict[tuple[str, str], bytes]] = {}
        self.promoted: str | None = None
        self.way: list[str | None] = [None]

    def promote(self, name):
        if name == self.promoted:
            return
        self.way = self.way[:-1] if len(self.way) > 1 and self.way[-2] == name else [*self.way, name]
        self.promoted = name

    def forget(self, name):
        del self.releases[name]
        way: list[str | None] = []
        for step in (step for step in self.way if step != name):
            if way[-1:] != [step]:
                way.append(step)
        self.way = way

    @property
    def served(self):
        return self.now if self.promoted is None else self.releases[self.promoted]


@pytest.mark.parametrize("seed", range(2))
def test_random_histories_of_namespaces(store, seed):
    """After any writes, releases and promotions each namespace serves what a simple model of it says."""
    rng = random.Random(seed)
    models = {"n": Model(), "m": Model()}
    keys = [f"k{n}" for n in range(4)]
    for namespace in models:
        store.logs.write(namespace, [entry()])
        models[namespace].now["k", H100.fingerprint] = b"v"
    for step in range(80):
        namespace = rng.choice(list(models))
        model = models[namespace]
        match rng.choice(["write", "write", "create", "promote", "promote", "back", "delete"]):
            case "write":
                one = entry(rng.choice(keys), b"%d" % step, rng.choice([H100, OLDER]))
                store.logs.write(namespace, [one])
                model.now[one.key, one.environment.fingerprint] = one.value
            case "create" if len(model.releases) < 5:
                some = rng.choice([None, [H100.fingerprint]])
                lines = {place: value for place, value in model.now.items() if some is None or place[1] in some}
                if not lines:
                    continue
                release = store.releases.create(namespace, f"r{step}", sign, fingerprints=some)
                model.releases[f"r{step}"] = lines
                assert release.manifest.entries == len(lines)
            case "promote":
                name = rng.choice([None, *model.releases])
                store.releases.promote(namespace, name)
                model.promote(name)
            case "back" if model.promoted is not None and len(model.way) > 1:
                back = store.releases.roll_back(namespace, model.promoted)
                model.promote(model.way[-2])
                assert back == model.promoted
            case "delete" if len(model.releases) > 1:
                name = rng.choice(list(model.releases))
                if name == model.promoted:
                    with pytest.raises(ReleaseConflict):
                        store.releases.delete(namespace, name)
                elif name not in model.way:
                    store.releases.delete(namespace, name)
                    model.forget(name)
        for name, one in models.items():
            found = store.logs.list(name, served=True, limit=50)
            told = {(e.key, e.environment.fingerprint): e.value for e in found}
            assert told == one.served, (seed, step, name)
            for environment in (H100, OLDER):
                release, values = served(store, name, ["k", *keys], environment)
                assert release == one.promoted
                assert values == {key: v for (key, where), v in one.served.items() if where == environment.fingerprint}
    assert any(model.releases for model in models.values())


@pytest.fixture
def shared_store(shared_url):
    with open_store(shared_url) as opened:
        yield opened


def test_lookups_during_promotions_are_each_of_one_release(shared_store):
    keys = [f"k{n}" for n in range(700)]  # of more than one query
    for name in ("one", "two"):
        shared_store.logs.write("n", [entry(key, name.encode()) for key in keys])
        shared_store.releases.create("n", name, sign)
    shared_store.releases.promote("n", "one")
    ended, start = threading.Event(), threading.Barrier(21)

    def promote():
        start.wait()
        for name in cycle(("two", "one")):
            shared_store.releases.promote("n", name)
            if ended.is_set():
                return

    def look(_):
        start.wait()
        for _ in range(5):
            release, values = served(shared_store, keys=keys)
            assert len(values) == 700 and set(values.values()) == {release.encode()}

    with ThreadPoolExecutor(21) as threads:
        promoting = threads.submit(promote)
        try:
            list(threads.map(look, range(20)))
        finally:
            ended.set()
        promoting.result()
    assert len(shared_store.releases.promotions("n")) > 1


def test_of_two_promotions_at_once_one_is_last(shared_store):
    shared_store.logs.write("n", [entry()])
    names = [f"r{n}" for n in range(4)]
    for name in names:
        shared_store.releases.create("n", name, sign)
    before = shared_store.logs.namespace("n").revision
    in_threads(lambda number: shared_store.releases.promote("n", names[number]), 4)
    steps = shared_store.releases.promotions("n")
    assert sorted(step.release for step in steps) == names
    space = shared_store.logs.namespace("n")
    assert (space.release, space.revision) == (steps[0].release, before + 4)


def test_of_two_ways_back_at_once_one_is_gone(shared_store):
    shared_store.logs.write("n", [entry()])
    for name in ("a", "b", "c"):
        shared_store.releases.create("n", name, sign)
        shared_store.releases.promote("n", name)
    assert in_threads(lambda _: shared_store.releases.roll_back("n", "c"), 4) == ["b"] * 4
    assert len(shared_store.releases.promotions("n")) == 4


def test_writers_and_releases_at_once(shared_store):
    """A release has a whole number of writes, each of which is of two entries."""

    def work(number):
        for n in range(10):
            if number:
                value = f"{number}-{n}".encode()
                shared_store.logs.write("n", [entry("k", value), entry("l", value)])
            else:
                release = shared_store.releases.create("n", f"r{n}", sign)
                assert release.manifest.entries == 2

    shared_store.logs.write("n", [entry("k"), entry("l")])
    in_threads(work, 3)
    for n in range(10):
        values = served(shared_store, release=f"r{n}")[1]
        assert values["k"] == values["l"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_writers_get_in_between_the_pages_of_a_release(store, monkeypatch, seed):
    """Whenever they do, it has what was served at one revision: the one that it names."""
    rng = random.Random(seed)
    monkeypatch.setattr("tunewright.db.logs.drafts.ROWS_AT_ONCE", 3)
    monkeypatch.setattr("tunewright.db.logs.releases.PAGE", 3)
    seen = {}

    def look():
        found = store.logs.list("n", served=True, limit=100)
        seen[store.logs.namespace("n").revision] = {(e.key, e.environment.fingerprint): e.value for e in found}

    def write():
        one = rng.choice(store.logs.list("n", served=True, limit=100))
        if rng.random() < 0.3:
            store.logs.decide("n", one.key, one.environment, one.choice, EntryState.RETIRED)
        else:
            new = [entry(f"k{rng.randrange(20)}", b"%d" % rng.randrange(99), rng.choice([H100, OLDER])) for _ in "abcd"]
            store.logs.write("n", new)
        look()

    def disturb(owner, name):
        method = getattr(owner, name)

        def call(*args):
            for _ in range(rng.randrange(3)):
                write()
            return method(*args)

        monkeypatch.setattr(owner, name, call)

    store.logs.write("n", [entry(f"k{n}", environment=e) for n in range(10) for e in (H100, OLDER)])
    look()
    for name in ("_copy", "_follow", "_settle"):
        disturb(store.releases._drafts, name)
    disturb(store.releases, "_read")
    release = store.releases.create("n", "one", sign)
    lines = [parse_line(line.decode()) for line in b"".join(store.releases.export(release)).splitlines()[1:]]
    told = {(e.key, e.environment.fingerprint): e.value for e in lines}
    assert told == seen[release.manifest.revision]
    assert max(seen) > release.manifest.revision


def test_writers_wait_for_what_was_written_last_alone(store, monkeypatch):
    """However many entries there are: the others were added before."""
    drafts = store.releases._drafts
    settle, add = drafts._settle, drafts._add
    added: list[int] = []

    def note(session, draft, numbers):
        added.extend(numbers)
        add(session, draft, numbers)

    def last(*args):
        store.logs.write("n", [entry("k7", b"w")])
        with monkeypatch.context() as patch:
            patch.setattr(drafts, "_add", note)
            settle(*args)

    monkeypatch.setattr(drafts, "_settle", last)
    store.logs.write("n", [entry(f"k{n}") for n in range(50)])
    release = store.releases.create("n", "one", sign)
    assert (len(added), release.manifest.entries) == (1, 50)
    assert served(store, keys=["k7"], release="one")[1] == {"k7": b"w"}


def draft_rows(store):
    with store.database.read() as session:
        return [session.scalar(select(func.count()).select_from(row)) for row in (ReleaseRow, ReleaseEntryRow)]


def fail(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["_copy", "_settle"])
@pytest.mark.parametrize("how", ["sweep", "create", "delete"])
def test_what_a_process_that_died_has_left_is_removed(store, monkeypatch, step, how):
    monkeypatch.setattr("tunewright.db.logs.drafts.ROWS_AT_ONCE", 2)
    store.logs.write("n", [entry(f"k{n}") for n in range(5)])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store.releases._drafts, step, fail)
        patch.setattr("tunewright.db.logs.releases.remove_draft", lambda *_: None)
        store.releases.create("n", "one", sign)
    store.logs.sweep()  # it may be at work still
    assert draft_rows(store) == [1, 0 if step == "_copy" else 5]
    assert store.releases.list("n") == []
    if how == "delete":
        assert store.logs.delete("n") == 5
        store.logs.sweep()
        assert draft_rows(store) == [0, 0]
        return
    later = datetime.now(UTC) + timedelta(seconds=DRAFT_S + 60.0)
    monkeypatch.setattr(store.database, "clock", lambda: later)
    if how == "sweep":
        store.logs.sweep()
        assert draft_rows(store) == [0, 0]
    store.releases.create("n", "one", sign)
    assert draft_rows(store) == [1, 5]


def test_who_is_held_up_for_too_long_is_told(store, monkeypatch):
    store.logs.write("n", [entry()])
    drafts = store.releases._drafts
    settle = drafts._settle
    losses = {
        ReleaseConflict: lambda draft: remove_draft(store.database, draft.id),
        NotFound: lambda draft: store.logs.delete("n"),
    }
    for error, lose in losses.items():
        monkeypatch.setattr(drafts, "_settle", lambda draft, since, lose=lose: (lose(draft), settle(draft, since)))
        with pytest.raises(error):
            store.releases.create("n", "one", sign)
    store.logs.sweep()
    assert draft_rows(store) == [0, 0]


def test_what_fails_leaves_no_draft(store):
    store.logs.write("n", [entry()])
    with pytest.raises(KeyboardInterrupt):
        store.releases.create("n", "one", fail)
    assert draft_rows(store) == [0, 0]


def test_an_export_of_what_was_deleted_does_not_end(store, monkeypatch):
    """Also where another release was made since then: no number is used again."""
    monkeypatch.setattr("tunewright.db.logs.releases.PAGE", 2)
    store.logs.write("n", [entry(f"k{n}") for n in range(5)])
    release = store.releases.create("n", "one", sign)
    pieces = store.releases.export(release)
    assert [next(pieces).count(b"\n") for _ in range(2)] == [1, 2]
    store.releases.delete("n", "one")
    with pytest.raises(NotFound, match="n has the release one no more"):
        list(pieces)
    again = store.releases.create("n", "one", sign)
    assert again.id > release.id
    for read in (
        store.releases.export(release),
        store.releases.changes(release, None),
        store.releases.changes(again, release),
    ):
        with pytest.raises(NotFound):
            list(read)


def test_what_was_promoted_is_told_after_its_deletion(store):
    store.logs.write("n", [entry()])
    for name in ("a", "b", "c"):
        store.releases.create("n", name, sign)
        store.releases.promote("n", name, f"by {name}")
    store.releases.delete("n", "b")
    store.releases.create("n", "b", sign)  # another one, which was never promoted
    told = [(one.release, one.owner) for one in store.releases.promotions("n")]
    assert told == [("c", "by c"), ("b", "by b"), ("a", "by a")]
    assert store.releases.roll_back("n", "c") == "a"
    assert store.releases.roll_back("n", "a") is None


def test_a_way_back_from_what_others_have_replaced_is_refused(store):
    store.logs.write("n", [entry()])
    for name in ("a", "b"):
        store.releases.create("n", name, sign)
    for other in ("b", None):
        store.releases.promote("n", "a")
        store.releases.promote("n", other)
        with pytest.raises(ReleaseConflict, match="not answered from a"):
            store.releases.roll_back("n", "a")
    store.releases.promote("n", "b")
    assert store.releases.roll_back("n", "b") is None
    store.releases.promote("n", "a")
    with pytest.raises(ReleaseConflict, match="not answered from b"):
        store.releases.roll_back("n", "b")  # that was no longer the last step
    assert served(store)[0] == "a"


KILLED = """
import os, signal, sys
from sqlalchemy import event
from sqlalchemy.orm import Session
from tunewright.db.logs.release import ReleaseSignature
from tunewright.db.store import open_store

url, step, commits = sys.argv[1:]
left = int(commits)

def commit(session):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

with open_store(url) as store:
    event.listen(Session, "before_commit", commit)
    if step == "create":
        store.releases.create("n", "new", lambda content: ReleaseSignature("A" * 43 + "=", "B" * 86 + "=="))
    elif step == "promote":
        store.releases.promote("n", "two")
    else:
        store.releases.delete("n", "two")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "commits"), [*(("create", commits) for commits in (1, 4, 6, 8, 10)), ("promote", 1), ("delete", 1)]
)
def test_who_is_killed_in_between_leaves_nothing_that_is_found(shared_store, shared_url, step, commits):
    shared_store.logs.write("n", [entry()])
    for name in ("one", "two"):
        shared_store.releases.create("n", name, sign)
    shared_store.releases.promote("n", "one")
    space, releases = shared_store.logs.namespace("n"), shared_store.releases.list("n")
    ended = subprocess.run([sys.executable, "-c", KILLED, shared_url, step, str(commits)], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert (shared_store.logs.namespace("n"), shared_store.releases.list("n")) == (space, releases)
    assert served(shared_store) == ("one", {"k": b"v"})
    shared_store.releases.create("n", "new", sign)  # nothing of it is in the way
    shared_store.releases.promote("n", "two")
    shared_store.releases.roll_back("n", "two")
    shared_store.releases.delete("n", "two")


def test_lookups_take_one_indexed_join_more(store):
    store.logs.write("n", [entry(f"k{n}") for n in range(50)])
    with selected(store) as without:
        served(store)
    store.releases.create("n", "one", sign)
    store.releases.promote("n", "one")
    with selected(store) as promoted:
        served(store)
    assert len(promoted) == len(without)
    query = promoted[-1]
    assert "log_release_entries" in query[0] and "log_release_entries" not in without[-1][0]
    if store.database.is_sqlite:
        assert "SEARCH log_release_entries" in plan(store, query)


def test_manifests_are_read_back():
    text = {"format": "tunewright-release-1", "namespace": "n", "name": "a", "revision": 1, "entries": 2}
    data: dict[str, object] = text | {"sha256": "ab" * 32, "created_at": "2026-11-30T00:00:00.000001Z"}
    assert Manifest.from_json(data).to_json() == data
    moments = [
        "now",
        "0001-01-01T00:00:00+23:59",
        "2026-11-30T00:00:00.000001+00:00",
        "2026-11-30T00:00:00Z",
        "2026-11-30T00:00:00.000001",
        "2026-13-30T00:00:00.000001Z",
    ]
    changes: list[dict[str, object]] = [{"format": "x"}, {"revision": "1"}, {"more": 1}]
    changes += [{"created_at": moment} for moment in moments]
    for change in changes:
        with pytest.raises(ValueError):
            Manifest.from_json(data | change)
