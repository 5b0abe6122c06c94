"""The page of a candidate: what it is, what it becomes, and what came of it."""

import re
from dataclasses import replace

import pytest

from tunewright.api.dashboard.task import candidate as views
from tunewright.api.dashboard.task.analysis import sample
from tunewright.api.dashboard.views import MOST_FACTS
from tunewright.api.http import descriptions
from tunewright.api.http.descriptions import Descriptions
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.db.job import JobSpec, SearchBudget, SpecTask
from tunewright.search_space.measurement import NOISE, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.explain.calibration import Calibration, Pair

from ..waiting import wait_for
from .examples import HOSTILE, failed, good, others, product, tried
from .page import whole


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr(descriptions, "PATIENCE_S", 20.0)
    monkeypatch.setattr(descriptions, "TEXT_PATIENCE_S", 20.0)


def test_what_came_of_it(one, look, kit):
    made = tried(one.store, kit.target(), 3)
    page, view = look(made.path(made.schedules[1]))
    assert "A schedule of MatMul" in page.words
    assert "As a trial it took 1.05 ms°, the median of 5 samples (95% interval: 1.04 ms to 1.06 ms)" in page.words
    assert "Beside the trial of the default, which took 2.00 ms°, that is 1.90x° as fast" in page.words
    assert "best schedule known takes 1.00 ms°" in page.words
    assert view["evidence"]["provenance"] == {"llvm": "22.1", "cpu": "znver5"}
    assert "znver5" in page.words
    for key in ("ab" * 32, made.schedules[1].key):  # twelve letters, and all of it to be copied
        assert page.of("code", title=key)
        [copied] = re.findall(rf'<span id="([a-z-]+)" hidden>{key}</span>', page.source)
        assert page.of("button", **{"data-copy": f"#{copied}"})
    assert "timed in turn with it" in page.words and "With all operands in the caches" in page.words
    assert "3e-07 of the largest magnitude; 0.0001 is tolerated in float32" in page.words
    assert view["tolerances"] == [{"output": "t2", "dtype": "float32", "tolerance": 1e-4}]
    assert "imported" not in page.words
    assert view["form"]["words"] and view["default_form"]["words"] and view["best_form"]["words"]
    assert [knob["value"] for knob in view["knobs"]] == list(dict(made.schedules[1].values).values())
    assert "parallel chunk × 4" in page.words
    assert view["text"] is None
    assert "estimated to allow" in page.words and not view["nearness"]["is_measured"]


def test_figures_are_marked_and_predictions_are_beside_the_trial(one, look, kit, monkeypatch):
    """A time of a busy machine is marked; what a model expects is beside the trial: that is what it learns."""
    made = tried(one.store, kit.target(), 3)
    best = made.schedules[0]
    confirmed = replace(good(2e-3), incumbent_s=2.4e-3, provenance={NOISE: "it was busy"})
    one.store.confirm(Record(made.task.key, made.target.key, best, confirmed))
    pairs = (Pair(best.key, 1.5e-3, 1e-3),)
    found = [Calibration("base model", pairs, None, None, None, None, has_learned_from_these=False)]
    monkeypatch.setattr(views, "calibrations", lambda *_: found)
    page, _ = look(made.path(best))
    assert "It takes ~2.00 ms (95% interval of the median: 1.98 ms to 2.02 ms)" in page.words
    assert "rely on times marked ~: it was busy" in page.words and "As a trial it took 1.00 ms°" in page.words
    assert "The base model expects 1.50 ms (+50% beside its trial's 1.00 ms°)" in page.words
    page, _ = look(made.path(made.schedules[1]))
    assert "The best schedule known takes ~2.00 ms (1.98 ms to 2.02 ms), confirmed." in page.words


def test_which_job_measured_it(one, look, kit):
    target, task = kit.target(), product()
    one.store.add_target(target)
    one.store.add_task(task)
    spec = JobSpec("ab" * 32, target.key, (SpecTask(task.key, 1),), {})
    job = one.store.jobs.submit(spec, "net.onnx", SearchBudget(100)).job
    lease = one.store.jobs.lease([target.key], "host-1:1")
    [schedule] = others(task, target, 1)
    one.store.record(Record(task.key, target.key, schedule, good(1e-3, samples=9)), lease)
    page, view = look(f"/tasks/{task.key}/schedules/{schedule.key}")
    assert f"by job {job.id}, its trial 1" in page.words and f"/jobs/{job.id}" in page.links()
    assert "9 samples from" in page.words  # drawn
    assert view["is_best"] and not view["is_default"] and view["default"] is None


