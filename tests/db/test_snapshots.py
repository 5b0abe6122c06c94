"""The contract of Snapshots, checked on every database."""

import dataclasses
import hashlib
import math

import pytest
from sqlalchemy import event, update

from tunewright.db.errors import NotFound
from tunewright.db.job import SearchBudget
from tunewright.db.snapshot import LARGEST_BYTES, MAX_CONTENTS, NewSnapshot
from tunewright.db.tables import CostModelRow

from .conftest import in_threads

METRICS = {"pairwise": 0.91, "peak": {"1": 0.9, "5": 0.98}, "tasks": ["ab", "cd\0"], "calibration": None}


def new(number=0, kind="cpu", version="f1", **other):
    content = b"\0\xff" * 1000 + number.to_bytes(4, "big")
    return NewSnapshot(kind, version, content, trials=100 + number, newest_trial_id=7, metrics=METRICS, **other)


@pytest.fixture
def costs(filled):
    return filled.snapshots


def test_a_model_comes_back_with_its_content(filled, costs, samples, clock):
    lease = filled.jobs.open(samples.spec(), "", SearchBudget(1), "h")
    model = new(3, parent_sha256="cd" * 32, job_id=lease.job_id)
    snapshot = costs.keep(model)
    assert (snapshot.made_at, snapshot.sha256, snapshot.size_bytes) == (
        clock.now,
        hashlib.sha256(model.content).hexdigest(),
        2004,
    )
    for field in dataclasses.fields(NewSnapshot):
        if field.name != "content":
            assert getattr(snapshot, field.name) == getattr(model, field.name)
    assert (snapshot.has_content, snapshot.content) == (True, b"")
    assert costs.newest("cpu", "f1", "cd" * 32) == dataclasses.replace(snapshot, content=model.content)
    assert costs.newest("cpu", "f1") is costs.newest("cpu", "f1", "ab" * 32) is None
    assert costs.list() == [snapshot]


def test_the_newest_is_of_a_kind_of_target_and_of_what_its_inputs_mean(costs):
    for number, (kind, version) in enumerate([("cpu", "f1"), ("cpu", "f2"), ("cuda", "f1"), ("cpu", "f1")]):
        costs.keep(new(number, kind, version))
    snapshots = {
        place: costs.newest(*place) for place in [("cpu", "f1"), ("cpu", "f2"), ("cuda", "f1"), ("cuda", "f2")]
    }
    assert [snapshot and snapshot.trials for snapshot in snapshots.values()] == [103, 101, 102, None]


def test_the_same_content_is_kept_once_for_a_kind(costs, clock):
    first = costs.keep(new(1))
    clock.advance(5)
    costs.keep(new(2))
    assert costs.keep(dataclasses.replace(new(1), trials=5, metrics={})) == first
    assert costs.keep(new(1, "cuda")).id not in {snapshot.id for snapshot in costs.list("cpu")}
    assert len(costs.list()) == 3
    assert costs.newest("cpu", "f1").trials == 102


def test_several_may_keep_the_same_at_once(costs):
    assert len(set(in_threads(lambda number: costs.keep(new(number // 2)).id, 4))) == 2


def test_old_contents_are_dropped_and_their_metrics_stay(costs):
    costs.keep(new(99, "cuda"))
    ids = [costs.keep(new(number, version=f"f{number % 2}")).id for number in range(MAX_CONTENTS + 3)]
    listed = costs.list("cpu")
    assert [snapshot.id for snapshot in listed] == ids[::-1]
    assert [snapshot.has_content for snapshot in listed] == [True] * MAX_CONTENTS + [False] * 3
    assert {str(snapshot.metrics) for snapshot in listed} == {str(METRICS)}
    assert {snapshot.size_bytes for snapshot in listed} == {2004}
    assert costs.newest("cuda", "f1").has_content
    again = costs.keep(new(0))
    assert (again.id, again.has_content) == (ids[0], False)


def test_they_are_listed_page_by_page_without_contents(filled, costs):
    ids = [costs.keep(new(number)).id for number in range(5)]
    statements = []
    event.listen(filled.database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    first = costs.list(limit=2)
    rest = costs.list(limit=9, before=first[-1].id)
    assert [snapshot.id for snapshot in first + rest] == ids[::-1]
    assert costs.list("abacus") == []
    selected = [text.partition("FROM")[0] for text in statements if text.startswith("SELECT")]
    assert len(selected) == 3
    whether = ".content IS NOT NULL"
    assert all(text.count(".content") == text.count(whether) == 1 for text in selected)


def test_only_the_content_of_the_newest_is_read(filled, costs):
    for number in range(3):
        costs.keep(new(number))
    statements = []
    event.listen(filled.database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    assert costs.newest("cpu", "f1").content == new(2).content
    whether = ".content IS NOT NULL"
    [heads, content] = [text for text in statements if text.startswith("SELECT cost_models.")]
    assert heads.count(".content") == heads.count(whether) > 0
    assert content.startswith("SELECT cost_models.content") and "WHERE cost_models.id = " in content


def test_a_content_that_was_changed_is_not_handed_out(filled, costs, caplog):
    before = costs.keep(new(1))
    snapshot = costs.keep(new(2))
    with filled.database.write() as session:
        session.execute(update(CostModelRow).where(CostModelRow.id == snapshot.id).values(content=b"cunning"))
    assert costs.newest("cpu", "f1").id == before.id
    assert f"cost model {snapshot.id} is passed over" in caplog.text


@pytest.mark.parametrize("size", [0, LARGEST_BYTES + 1])
def test_a_content_of_an_odd_size_is_refused(costs, size):
    with pytest.raises(ValueError, match=f"a cost model of {size} bytes"):
        costs.keep(dataclasses.replace(new(), content=bytes(size)))
    assert costs.list() == []


def test_the_largest_is_kept(costs):
    content = bytes(LARGEST_BYTES)
    costs.keep(dataclasses.replace(new(), content=content))
    assert costs.newest("cpu", "f1").content == content


@pytest.mark.parametrize("metrics", [{"a": math.nan}, {"a": {1, 2}}, {"a": b""}])
def test_metrics_that_are_no_json_are_refused(costs, metrics):
    with pytest.raises(ValueError, match="JSON"):
        costs.keep(dataclasses.replace(new(), metrics=metrics))
    assert costs.list() == []


def test_the_job_must_be_there(costs):
    with pytest.raises(NotFound, match="no job 99"):
        costs.keep(new(job_id=99))
    assert costs.list() == []


def test_odd_texts_are_only_text(costs):
    version = "'; DROP TABLE cost_models; --"
    costs.keep(new(version=version))
    assert costs.newest("cpu", version).features_version == version
    assert costs.keep(new(1, version="a\0b\ud800")).features_version == "a\N{REPLACEMENT CHARACTER}b?"
