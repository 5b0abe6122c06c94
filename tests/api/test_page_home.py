"""The first page, above its list: what runs, what all jobs came to, what became slower."""

from __future__ import annotations

import hashlib

import pytest

from tunewright.db.job import EventKind, JobSpec, JobState, NewEvent, SearchBudget, SpecTask

from .page import whole


@pytest.fixture
def run(one, kit):
    """Queue a job and take it up; its lease."""

    def begun(label="net.onnx", **settings):
        one.store.add_task(kit.task(8))
        model = hashlib.sha256(label.encode()).hexdigest()
        spec = JobSpec(model, kit.target().key, (SpecTask(kit.task(8).key, 1),), settings)
        one.store.jobs.submit(spec, label, SearchBudget(100))
        lease = one.store.jobs.lease([kit.target().key], "host-1:77")
        assert lease is not None
        return lease

    return begun


@pytest.fixture
def look(client):
    def get():
        return client.get("/v1/pages/jobs").json(), whole(client.get("/", headers={"Cache-Control": "no-cache"}))

    return get


def succeed(one, lease, **result):
    one.store.jobs.finish(lease, JobState.SUCCEEDED, result=result)


def test_of_nothing_nothing_is_claimed(look):
    view, page = look()
    gain = {"models": 0, "speedup": None, "faster": 0, "saved_ms": 0.0, "untimed": 0}
    assert (view["gain"], view["running"], view["regressions"], view["curves"]) == (gain, [], [], {})
    assert view["oldest_wait_s"] is None
    assert "no whole model was timed yet" in page.words and "nothing waits" in page.words


def test_the_gain_is_of_whole_models_timed_on_quiet_machines_each_once(one, run, look):
    succeed(one, run("a", seed=1), default_ms=9.0, tuned_ms=1.0)  # an older job of the same model
    succeed(one, run("a", seed=2), default_ms=8.0, tuned_ms=2.0)
    succeed(one, run("b"), default_ms=3.0, tuned_ms=3.0, outcome="defaults_kept")
    succeed(one, run("busy"), default_ms=9.0, tuned_ms=1.0, noise="its machine was busy")
    succeed(one, run("untimed"), tasks_default_ms=9.0, tasks_tuned_ms=1.0)
    succeed(one, run("broken"), default_ms=0.0, tuned_ms="nan")
    view, page = look()
    assert view["gain"] == {"models": 2, "speedup": pytest.approx(2.0), "faster": 1, "saved_ms": 6.0, "untimed": 3}
    assert "2.00x" in page.words and "mean of 2 models, 1 of them faster" in page.words and "6.00 ms" in page.words


@pytest.mark.parametrize(
    ("told", "faster"),
    [
        ({"outcome": "faster"}, 1),
        ({"outcome": "defaults_kept"}, 0),  # by chance the times differ: nothing else is in use
        ({"outcome": "vendor", "own_outcome": "faster"}, 1),
        ({"outcome": "vendor", "own_outcome": "defaults_kept"}, 0),
        ({"outcome": "vendor", "own_outcome": None}, 0),
        ({"outcome": None}, 1),  # of an older version
        ({"outcome": ["of a later one"]}, 0),
    ],
)
def test_faster_is_what_is_faster_beyond_its_interval(one, run, look, told, faster):
    succeed(one, run("a"), default_ms=3.0, tuned_ms=2.9, **told)
    assert (look()[0]["gain"]["models"], look()[0]["gain"]["faster"]) == (1, faster)


def test_an_older_job_counts_where_the_newest_has_no_times(one, run, look):
    succeed(one, run("a", seed=1), default_ms=6.0, tuned_ms=2.0)
    succeed(one, run("a", seed=2), noise="busy", default_ms=6.0, tuned_ms=6.0)
    assert look()[0]["gain"]["speedup"] == pytest.approx(3.0)


def test_what_runs_is_shown_with_its_curve(one, run, look):
    lease = run()
    times = {"left_s": 90.0, "default_ms": 2.0, "tuned_ms": 1.0}
    told = [{"trials": n, "speedup": 1.0 + n / 10, **times} for n in range(5)]
    one.store.jobs.renew(lease, progress=told[-1], events=[NewEvent(EventKind.PROGRESS, each) for each in told])
    view, page = look()
    assert [job["id"] for job in view["running"]] == [lease.job_id]
    assert view["curves"][str(lease.job_id)] == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4])
    lines = page.of("svg", role="img", **{"class": "sparkline"})
    assert [line["aria-label"] for line in lines] == ["speed-up: from 1.00x to 1.40x"] * 2  # the card, and the row
    assert "Running now" in page.words and "90 s left" in page.words


def test_what_became_slower_is_told_with_the_way_there(one, run, look, kit):
    lease, data = run("<b>net</b>"), {"task_key": kit.task(8).key, "op": "Relu", "before_ms": 1.0, "now_ms": 1.5}
    data |= {"before": {"llvm": "21"}, "now": {"llvm": "<22>"}}
    strange = {"task_key": 5, "op": ["x"], "before_ms": "soon", "now_ms": None, "before": ["llvm"], "now": 5}
    one.store.jobs.renew(lease, events=[NewEvent(EventKind.REGRESSED, strange), NewEvent(EventKind.REGRESSED, data)])
    succeed(one, lease, regressed=2)
    view, page = look()
    assert [(line["job"], line["before_ms"], line["now_ms"]) for line in view["regressions"]] == [
        (lease.job_id, 1.0, 1.5),
        (lease.job_id, None, None),
    ]
    assert "1.00 ms → 1.50 ms (1.50x as long), built by llvm <22> instead of 21: why in job" in page.words
    assert "&lt;b&gt;net&lt;/b&gt;" in page.source
    assert f"/tasks/{kit.task(8).key}?target={kit.target().key}" in page.links()
    assert page.links().count(f"/compare?job={lease.job_id}") == 2


def test_jobs_can_be_chosen_to_compare(one, run, look):
    ids = [run(label).job_id for label in "ab"]
    _, page = look()
    boxes = page.of("input", type="checkbox", form="compare", name="job")
    assert [int(box["value"]) for box in boxes] == ids[::-1]
    assert page.of("form", id="compare", method="get", action="/compare")
