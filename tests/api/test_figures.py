"""One figure a thing: what a job found reads the same on every page, in every answer and on every terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from tunewright.api import program
from tunewright.api.client import tiers
from tunewright.api.client.wire import Exchange
from tunewright.codegen.host import machine
from tunewright.db.job import EventKind
from tunewright.db.store import Store, open_store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.tuner.cli import tune_report
from tunewright.tuner.explain.gain import TaskSum
from tunewright.tuner.models.model import Model, open_model
from tunewright.tuner.text import duration, times
from tunewright.workers.measure.noise import UNDISTURBED

from ..commands import Command, commands
from ..tuner.conftest import small_model
from ..tuner.fake_pool import TARGET, FakePool, is_default, job
from ..tuner.timings import STOLEN, takes
from .conftest import Running, running
from .page import whole


def tried(candidate: Candidate) -> Measurement:
    """By trials the default takes 9 ms, and what is found 3."""
    return _run(9e-3 if is_default(candidate) else 3e-3 + 1e-9 * int(candidate.schedule.key[:4], 16))


def compared(candidate: Candidate) -> Measurement:
    """In turn, in fresh processes, the default takes 2 ms and what is found 1.25; and with warm caches as much.

    Times of the default alone lie far apart.
    """
    return _run(2e-3, 0.03) if is_default(candidate) else _run(1.25e-3 + 1e-9 * int(candidate.schedule.key[:4], 16))


def _run(time_s: float, part: float = 0.01) -> Measurement:
    samples_s = tuple(time_s * (1 + part * (n - 2)) for n in range(5))
    edges = samples_s[0], samples_s[-1]
    return Measurement(Status.OK, samples_s, time_s, *edges, 0.0, warm_s=time_s, warm_samples_s=samples_s)


@dataclass
class Ended:
    """A job that has ended, and everything that tells of it."""

    one: Running
    url: str
    path: Path
    report: Any  # a Report, of which everything is known
    client: httpx.Client
    command: Command
    texts: dict[str, str] = field(default_factory=dict)


@pytest.fixture(params=["faster", "defaults_kept", "too_noisy", "vendor"])
def ended(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Ended]:
    """A job of a small model that ended so."""
    monkeypatch.setattr(tiers.Lookups.__init__, "__defaults__", (None, None, 60.0))  # a busy server is waited for
    url, path = f"sqlite:///{tmp_path}/figures.db", tmp_path / "small.onnx"
    path.write_bytes(small_model().SerializeToString())
    tuned_s = 4.4e-3 if request.param == "defaults_kept" else 2.5e-3
    disturbance = STOLEN if request.param == "too_noisy" else UNDISTURBED
    with open_store(url) as store:
        report = job(
            open_model(path),
            store,
            FakePool(tried, compared),
            timing=takes(disturbance, default=4.2e-3, tuned=tuned_s, vendor=2e-3),
            vendor=request.param == "vendor",
        )
    assert report.outcome == request.param
    with running(url) as one:
        monkeypatch.setenv("TUNEWRIGHT_SERVER", one.url)
        monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)
        yield Ended(one, url, path, report, one.client(), commands(program.execute, capfd))


def test_the_gain_is_the_same_everywhere(ended: Ended) -> None:
    found, number = ended.report, ended.report.job_id
    asked = ended.client.get(f"/v1/jobs/{number}").json()
    data = asked["result"]
    page = ended.client.get(f"/v1/pages/jobs/{number}").json()
    [listed] = ended.client.get("/v1/pages/jobs").json()["jobs"]
    [summary] = ended.command("jobs", "list", "--json").data["jobs"]
    shown = ended.command("jobs", "show", number, "--json").data["result"]
    assert data == shown == found.to_json()
    for one in (data, page["latency"]):
        assert (one["default_ms"], one["tuned_ms"]) == (1e3 * found.default_s, 1e3 * found.tuned_s)
        assert one["rejected_ms"] == (None if found.rejected_s is None else 1e3 * found.rejected_s)
    sums = TaskSum.of_job(None, data).to_json()  # of which the page is told of, too, where that is not the run
    for one in (asked, summary):
        assert sums.items() <= one["progress"].items()
    for one in (data, page["latency"], page["job"], asked, listed, summary):
        assert one["speedup"] == found.speedup and one["outcome"] == found.outcome
        assert one["speedup_interval"] == (found.speedup_interval and list(found.speedup_interval))


def test_people_read_the_same(ended: Ended, tmp_path: Path) -> None:
    """With the interval: on the page, in the report, and as `tune` and `jobs show` end."""
    found, number = ended.report, ended.report.job_id
    printed = StringIO()
    tune_report.render(Console(file=printed, width=200), found.to_json())
    texts = {
        "page": whole(ended.client.get(f"/jobs/{number}")).words,
        "tune": printed.getvalue(),
        "show": ended.command("jobs", "show", number).out,
        "report": _report(ended, tmp_path),
    }
    for place, text in texts.items():
        assert duration(1e3 * found.default_s) in text, place
        if found.rejected_s is None:
            low, high = found.speedup_interval
            assert times(found.speedup) in text and f"{times(low)} to {times(high)}" in text, place
            assert duration(1e3 * found.tuned_s) in text and "defaults kept" not in text, place
        else:
            low, high = found.rejected_interval
            assert f"{times(low)} to {times(high)}" in text, place
            assert duration(1e3 * found.rejected_s) in text and "keeps its defaults" in text, place


@pytest.mark.parametrize("ended", ["faster"], indirect=True)
def test_a_model_without_a_default_has_the_time_that_was_measured(ended: Ended, tmp_path: Path) -> None:
    """Its defaults were taken back: no sum of tasks stands for that time, and everything says why there is no gain."""
    keys = [(task.key, task.default_key) for task in ended.report.tasks]
    with open_store(ended.url) as store:
        for task_key, default_key in keys:
            store.voids.void(task_key, TARGET.key, default_key, "wrong on odd sizes")
        pool = FakePool(tried, compared)
        report = job(open_model(ended.path), store, pool, seed=1, timing=takes(tuned=2.6e-3))
    found: Any = report  # of which what is asked for is known
    why = "the default schedule of 2 tasks was taken back"
    assert (found.default_s, found.speedup, found.default_fault) == (None, None, why)
    page = ended.client.get(f"/v1/pages/jobs/{found.job_id}").json()["latency"]
    assert (page["of"], page["tuned_ms"], page["default_fault"]) == ("model", 1e3 * found.tuned_s, why)
    assert page["tuned_interval_ms"] == pytest.approx([1e3 * edge_s for edge_s in found.tuned_interval_s])
    shown = " ".join(ended.command("jobs", "show", found.job_id).out.split())
    time, total = duration(1e3 * found.tuned_s), duration(1e3 * found.kernels_s)
    assert time != total
    assert f"the whole model: {time} (" in shown and f"tuned; it was not timed by default: {why}" in shown
    assert f"the sum of its tasks: {total} tuned" in shown
    told = replace(ended, report=found)
    for text in (whole(ended.client.get(f"/jobs/{found.job_id}")).words, _report(told, tmp_path)):
        assert re.search(rf"Speed-up ?- ?{why}", text)
        assert f"No speed-up is known: {why}." in text and "Nothing was found" not in text
        assert re.search(rf"One run ?{time} .*?; ?not timed by default", text)
        assert "not known yet" not in text and "mark at its end" not in text
        assert "†" not in text  # of what was taken back before the job, it tells nothing


def test_a_vendor_is_told_of_in_the_same_words(ended: Ended, tmp_path: Path) -> None:
    """Where it was timed, and nowhere else."""
    printed, number, vendor = StringIO(), ended.report.job_id, ended.report.vendor
    tune_report.render(Console(file=printed, width=200), ended.report.to_json())
    asked = ended.client.get(f"/v1/jobs/{number}").json()
    texts = {
        "page": whole(ended.client.get(f"/jobs/{number}")).words,
        "tune": printed.getvalue(),
        "show": ended.command("jobs", "show", number).out,
        "report": _report(ended, tmp_path),
    }
    assert asked["outcome"] == ended.report.outcome and (vendor is None) is (ended.report.outcome != "vendor")
    words = "" if vendor is None else vendor.conclusion(is_taken=True)
    assert asked["vendor"] == ended.client.get(f"/v1/pages/jobs/{number}").json()["latency"]["vendor_text"] == words
    for place, text in texts.items():
        assert words in text and ("ONNX Runtime 1.2.3 takes" in text) is (vendor is not None), place


@pytest.mark.slow
def test_one_verdict_everywhere(ended: Ended, tmp_path: Path) -> None:
    """What the job came to, in the words of its outcome."""
    words = {
        "faster": "succeeded",
        "defaults_kept": "defaults kept",
        "too_noisy": "too noisy to tell",
        "vendor": "runs in ONNX Runtime",
    }
    number, expected = ended.report.job_id, words[ended.report.outcome]
    texts = {
        "page": whole(ended.client.get(f"/jobs/{number}")).words,
        "jobs": whole(ended.client.get("/")).words,
        "list": " ".join(ended.command("jobs", "list").out.split()),
        "report": _report(ended, tmp_path),
    }
    for place, text in texts.items():
        assert expected in text, place
        assert not any(word in text for word in words.values() if word not in (expected, "succeeded")), place
    assert (words["too_noisy"] in ended.command("jobs", "show", number).out) is (ended.report.outcome == "too_noisy")
    ending = ended.command("report", number, "--db", ended.url, "-o", tmp_path).out
    assert expected in " ".join(ending.split())


def _report(ended: Ended, folder: Path) -> str:
    answer = ended.command("report", ended.report.job_id, "--db", ended.url, "-o", folder, "--json")
    return " ".join(re.sub(r"<[^>]*>", "", Path(answer.data["html"]).read_text()).split())


def test_each_task_has_one_time(ended: Ended) -> None:
    """The winner of the comparison, wherever it is asked for; what its trial took has another name."""
    target, tasks = TARGET.key, {task.key: task for task in ended.report.tasks}
    lines = {one["key"]: one for one in ended.client.get(f"/v1/pages/jobs/{ended.report.job_id}").json()["tasks"]}
    records = {one["task"]: one for one in ended.client.get("/v1/pages/records").json()["records"]}
    asked = {"target": target, "tasks": list(tasks)}
    answers = {one["key"]: one for one in ended.client.post("/v1/lookups", json=asked).json()["items"]}
    known = ended.command("tasks", ended.path, "--db", ended.url, "--threads", TARGET.threads, "--json").data["tasks"]
    listed, noises = ({one["key"]: one[name] for one in known} for name in ("best_ms", "noise"))
    for key, task in tasks.items():
        best_ms, interval = 1e3 * task.best_s, [1e3 * edge_s for edge_s in task.best_interval_s]
        page: dict[str, Any] = ended.client.get(f"/v1/pages/tasks/{key}", params={"target": target}).json()
        told_ms = lines[key]["best_ms"], records[key]["median_ms"], answers[key]["expected_ms"], listed[key]
        assert [*told_ms, page["best"]["median_ms"], page["gain"]["best_ms"]] == [pytest.approx(best_ms)] * 6
        for one in (lines[key]["best_interval_ms"], records[key]["interval_ms"], page["gain"]["best_interval_ms"]):
            assert one == pytest.approx(interval)
        assert page["gain"]["default_ms"] == pytest.approx(1e3 * task.default_s) == lines[key]["default_ms"]
        assert page["gain"]["default_interval_ms"] == pytest.approx(lines[key]["default_interval_ms"])
        assert page["gain"]["interval"] == pytest.approx(lines[key]["speedup_interval"])
        asking = ("show", key, "--db", ended.url, "--threads", TARGET.threads, "--json")
        shown = ended.command(*asking).data["measured"]
        told = (lines[key], records[key], page["best"], page["gain"], answers[key]["provenance"], shown)
        assert {noises[key], *(one["noise"] for one in told)} == {task.noise} and "12% apart" in task.noise
        assert page["gain"]["is_confirmed"] and lines[key]["is_confirmed"] and records[key]["is_confirmed"]
        assert page["best_trial"]["median_ms"] == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("place", ["db", "server", "server asked in parts", "server that is gone"])
def test_the_model_runs_on_what_its_job_decided(ended: Ended, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server tells it with its answers, and it is kept with them."""
    given = ("--db", ended.url) if place == "db" else ("--server", ended.one.url)
    asked = "lookup", ended.path, *given, "--threads", TARGET.threads, "--json"
    if place == "server asked in parts":
        monkeypatch.setattr("tunewright.api.client.wire.KEYS_AT_ONCE", 1)
        assert len(ended.report.tasks) > 1
    answer = ended.command(*asked).data
    if place == "server that is gone":
        tiers._shared.clear()  # as another process
        monkeypatch.setattr(Exchange, "lookups", lambda *_: ({}, "it is gone"))
        answer = ended.command(*asked).data
    for one in answer["tasks"]:
        task = next(task for task in ended.report.tasks if task.key == one["key"])
        is_kept = ended.report.rejected_s is not None
        assert one["expected_ms"] == pytest.approx(1e3 * (task.default_s if is_kept else task.best_s))
        assert (one["schedule"] == task.schedule) is not is_kept
    vendor = ended.report.vendor
    assert answer["vendor"] == (vendor and vendor.to_json())
    if vendor is not None:
        assert vendor.note in answer["notes"]


