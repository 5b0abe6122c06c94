"""The log in a database: what is written is found, by whoever asks, once."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import permutations

import pytest
from sqlalchemy import func, select

from tunewright.db.errors import NotFound
from tunewright.db.logs import sweep
from tunewright.db.logs.choice import LogRival, choose
from tunewright.db.logs.entry import Cost, CostEvidence, EntryState, LogEntry, LogEnvironment, LogMatch
from tunewright.db.logs.logs import LogFull, LogQuota, WriteCounts
from tunewright.db.logs.sweep import SweptLog
from tunewright.db.logs.tables import EnvironmentRow, LogEntryRow, NamespaceRow, PromotionRow
from tunewright.db.store import open_store

H100 = LogEnvironment("H100", "triton", {"cuda": "13.0"})
OLDER = LogEnvironment("H100", "triton", {"cuda": "12.8"})
H200 = LogEnvironment("H200", "triton", {"cuda": "13.0"})
TVM = LogEnvironment("H100", "tvm", {"cuda": "13.0"})


def entry(key="k", value=b"v", environment=H100, time_s=None, **others):
    cost = Cost(time_s, evidence=CostEvidence.TIMED) if time_s is not None else Cost()
    return LogEntry(key, value, environment, others.pop("cost", cost), **others)


def served(store, key="k", environment=H100, namespace="n", **others):
    found = store.logs.look_up(namespace, [key], environment, **others)
    return found[key].entry.value if key in found else None


def test_what_is_written_is_found(store):
    cost = Cost(2e-6, 1e-6, 3e-6, 9, CostEvidence.CONFIRMED)
    written = LogEntry("a key", b"\x80\x00", H100, cost, machine="host/1")
    assert store.logs.write("n", [written], "owner") == WriteCounts(1, 0, 0)
    found = store.logs.look_up("n", ["a key", "other"], H100)
    assert list(found) == ["a key"]
    back = found["a key"].entry
    assert (back.value, back.environment, back.cost, back.machine) == (b"\x80\x00", H100, cost, "host/1")
    assert (back.state, back.is_served, found["a key"].match) == (EntryState.CANDIDATE, True, LogMatch.EXACT)
    [space] = store.logs.namespaces()
    assert (space.name, space.entries, space.size_bytes) == ("n", 1, len("a key") + 2)


def test_writing_again_changes_nothing(store):
    entries = [entry(time_s=1.0), entry(value=b"w", time_s=2.0), entry("other")]
    assert store.logs.write("n", entries) == WriteCounts(3, 0, 0)
    before = store.logs.list("n")
    assert store.logs.write("n", entries) == WriteCounts(0, 0, 3)
    assert store.logs.list("n") == before
    assert store.logs.namespace("n").entries == 3


def test_the_same_value_twice_in_one_write_is_one(store):
    assert store.logs.write("n", [entry(time_s=2.0), entry(time_s=2.0)]) == WriteCounts(1, 0, 1)


def test_namespaces_and_environments_are_apart(store):
    store.logs.write("n", [entry()])
    store.logs.write("m", [entry(value=b"of m")])
    assert served(store) == b"v"
    assert served(store, namespace="m") == b"of m"
    assert served(store, namespace="nobody's") is None
    for environment in (OLDER, H200, TVM, LogEnvironment()):
        assert served(store, environment=environment) is None


def test_loose_matches_are_found_only_when_asked_for(store):
    store.logs.write("n", [entry(value=b"older", environment=OLDER), entry(value=b"other device", environment=H200)])
    assert served(store) is None
    assert served(store, loose=[LogMatch.DEVICE]) == b"other device"
    found = store.logs.look_up("n", ["k"], H100, [LogMatch.DEVICE, LogMatch.VERSION])["k"]
    assert (found.entry.value, found.match, found.entry.environment) == (b"older", LogMatch.VERSION, OLDER)
    store.logs.write("n", [entry(value=b"exact"), entry(value=b"of another toolchain", environment=TVM)])
    assert served(store, loose=[LogMatch.DEVICE, LogMatch.VERSION]) == b"exact"


def test_the_least_cost_is_served_and_stronger_evidence_counts(store):
    store.logs.write("n", [entry(value=b"a", time_s=1.0), entry(value=b"b", time_s=2.0)])
    assert served(store) == b"a"
    slower = entry(value=b"a", cost=Cost(3.0, evidence=CostEvidence.CONFIRMED))
    faster = entry(value=b"b", cost=Cost(2.0, evidence=CostEvidence.CONFIRMED))
    assert store.logs.write("n", [slower, faster]) == WriteCounts(0, 2, 0)
    assert served(store) == b"b"
    store.logs.write("n", [entry(value=b"a", time_s=0.1)])  # weaker evidence than there is
    assert served(store) == b"b"


def test_the_order_of_costs_does_not_matter(store):
    """So servers that import from each other agree, and a moment of noise does not take the place of a good time."""
    costs = [
        Cost(3.0, 2.9, 3.1, 9, CostEvidence.TIMED),
        Cost(2.0, 1.9, 2.6, 9, CostEvidence.TIMED),
        Cost(2.0, 1.9, 2.5, 9, CostEvidence.TIMED),
        Cost(1.0, samples=3, evidence=CostEvidence.TIMED),
        Cost(),
    ]
    for number, order in enumerate(permutations(costs)):
        for cost in order:
            store.logs.write("n", [entry(key=f"k{number}", value=b"a", cost=cost)])
    found = store.logs.look_up("n", [f"k{number}" for number in range(120)], H100)
    assert len(found) == 120 and {hit.entry.cost for hit in found.values()} == {costs[2]}


def test_without_costs_what_was_written_last_is_served(store):
    for value in (b"a", b"b", b"a", b"c", b"c", b"b"):
        store.logs.write("n", [entry(value=value)])
        assert served(store) == value


def test_people_decide(store):
    store.logs.write("n", [entry(value=b"a", time_s=1.0), entry(value=b"b", time_s=2.0)])
    a, b = entry(value=b"a"), entry(value=b"b")
    store.logs.decide("n", "k", H100, a.choice, EntryState.RETIRED)
    assert served(store) == b"b"
    store.logs.write("n", [entry(value=b"a", time_s=0.5)])
    assert served(store) == b"b"  # it stays retired, however fast
    store.logs.decide("n", "k", H100, b.choice, EntryState.RETIRED)
    assert served(store) is None
    store.logs.decide("n", "k", H100, a.choice, EntryState.APPROVED)
    assert served(store) == b"a"
    for key, environment, choice in (("k", H100, "00" * 16), ("x", H100, a.choice), ("k", TVM, a.choice)):
        with pytest.raises(NotFound):
            store.logs.decide("n", key, environment, choice, EntryState.RETIRED)


def test_a_namespace_has_a_quota(store):
    store.logs.write("n", [entry("a"), entry("b")], quota=LogQuota(entries=2))
    with pytest.raises(LogFull, match="n has 2 entries already"):
        store.logs.write("n", [entry("c")], quota=LogQuota(entries=2))
    store.logs.write("n", [entry("a", time_s=1.0)], quota=LogQuota(entries=2))  # no entry more
    with pytest.raises(LogFull, match="bytes already"):
        store.logs.write("n", [entry("c", bytes(100))], quota=LogQuota(size_bytes=100))
    assert store.logs.namespace("n").entries == 2
    assert served(store, "c") is None


def test_lists_go_through_all_and_tell_what_changed(store):
    store.logs.write("n", [entry(f"k{n}") for n in range(7)])
    newest_first = [e.key for e in store.logs.list("n")]
    pages, before = [], None
    while page := store.logs.list("n", before=before, limit=3):
        pages += [e.key for e in page]
        before = page[-1].revision
    assert pages == newest_first
    assert sorted(pages) == [f"k{n}" for n in range(7)]
    seen = store.logs.namespace("n").revision
    assert store.logs.list("n", since=seen) == []
    store.logs.write("n", [entry("k3", time_s=1.0), entry("new", environment=H200)])
    assert [e.key for e in store.logs.list("n", since=seen)] == ["k3", "new"]
    assert [e.key for e in store.logs.list("n", fingerprint=H200.fingerprint)] == ["new"]
    assert [e.key for e in store.logs.list("n", key="k5")] == ["k5"]
    with pytest.raises(NotFound):
        store.logs.list("nobody's")


def test_a_namespace_is_deleted_whole(store):
    store.logs.write("n", [entry("a"), entry("b")])
    store.logs.write("m", [entry()])
    assert store.logs.delete("n") == 2
    assert [space.name for space in store.logs.namespaces()] == ["m"]
    assert served(store, "a") is None
    with pytest.raises(NotFound):
        store.logs.delete("n")


def test_what_is_written_after_a_deletion_is_news(store):
    store.logs.write("n", [entry("a")])
    seen = store.logs.namespace("n").revision
    store.logs.delete("n")
    store.logs.write("n", [entry("a")])
    assert store.logs.namespace("n").revision > seen
    assert [e.key for e in store.logs.list("n", since=seen)] == ["a"]


@pytest.fixture
def nine(store):
    """A namespace of nine entries, of which no release is promoted any more."""
    store.logs.write("n", [entry(f"k{number}", environment=(H100, H200)[number % 2]) for number in range(9)])
    with store.database.write() as session:
        space = session.scalars(select(NamespaceRow)).one()
        session.add(PromotionRow(namespace_id=space.id, owner="", created_at=space.created_at))
    return store


LEFT = (LogEntryRow, PromotionRow, EnvironmentRow)


def rows_left(store):
    with store.database.read() as session:
        return [session.scalar(select(func.count()).select_from(row)) for row in LEFT]


def test_the_rows_of_a_deleted_namespace_are_swept_piece_by_piece(nine, monkeypatch):
    monkeypatch.setattr(sweep, "REMOVED_AT_ONCE", 2)
    nine.logs.write("m", [entry(environment=TVM), entry(environment=OLDER)])
    assert nine.logs.sweep() == SweptLog(0, 0)
    before = rows_left(nine)
    assert nine.logs.delete("n") == 9
    assert rows_left(nine) == before
    with nine.database.read() as session:
        assert sweep.swept(session) == SweptLog(9, 2)
    assert nine.logs.sweep() == SweptLog(9, 2)
    assert rows_left(nine) == [2, 0, 2]
    assert nine.logs.sweep() == SweptLog(0, 0)
    assert served(nine, environment=TVM, namespace="m") == b"v"
    assert [space.name for space in nine.logs.namespaces()] == ["m"]


def test_a_sweep_that_broke_off_is_gone_on_with_while_the_name_is_in_use(nine, monkeypatch):
    monkeypatch.setattr(sweep, "REMOVED_AT_ONCE", 2)
    nine.logs.delete("n")
    for number in range(3):
        goes_on = iter([True, False])  # one transaction, and the process is killed
        sweep.sweep(nine.database, partial(next, goes_on, False))
        nine.logs.write("n", [entry(f"k{number}", b"new")])
    assert nine.logs.sweep().entries > 0
    found = nine.logs.look_up("n", [f"k{number}" for number in range(9)], H100)
    assert {key: hit.entry.value for key, hit in found.items()} == {f"k{number}": b"new" for number in range(3)}
    assert rows_left(nine)[:-1] == [3, 0]


def test_an_environment_comes_back_as_itself(store):
    """SQLite would use the number of the newest one again, by which it is known to all processes."""
    store.logs.write("n", [entry(environment=H100), entry(environment=H200)])
    assert len(store.logs.list("n")) == 2
    store.logs.delete("n")
    store.logs.sweep()
    store.logs.write("n", [entry(environment=TVM)])
    assert [e.environment for e in store.logs.list("n")] == [TVM]


def test_writers_deleters_and_sweepers_at_once(shared_url):
    def work(number):
        with open_store(shared_url) as store:
            for turn in range(12):
                match number:
                    case 0:
                        with suppress(NotFound):
                            store.logs.delete("n")
                    case 1 | 2:
                        store.logs.sweep()
                    case _:
                        environment = LogEnvironment("H100", f"of {number}", {"turn": str(turn % 3)})
                        store.logs.write("n", [entry(f"{number} {turn}", environment=environment)])

    open_store(shared_url).close()
    with ThreadPoolExecutor(5) as threads:
        list(threads.map(work, range(5)))
    with open_store(shared_url) as store:
        store.logs.write("n", [entry("last")])
        assert len(store.logs.list("n")) == store.logs.namespace("n").entries
        store.logs.delete("n")
        store.logs.sweep()
        assert rows_left(store)[0] == 0 and store.logs.namespaces() == []


def test_values_that_no_compiler_writes_are_refused(store):
    key = f"triton:{'A2' * 26}:f.autotune.json"
    for namespace in ("triton", "triton.team"):
        with pytest.raises(ValueError, match="is none that its compiler writes"):
            store.logs.write(namespace, [entry(key, b"{}")])
    assert store.logs.namespaces() == []
    store.logs.write("other", [entry(key, b"{}")])


def test_random_histories(store):
    """After any writes and decisions each key serves what the rule chooses from all that was told of it."""
    rng = random.Random(3)
    known: dict[str, dict[bytes, tuple[Cost, EntryState, int]]] = {f"k{n}": {} for n in range(3)}
    for moment in range(150):
        key, value = rng.choice(list(known)), bytes([rng.randrange(3)])
        old, state, _ = known[key].get(value, (None, EntryState.CANDIDATE, 0))
        if old is not None and rng.random() < 0.2:
            state = rng.choice(list(EntryState))
            store.logs.decide("n", key, H100, entry(value=value).choice, state)
        else:
            evidence = rng.choice([CostEvidence.TIMED, CostEvidence.CONFIRMED])
            told = Cost(float(rng.randint(1, 4)), evidence=evidence)
            store.logs.write("n", [entry(key, value, cost=told)])
            old = told if old is None else min(old, told, key=lambda cost: (-cost.evidence.rank, cost.time_s))
        known[key][value] = old, state, moment
        rows = [LogRival(bytes.fromhex(entry(value=v).choice), s, c, m) for v, (c, s, m) in known[key].items()]
        right = choose(rows)
        values = {bytes.fromhex(entry(value=v).choice): v for v in known[key]}
        assert served(store, key) == (None if right is None else values[right.choice])
    assert store.logs.namespace("n").entries == sum(map(len, known.values()))
    assert len(store.logs.list("n", served=True)) <= len(known)


@pytest.fixture
def shared_store(shared_url):
    with open_store(shared_url) as opened:
        yield opened


def test_many_write_at_once(shared_store):
    """Counts are right, nothing is lost, and of each key one value is served."""
    start = threading.Barrier(4)

    def write(writer: int) -> None:
        start.wait()
        for n in range(10):
            shared_store.logs.write("n", [entry(f"k{n}", f"{writer}".encode()), entry(f"{writer}-{n}")])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert shared_store.logs.namespace("n").entries == 80 == len(shared_store.logs.list("n", limit=100))
    assert len(shared_store.logs.list("n", limit=100, served=True)) == 50
