"""The contract of Finder, checked on every database."""

from __future__ import annotations

import hashlib

import pytest

from tunewright.db.access import LOCAL, KeyScope
from tunewright.db.job import SearchBudget

HOSTILE = [
    "",
    "   ",
    "%",
    "_",
    "\\",
    "%%%",
    "'; drop table jobs; --",
    "\x00",
    "\ud800",
    "\u202e",
    "a" * 10_000,
    "x " * 500,
]


@pytest.fixture
def finder(filled):
    return filled.finder


@pytest.fixture
def submit(filled, samples):
    numbers = iter(range(100))

    def submitted(label, **more):
        return filled.jobs.submit(samples.spec(next(numbers)), label, SearchBudget(1), **more).job.id

    return submitted


def test_what_is_called_so_comes_first_then_what_begins_so_then_the_newest(finder, submit):
    inside, older, begins, exact, _ = (
        submit(label) for label in ("my-resnet", "resnet50-b", "ResNet50", "RESNET", "bert")
    )
    newest = submit("a resnet")
    assert [job.id for job in finder.jobs("resnet", 10)] == [exact, begins, older, newest, inside]
    assert [job.id for job in finder.jobs("resnet", 2)] == [exact, begins]


def test_jobs_have_all_words_wherever_they_are(filled, finder, submit):
    key, _ = filled.keys.create("build farm", {KeyScope.JOBS_WRITE})
    job = submit("net.onnx", tags=["nightly"], notes="for the Paper", owner=key.id)
    submit("net.onnx", tags=["other"])
    for words in ("nightly", "PAPER", "build", "net farm nightly paper"):
        assert [found.id for found in finder.jobs(words, 10)] == [job], words
    assert finder.jobs("nightly other", 10) == []


def test_notes_are_those_of_the_newest_jobs(finder, submit, monkeypatch):
    monkeypatch.setattr("tunewright.db.finder.NOTED_JOBS", 2)
    old, *new = (submit("net.onnx", notes="for the paper", tags=["kept"]) for _ in range(3))
    assert [job.id for job in finder.jobs("paper", 10)] == new[::-1]
    assert [job.id for job in finder.jobs("net kept", 10)] == [*new[::-1], old]


def test_tasks_by_op_shape_and_key(filled, finder, samples):
    task, other = samples.task(8), samples.task(9)
    filled.record(samples.record())
    [found] = finder.tasks(f"{task.op} {task.shape}", 10)
    assert (found.task_key, found.op, found.shape) == (task.key, task.op, task.shape)
    assert {one.task_key for one in finder.tasks(task.op.upper(), 10)} >= {task.key, other.key}
    assert [one.task_key for one in finder.tasks(other.key[:12].upper(), 10)] == [other.key]
    with_record = [one for one in finder.tasks(task.op, 100) if one.targets]
    assert [(one.target_key, one.targets) for one in with_record] == [(samples.target().key, 1)]


def test_models_by_label_and_digest(filled, finder):
    for label in ("resnet.onnx", "bert.onnx"):
        digest = hashlib.sha256(label.encode()).hexdigest()
        filled.uploads.add(digest, [label.encode()], label=label, with_weights=False, description={})
    assert [model.label for model in finder.models("bert", 10)] == ["bert.onnx"]
    digest = hashlib.sha256(b"resnet.onnx").hexdigest()
    assert [model.label for model in finder.models(digest[:9].upper(), 10)] == ["resnet.onnx"]


def test_owners_are_keys_that_submitted_and_their_folders_are_not_told(filled, finder, submit):
    farm, local, idle = (
        filled.keys.create(name, {KeyScope.JOBS_WRITE})[0] for name in ("farm", f"{LOCAL}/home/secret", "farm idle")
    )
    for _ in range(2):
        submit("a", owner=farm.id)
    submit("b", owner=local.id)
    assert [(one.id, one.name, one.jobs) for one in finder.owners("farm", 10)] == [(farm.id, "farm", 2)]
    assert [(one.id, one.name) for one in finder.owners("local", 10)] == [(local.id, "local key")]
    assert finder.owners("secret", 10) == [] == finder.jobs("secret", 10)
    assert [one.id for one in finder.owners(farm.id[:6], 10)] == [farm.id]
    assert idle.id not in {one.id for one in finder.owners("farm", 10)}


def test_tags_with_how_many_have_them(finder, submit):
    for tags in (["int8", "nightly"], ["int8"], ["int8-slow"], ["my-int8"]):
        submit("x", tags=tags)
    assert [(tag.name, tag.jobs) for tag in finder.tags("int8", 10)] == [("int8", 2), ("int8-slow", 1), ("my-int8", 1)]


@pytest.mark.parametrize("words", HOSTILE)
def test_no_words_find_what_they_are_not_in(finder, submit, words):
    submit("100%_sure", tags=["plain"])
    expected = ["100%_sure"] if words in ("%", "_") else []
    assert [job.label for job in finder.jobs(words, 10)] == expected
    for others in (finder.tasks, finder.models, finder.owners, finder.tags):
        assert others(words, 10) == []