def test_best_and_default_are_called_so(one, look, kit):
    made = tried(one.store, kit.target(), 1)
    assert "The best schedule of MatMul" in look(made.path(made.schedules[0]))[0].words
    page, view = look(made.path(made.default))
    assert "The default schedule of MatMul" in page.words
    assert view["explained"]["reasons"] == []


def test_why_the_model_prefers_it(one, look, kit):
    made = tried(one.store, kit.target(), 40)
    page, view = look(made.path(made.schedules[0]))
    assert view["explained"]["reasons"] and view["explained"]["contributions"]
    for one_of in (*view["explained"]["reasons"][:2], *view["explained"]["contributions"][:2]):
        assert one_of["words"] in page.words


def test_the_model_is_asked_again_after_more_trials(one, shown_client, look, kit, shower, monkeypatch):
    monkeypatch.setattr(descriptions, "RENEW_S", 0.0)
    one.app.state.descriptions = Descriptions(lambda: shower)
    made = tried(one.store, kit.target(), 3)
    asked = []

    def sampled(*of):
        asked.append(sample(*of))
        return asked[-1]

    monkeypatch.setattr(views, "sample", sampled)
    path = made.path(made.schedules[1])
    for _ in range(2):
        look(path, tab="overview")
    assert [len(lines) for lines in asked] == [4]
    slower = others(made.task, made.target, 4)[3]
    made.record(slower, good(4e-3))
    look(path, tab="overview")
    assert [len(lines) for lines in asked] == [4, 5]
    one.store.voids.void(made.task.key, made.target.key, slower.key, "noisy")
    look(path, tab="overview")
    assert len(asked) == 3


@pytest.mark.parametrize("part", ["ir", "llvm", "assembly"])
def test_texts(one, look, kit, part):
    made = tried(one.store, kit.target(), 2)
    page, view = look(made.path(made.schedules[1]), text=part)
    assert view["text"]["text"].startswith(f"{part} <begin>")
    assert f"{part} <begin>" in page.words
    page, view = look(made.path(made.schedules[1]), text=part, against="default")
    assert view["text"]["text"] is None
    lines = {line["kind"]: line["text"] for line in view["text"]["difference"]}
    assert lines["removed"] == str(made.default) and lines["added"] == str(made.schedules[1])
    assert f"- {made.default}" in page.words and f"+ {made.schedules[1]}" in page.words
    assert {"ins", "del"} <= {tag for tag, _ in page.tags}
    _, view = look(made.path(made.schedules[1]), text=part, against="best")
    assert {line["text"] for line in view["text"]["difference"] if line["kind"] == "removed"} == {
        str(made.schedules[0])
    }
    page, view = look(made.path(made.default), text=part, against="default")
    assert view["text"]["difference"] == [] and "They are alike" in page.words


def test_each_text_is_made_once(one, look, kit, shower):
    made = tried(one.store, kit.target(), 1)
    for _ in range(2):
        look(made.path(made.schedules[0]), text="ir", against="default")
    look(made.path(made.default), text="ir")
    assert [shower.asked.count(what) for what in ("difference", "picture", "ir")] == [1, 2, 3]


def test_texts_that_can_not_be_made(one, look, kit, shower):
    made = tried(one.store, kit.target(), 1)
    shower.why = HOSTILE
    page, view = look(made.path(made.schedules[0]), text="llvm")
    assert view["text"]["why"] == HOSTILE and view["text"]["text"] is None
    assert "It can't be shown:" in page.words
    page, _ = look(made.path(made.schedules[0]), text="llvm", against="default")
    assert "It can't be shown:" in page.words


def test_nothing_to_compare_with(one, look, kit):
    task = product()
    one.store.add_task(task)
    one.store.add_target(kit.target())
    made = tried(one.store, kit.target(), 0, product(32))
    schedule = others(task, kit.target(), 1)[0]
    one.store.record(Record(task.key, made.target.key, schedule, failed()))
    _, view = look(f"/tasks/{task.key}/schedules/{schedule.key}", text="ir", against="best")
    assert view["text"]["why"] == "there is no best to compare it with"


def test_nobody_waits_long(one, look, kit, shower, monkeypatch):
    monkeypatch.setattr(descriptions, "PATIENCE_S", 0.0)
    monkeypatch.setattr(descriptions, "TEXT_PATIENCE_S", 0.0)
    shower.may.clear()
    made = tried(one.store, kit.target(), 1)
    path = made.path(made.schedules[0])
    page, view = look(path, text="ir", against="default")
    assert view["text"]["difference"] is None and view["text"]["why"] == ""
    assert page.words.count("Look again") >= 2
    shower.may.set()
    wait_for(lambda: look(path, text="ir", against="default")[1]["text"]["difference"])