def test_what_a_trial_has_found_since_is_told_alike(tmp_path: Path) -> None:
    """By another job, which confirmed nothing: while the next one runs, on its page, of the task, and of lookups.

    As long as no trial is faster than what was confirmed, that is told: what is slower is no improvement.
    """
    url, path, views = f"sqlite:///{tmp_path}/since.db", tmp_path / "small.onnx", []
    path.write_bytes(small_model().SerializeToString())
    with open_store(url) as store, running(url) as one:
        client, model = one.client(), open_model(path)
        first = job(model, store, FakePool(tried, compared_cold))
        [faster, slower] = [Candidate(task, TARGET, _untried(store, task)) for task, _ in model.tasks.values()]
        for candidate, time_s in ((faster, 1e-3), (slower, 2.7e-3)):  # confirmed were 2.5 ms, and 3 by trial
            store.record(Record(candidate.task.key, TARGET.key, candidate.schedule, _now(_run(time_s))))

        def seen(candidate: Candidate) -> Measurement:
            views.append(_told(client, store, model))
            return _now(_run(2.8e-3))

        job(model, store, FakePool(seen, compared_cold), trials=4)
        improved = store.jobs.events(first.job_id + 1, kinds=[EventKind.IMPROVED])
    assert improved == [] and len(views) == 4
    for told in views:
        for line, page, answer in told.values():
            assert line["best_ms"] == page["best"]["median_ms"] == pytest.approx(answer["expected_ms"])
            assert line["is_confirmed"] is page["gain"]["is_confirmed"]
            assert line["is_default_confirmed"] is page["gain"]["is_default_confirmed"] is True
            for name in ("default_ms", "default_interval_ms", "best_ms", "best_interval_ms"):
                assert line[name] == pytest.approx(page["gain"][name]), name
            assert line["default_ms"] == pytest.approx(4.0)
        assert told[faster.task.key][0]["best_ms"] == pytest.approx(1.0)
        assert told[slower.task.key][0]["best_ms"] == pytest.approx(2.5, rel=1e-2)
        assert [told[one.task.key][0]["is_confirmed"] for one in (faster, slower)] == [False, True]


