"""Audits: keys and tasks on which machines of one fleet would not agree, and no others."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.db.logs.audit import FindingKind, LogAudit
from tunewright.db.logs.entry import UNKNOWN, Cost, CostEvidence, EntryState, LogEntry, LogEnvironment
from tunewright.db.logs.release import ReleaseSignature
from tunewright.search_space.measurement import Record

NEW = LogEnvironment("H100", "triton", {"cuda": "13.0"})
OLD = LogEnvironment("H100", "triton", {"cuda": "12.8"})
H200 = LogEnvironment("H200", "triton", {"cuda": "13.0"})
TVM = LogEnvironment("H100", "tvm", {"cuda": "13.0"})


def entry(key="k", value=b"v", environment=NEW, cost=UNKNOWN):
    return LogEntry(key, value, environment, cost)


def sign(content):
    return ReleaseSignature("A" * 43 + "=", "B" * 86 + "==")


def audit(store, namespace="n"):
    return LogAudit(store.database, store.logs.namespace(namespace))


def told(store):
    """Kind, key and fingerprints with choices of each finding."""
    return {
        (line["kind"], line["key"], tuple(sorted((one["fingerprint"], one["choice"]) for one in line["served"])))
        for line in audit(store).lines()
        if "summary" not in line
    }


def summary(store):
    *_, last = audit(store).lines()
    return last["summary"]


def test_a_fleet_that_agrees(store):
    store.logs.write("n", [entry(environment=one) for one in (NEW, OLD, TVM)])
    store.logs.write("n", [entry(value=b"other", environment=H200)])  # other machines may differ
    assert told(store) == set()
    assert summary(store) == {"keys": 1, "disagreement": 0, "tie": 0, "missing": 0}


def test_environments_that_are_served_differently(store):
    store.logs.write(
        "n", [entry(value=b"a"), entry(value=b"b", environment=OLD), entry("same"), entry("same", environment=OLD)]
    )
    a, b = entry(value=b"a").choice, entry(value=b"b").choice
    assert told(store) == {("disagreement", "k", tuple(sorted([(NEW.fingerprint, a), (OLD.fingerprint, b)])))}
    [line, last] = audit(store).lines()
    assert (line["device"], line["toolchain"], line["lacking"]) == ("H100", "triton", [])
    assert {tuple(one["versions"].items()) for one in line["served"]} == {(("cuda", "13.0"),), (("cuda", "12.8"),)}
    assert last["summary"] == {"keys": 2, "disagreement": 1, "tie": 0, "missing": 0}
    store.logs.write("n", [entry(value=b"b")])
    assert told(store) == set()


def test_what_some_environments_lack(store):
    store.logs.write("n", [entry(), entry("l", environment=OLD), entry("both"), entry("both", environment=OLD)])
    lines = [line for line in audit(store).lines() if "summary" not in line]
    assert {(line["kind"], line["key"]) for line in lines} == {("missing", "k"), ("missing", "l")}
    assert {line["key"]: [one["fingerprint"] for one in line["lacking"]] for line in lines} == {
        "k": [OLD.fingerprint],
        "l": [NEW.fingerprint],
    }


def test_ties(store):
    close = [Cost(1.0, 0.9, 1.2, 9, CostEvidence.TIMED), Cost(1.1, 1.0, 1.3, 9, CostEvidence.TIMED)]
    store.logs.write("n", [entry(value=b"%d" % n, cost=cost) for n, cost in enumerate(close)])
    store.logs.write("n", [entry("clear", b"0", cost=Cost(1.0, evidence=CostEvidence.TIMED))])
    store.logs.write("n", [entry("clear", b"1", cost=Cost(2.0, evidence=CostEvidence.TIMED))])
    store.logs.write("n", [entry("untimed", b"0"), entry("untimed", b"1")])
    [(kind, key, rivals)] = told(store)
    assert (kind, key, len(rivals)) == ("tie", "k", 2)
    store.logs.decide("n", "k", NEW, entry(value=b"0").choice, EntryState.RETIRED)
    assert told(store) == set()


def test_what_is_promoted_counts(store):
    store.logs.write("n", [entry(), entry(environment=OLD)])
    store.releases.create("n", "one", sign)
    store.logs.write("n", [entry(value=b"new")])
    assert summary(store)["disagreement"] == 1
    store.releases.promote("n", "one")
    assert summary(store)["disagreement"] == 0
    store.releases.create("n", "two", sign)
    store.releases.promote("n", "two")
    assert summary(store)["disagreement"] == 1


def test_random_logs(store, monkeypatch):
    """The findings are those of a simple look at what each environment is served."""
    monkeypatch.setattr("tunewright.db.logs.audit.ROWS_AT_ONCE", 7)
    rng = random.Random(5)
    environments = [NEW, OLD, LogEnvironment("H100", "triton", {"cuda": "12.6"}), H200, TVM]
    for _ in range(120):
        key, environment = f"k{rng.randrange(8)}", rng.choice(environments)
        store.logs.write("n", [entry(key, b"%d" % rng.randrange(2), environment)])
    served = {(e.key, e.environment.fingerprint): e.choice for e in store.logs.list("n", served=True, limit=200)}
    expected = set()
    for key in {key for key, _ in served}:
        for fleet in (environments[:3], [H200], [TVM]):
            there = [
                (one.fingerprint, served[key, one.fingerprint]) for one in fleet if (key, one.fingerprint) in served
            ]
            if len({choice for _, choice in there}) > 1:
                expected.add(("disagreement", key, tuple(sorted(there))))
            if 0 < len(there) < len(fleet):
                expected.add(("missing", key, tuple(sorted(there))))
    assert told(store) == expected
    assert len(expected) > 3
    counts = Counter(kind for kind, _, _ in expected)
    assert summary(store) == {"keys": 8} | {str(kind): counts[kind] for kind in FindingKind}


@pytest.fixture
def best(store, samples):
    """A function that stores the best of a task on a target."""

    def keep(target, number, extent=8, provenance=None):
        store.add_task(samples.task(extent))
        store.add_target(target)
        measurement = replace(samples.measurement(), provenance=provenance or {"llvm": "22.1"})
        store.record(Record(samples.task(extent).key, target.key, samples.schedule(number), measurement))

    return keep


def test_schedules_that_differ_on_the_same_processor(store, samples, best):
    two, four = samples.target(2), samples.target(4)
    large = replace(two, l2_bytes=2 << 20)
    best(two, 1)
    best(four, 2)
    best(large, 1, provenance={"llvm": "21.0"})
    best(two, 1, 9)
    best(four, 1, 9)
    best(two, 1, 10)  # on one target alone
    [finding] = store.schedule_audit.findings()
    assert (finding.task_key, finding.op, finding.processor) == (samples.task(8).key, "Relu", "znver5")
    assert finding.differences == ("threads", "l2_bytes", "llvm")
    assert {best.target.key for best in finding.bests} == {two.key, four.key, large.key}
    [line, last] = store.schedule_audit.lines()
    assert last == {"summary": {"disagreement": 1}}
    told = {one["target"]: (one["threads"], one["schedule"]) for one in line["bests"]}
    assert told[four.key] == (4, samples.schedule(2).to_json())


def test_schedules_of_other_processors_may_differ(store, samples, best):
    best(samples.target(2), 1)
    best(replace(samples.target(2), cpu="znver4"), 2)
    best(replace(samples.target(2), features="+avx2"), 3)
    assert list(store.schedule_audit.findings()) == []


def test_gpus_of_one_name_are_one_processor(store, best):
    gpu = KNOWN["sm_90a"]
    one, other = Target.of_gpu(gpu), Target.of_gpu(replace(gpu, sms=gpu.sms - 1))
    best(one, 1, provenance={"gpu": "H100", "driver": "1"})
    best(other, 2, provenance={"gpu": "H200", "driver": "2"})
    assert list(store.schedule_audit.findings()) == []
    best(one, 1, 9, provenance={"gpu": "H100", "driver": "1"})
    best(other, 2, 9, provenance={"gpu": "H100", "driver": "2"})
    [finding] = store.schedule_audit.findings()
    assert (finding.processor, finding.differences) == ("H100", ("threads", "driver"))


def test_many_pages_of_tasks(store, samples, best, monkeypatch):
    monkeypatch.setattr("tunewright.db.schedule_audit.TASKS_AT_ONCE", 3)
    for extent in range(8, 18):
        best(samples.target(2), 1, extent)
        best(samples.target(4), 1 + extent % 2, extent)
    assert len(list(store.schedule_audit.findings())) == 5