def test_what_the_model_expects_comes_by_itself(one, look, shown_client, kit, monkeypatch):
    """Where the loops are known and the cost model is still being asked, the page asks again."""
    made = tried(one.store, kit.target(), 1)
    monkeypatch.setattr(descriptions.Descriptions, "analyse", _still_asked)
    path = made.path(made.schedules[0])
    _, view = look(path)
    assert view["explained"] is None and not view["form"]["is_pending"]
    page = whole(shown_client.get(path, params={"target": made.target.key}))
    assert "The cost model is being asked." in page.words
    assert len([link for link in page.of("a") if "data-again" in link]) == 1


async def _still_asked(*_):
    return None


def test_one_that_failed(one, look, kit):
    made = tried(one.store, kit.target(), 1)
    schedule = others(made.task, made.target, 2)[1]
    made.record(schedule, failed(Status.WRONG_RESULT))
    page, view = look(made.path(schedule))
    assert "It failed: wrong result" in page.words and "alert(1)" in page.words
    assert view["trial"]["max_rel_err"] is None and view["evidence"]["error"] == HOSTILE
    assert "compared with the reference" not in page.words


@pytest.mark.slow
def test_what_was_imported_may_be_long(one, look, kit):
    made = tried(one.store, kit.target(), 1)
    schedule = Schedule("x" * 5000, 1, tuple((f"knob{n}" * 50, n) for n in range(3000)))
    measured = replace(
        good(1e-3, samples=20_000), provenance={f"name {n}": "y" * 5000 for n in range(90)}, error="z" * 10_000
    )
    made.record(schedule, measured)
    page, view = look(made.path(schedule))
    assert len(view["evidence"]["samples_ms"]) == views.MOST_SAMPLES
    assert len(view["evidence"]["provenance"]) == MOST_FACTS
    assert "20,000 samples" in page.words
    look(made.path())


def test_one_that_was_not_tried(one, look, shown_client, kit):
    task = product()
    one.store.add_task(task)
    one.store.add_target(kit.target())
    made = tried(one.store, kit.target(), 0, product(32))
    schedule = default_schedule(task, kit.target())
    page, view = look(f"/tasks/{task.key}/schedules/{schedule.key}")
    assert "It was not tried on this target" in page.words and view["trial"] is None
    target = {"target": kit.target().key}
    kit.problem(
        shown_client.get(made.path(others(made.task, made.target, 1)[0]), params=target), "no-such-schedule", 404
    )
    kit.problem(shown_client.get(f"/tasks/{'0' * 64}/schedules/{schedule.key}", params=target), "no-such-task", 404)
    wrong = f"/tasks/{task.key}/schedules/{schedule.key}"
    kit.problem(shown_client.get(wrong, params={"target": "0" * 64}), "no-such-target", 404)
    for fault in ({"text": "x"}, {"against": "x"}, {"text": "ir", "against": "worst"}):
        kit.problem(shown_client.get(wrong, params=target | fault), "invalid-request", 422)


def test_of_a_gpu(one, look):
    gpu = Target.of_gpu(KNOWN["sm_90a"])
    made = tried(one.store, gpu, 2)
    page, view = look(made.path(made.schedules[0]), target=gpu.key)
    assert view["parts"] == ["ir", "cuda", "ptx"]
    assert "CUDA C" in page.words and "PTX" in page.words and "Assembly" not in page.words
    page, view = look(made.path(made.schedules[0]), target=gpu.key, text="ptx")
    assert "ptx <begin>" in page.words
    _, view = look(made.path(made.schedules[0]), target=gpu.key, text="assembly")
    assert view["text"]["text"] is None
    assert view["text"]["why"] == "cuda:sm_90a:132x128 has none; it has ir, cuda, ptx"


def test_an_address_of_a_text_leads_to_it(one, shown_client, kit):
    made = tried(one.store, kit.target(), 2)
    for query, place in (({}, "what"), ({"text": "ir"}, "text"), ({"text": "ir", "tab": "model"}, "model")):
        page = whole(shown_client.get(made.path(made.default), params={"target": made.target.key} | query))
        shown = [name for name in ("what", "form", "text", "evidence", "model") if page.of("h2", id=f"{name}-title")]
        assert shown == [place]