def compared_cold(candidate: Candidate) -> Measurement:
    """In turn, with constants cold, the default takes 4 ms and what is found 2.5."""
    return _now(_run(4e-3 if is_default(candidate) else 2.5e-3 + 1e-9 * int(candidate.schedule.key[:4], 16), 0.01))


def _now(measurement: Measurement) -> Measurement:
    """By the compiler at hand, and with warm caches much faster."""
    warm_s = 0.9 * (measurement.median_s or 0.0)
    return replace(measurement, provenance=machine(), warm_s=warm_s, warm_samples_s=(warm_s,) * 5)


def _untried(store: Store, task: Task) -> Schedule:
    """A schedule that nobody has tried."""
    known = store.schedule_keys(task.key, TARGET.key)
    schedules = (space.schedule(point) for space in spaces(task, TARGET) for point in space.points)
    return next(schedule for schedule in schedules if schedule.key not in known)


def _told(client: httpx.Client, store: Store, model: Model) -> dict[str, tuple[Any, Any, Any]]:
    """What the page of the newest job, that of the task and a lookup say of each task."""
    [newest] = store.jobs.list(limit=1)
    lines = {one["key"]: one for one in client.get(f"/v1/pages/jobs/{newest.id}").json()["tasks"]}
    asked = {"target": TARGET.key, "tasks": list(lines)}
    answers = {one["key"]: one for one in client.post("/v1/lookups", json=asked).json()["items"]}
    pages = {key: client.get(f"/v1/pages/tasks/{key}", params={"target": TARGET.key}).json() for key in lines}
    return {key: (line, pages[key], answers[key]) for key, line in lines.items()}
