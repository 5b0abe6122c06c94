"""The page of a task: from it alone one can tell why the winner won."""

import json
import re
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest

from tunewright.api.dashboard.task import analysis
from tunewright.api.dashboard.task import page as views
from tunewright.api.http import descriptions
from tunewright.api.http.descriptions import Descriptions
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.host import machine
from tunewright.codegen.target import Target
from tunewright.db.job import EventKind, JobSpec, JobState, NewEvent, SearchBudget, SpecTask
from tunewright.search_space.measurement import DEFAULT_INTERVAL, NOISE, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.explain.calibration import Calibration, Pair
from tunewright.tuner.explain.peak import DOUBT
from tunewright.tuner.text import large, times

from ..waiting import wait_for
from .examples import HOSTILE, failed, good, others, product, tried
from .page import whole

pytestmark = pytest.mark.usefixtures("prompt_pages")


def queued(store, task, target, lease=True, label="net.onnx"):
    """A job of the task, and a lease of it."""
    store.add_task(task)
    spec = JobSpec("ab" * 32, target.key, (SpecTask(task.key, 1),), {})
    job = store.jobs.submit(spec, label, SearchBudget(100)).job
    return store.jobs.lease([target.key], "host-1:1") if lease else job


def test_it_says_why_the_winner_won(one, look, kit):
    made = tried(one.store, kit.target())
    page, view = look(made.path())
    begin = "The best schedule known takes 1.00 ms° (95% interval of the median: 990 µs to 1.01 ms), timed as a trial"
    assert begin in page.words and "nothing has confirmed yet" in page.words
    assert "The default takes 2.00 ms° (1.98 ms to 2.02 ms): that is 2.00x° as fast." in page.words
    assert "Differences from the default" in page.words
    assert "These are differences, of which some may do nothing: which knob matters?" in page.words
    assert f"{made.path()}/trials?target={kit.target().key}" in page.links()
    assert "It reaches" in page.words and "FLOP/s" in page.words
    assert "compared with the reference" in page.words and "0.0001 is tolerated" in page.words
    assert view["best"]["schedule"]["key"] == made.schedules[0].key
    assert view["default"]["schedule"]["key"] == made.default.key
    gain = {"default_ms": 2.0, "best_ms": 1.0, "interval": None, "is_confirmed": False, "is_default_confirmed": False}
    quiet = {"noise": "", "default_noise": ""}
    assert view["gain"] == gain | quiet | {"default_interval_ms": [1.98, 2.02], "best_interval_ms": [0.99, 1.01]}
    assert view["form"]["words"] != view["default_form"]["words"]
    assert view["analysis"]["sampled"] == view["trials"] == 5
    assert len(view["analysis"]["points"]) == 5
    assert view["nearness"]["share"] > 0 and not view["nearness"]["is_measured"]
    assert "estimated to allow" in page.words and "by an estimate" in page.words
    for part in ("ir", "llvm", "assembly"):
        assert any(f"text={part}&against=default" in link for link in page.links())


def test_the_texts_are_those_of_the_target(one, look):
    gpu = Target.of_gpu(KNOWN["sm_90a"])
    made = tried(one.store, gpu, 2)
    page, view = look(made.path(), target=gpu.key)
    assert view["parts"] == ["ir", "cuda", "ptx"]
    texts = [parse_qs(urlsplit(link).query)["text"] for link in page.links() if "text=" in link]
    assert texts == [["ir"], ["cuda"], ["ptx"]]
    assert "CUDA C, beside the default's" in page.words and "LLVM" not in page.words


def test_more_than_the_machine_can_do_is_doubted(one, look, kit):
    """A peak that was measured while the machine was busy, or a time that can't be."""
    made = tried(one.store, kit.target())
    lease = queued(one.store, made.task, made.target)
    one.store.jobs.finish(lease, JobState.SUCCEEDED, result={"peak_gflops": 1e-6})
    page, view = look(made.path())
    assert view["nearness"]["share"] > 1.1 and view["nearness"]["bound"] == "arithmetic"
    assert f"More than all: {DOUBT}." in page.words and "More than all is possible" not in page.words
    assert len(page.of("span", title=DOUBT)) == 1 and f"~{large(view['nearness']['flops_s'], 'FLOP/s')}" in page.words


def test_pictures(one, look, kit, shower):
    made = tried(one.store, kit.target())
    page, view = look(made.path())
    assert "parallel chunk × 4" in page.words and "y[i] += x[k]" in page.words
    assert view["form"]["parts"][0]["kind"] == "parallel"
    assert "estimated peak" in page.words
    assert made.path(made.schedules[0]) + f"?target={made.target.key}" in page.links()
    assert "has learned nothing yet" in page.words  # there is no base model in these tests
    assert shower.asked == ["picture"] * 2  # each once, for page and twin
    look(made.path())
    assert shower.asked == ["picture"] * 2


def test_a_model_that_has_learned_is_asked(one, look, kit, monkeypatch):
    made = tried(one.store, kit.target(), 40)
    page, view = look(made.path())
    assert view["analysis"]["reasons"]  # these trials alone teach it
    assert "what speaks for it beside the default is mostly" in page.words
    reason = next(one for one in view["analysis"]["reasons"] if one["log2_speed"] > 0)
    assert reason["words"] in page.words and reason["value"] != reason["default_value"]
    assert f"asked after {view['analysis']['sampled']} trials, what speaks" in page.words
    factor = times(2 ** reason["log2_speed"])  # told alike in the sentence and in the bars
    told = f"{reason['value']} instead of {reason['default_value']}, {factor} the speed)"
    assert told in page.words and f"{reason['feature']}{factor}" in page.words


def test_how_far_the_model_can_be_trusted(one, look, kit, monkeypatch):
    made = tried(one.store, kit.target(), 3)
    keys = [schedule.key for schedule in (made.schedules[1], made.schedules[0], made.default)]
    pairs = tuple(Pair(key, 1e-3 * (1 + n), 1e-3) for n, key in enumerate(keys))
    asked = []

    def calibrations(store, task, target, lines):
        asked.append(len(lines))
        return [
            Calibration("base model", pairs, 0.61, 0.75, 0.9, 1.0, has_learned_from_these=False),
            Calibration("snapshot 7", pairs, None, None, None, None, has_learned_from_these=True),
        ]

    monkeypatch.setattr(analysis, "calibrations", calibrations)
    page, view = look(made.path())
    assert asked == [4]
    base, newest = view["analysis"]["calibrations"]
    assert (base["model"], base["rank_correlation"], base["peak_5"], base["best_rank"]) == ("base model", 0.61, 1.0, 2)
    assert (newest["model"], newest["rank_correlation"], newest["has_learned_from_these"]) == ("snapshot 7", None, True)
    assert "rank correlation of 0.61" in page.words and "75.0% in the right order" in page.words
    assert "What it ranks first has 90.0% of the speed of the best, the best of its first five 100.0%" in page.words
    assert "The base model, which never saw these trials, ranks it 2 of 3" in page.words
    assert "Snapshot 7 ranks it 2 of 3" in page.words
    assert "There are too few trials to say" in page.words
    predicted = {point["schedule"]: point["predicted_ms"] for point in view["analysis"]["points"]}
    assert predicted[keys[0]] == [1.0, 1.0] and predicted[made.schedules[2].key] == [None, None]
    assert page.words.count("predicted = measured") >= 2


def test_side_by_side(one, look, kit):
    target, task = kit.target(), product()
    one.store.add_target(target)
    lease = queued(one.store, task, target)
    made = tried(one.store, target, 2)
    winner = others(task, target, 3)[2]
    made.record(winner, good(5e-4), lease)
    provenance = {NOISE: "other processes took 40% of it", DEFAULT_INTERVAL: "0.0023 0.0025"}
    confirmed = replace(good(6e-4), incumbent_s=2.4e-3, provenance=provenance)
    one.store.confirm(Record(task.key, target.key, winner, confirmed), lease)
    one.store.jobs.finish(lease, JobState.SUCCEEDED, result={"peak_gflops": 123.0})
    page, view = look(made.path())
    gain = {"default_ms": 2.4, "best_ms": 0.6, "is_confirmed": True, "noise": "other processes took 40% of it"}
    gain |= {"default_noise": gain["noise"], "is_default_confirmed": True}
    gain["interval"] = pytest.approx([2.3 / 0.606, 2.5 / 0.594])
    assert view["gain"] == gain | {"default_interval_ms": [2.3, 2.5], "best_interval_ms": pytest.approx([0.594, 0.606])}
    assert (
        "best schedule known takes ~600 µs (95% interval of the median: 594 µs to 606 µs), timed in turn" in page.words
    )
    assert "The default takes ~2.40 ms (2.30 ms to 2.50 ms): that is ~4.00x as fast (3.80x to 4.21x)." in page.words
    assert "As a trial it took 500 µs°" in page.words
    assert "too busy to rely on times marked ~: other processes took 40% of it" in page.words
    assert "Best and default are marked at their confirmed times" in page.words
    assert view["ceilings"]["peak_flops_s"] == 123e9 and view["ceilings"]["is_measured"]
    assert "measured peak 123 GFLOP/s" in page.words
    nearness = view["nearness"]
    assert nearness["is_measured"] is (nearness["bound"] == "arithmetic")
    assert bool(nearness["why_above"]) == (nearness["share"] > 1.02) == ("More than all is possible" in page.words)
    assert view["best"]["job"] == lease.job_id


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        ("0.00099 0.0013", "the two are not told apart; their ratio is 1.13x (0.98x to 1.31x)."),
        ("", "their ratio is 1.13x, but that this is a gain is not yet confirmed."),
    ],
)
def test_a_gain_that_is_not_certain_is_none(one, look, kit, edges, said):
    target, task = kit.target(), product()
    one.store.add_target(target)
    made = tried(one.store, target, 2)
    confirmed = replace(good(1e-3), incumbent_s=1.13e-3, provenance={DEFAULT_INTERVAL: edges})
    one.store.confirm(Record(task.key, target.key, made.schedules[0], confirmed))
    page, _ = look(made.path())
    assert said in page.words and "as fast" not in page.words and "Why the best schedule is fast" not in page.words


def test_a_job_that_has_not_ended_tells_the_interval_of_what_it_confirmed(one, look, kit):
    target, task = kit.target(), product()
    one.store.add_target(target)
    lease = queued(one.store, task, target)
    made = tried(one.store, target, 2)
    confirmed = replace(good(1e-3), incumbent_s=1.5e-3, provenance={DEFAULT_INTERVAL: "0.0014 0.0016"})
    one.store.confirm(Record(task.key, target.key, made.schedules[0], confirmed), lease)
    page, view = look(made.path(), job=lease.job_id)
    assert view["gain"]["default_interval_ms"] == [1.4, 1.6]
    assert "1.50 ms (1.40 ms to 1.60 ms): that is 1.50x as fast" in page.words and "not yet confirmed" not in page.words


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_trial_is_held_against_the_default_as_it_was_confirmed(one, look, kit, is_warm):
    """One trial of the default may be of a bad moment; but none has constants in the caches."""
    target, task = kit.target(), product()
    one.store.add_target(target)
    lease = queued(one.store, task, target)
    made = tried(one.store, target, 2)
    provenance = {**machine(), DEFAULT_INTERVAL: "0.0014 0.0016"}
    confirmed = replace(good(1e-3), incumbent_s=1.5e-3, provenance=provenance, warm_s=1e-3 if is_warm else None)
    one.store.confirm(Record(task.key, target.key, made.schedules[0], confirmed), lease)
    one.store.record(Record(task.key, target.key, others(task, target, 9)[8], good(5e-4)), lease)
    page, view = look(made.path())
    gain = view["gain"]
    assert (gain["best_ms"], gain["interval"], gain["is_confirmed"]) == (0.5, None, False)
    assert (gain["default_ms"], gain["is_default_confirmed"]) == ((2.0, False) if is_warm else (1.5, True))
    assert gain["default_interval_ms"] == pytest.approx((1.98, 2.02) if is_warm else (1.4, 1.6))
    told = (
        "2.00 ms° (1.98 ms to 2.02 ms): that is 4.00x°" if is_warm else "1.50 ms (1.40 ms to 1.60 ms): that is 3.00x°"
    )
    assert f"The default takes {told} as fast." in page.words
    assert ("confirmed default, best by a trial" in page.words) is not is_warm


@pytest.mark.slow
def test_a_default_keeps_the_time_by_which_it_lost_to_what_was_taken_back(one, look, kit):
    target, task = kit.target(), product()
    one.store.add_target(target)
    lease = queued(one.store, task, target)
    made = tried(one.store, target, 2)
    provenance = {**machine(), DEFAULT_INTERVAL: "0.0014 0.0016"}
    winner = made.schedules[0]
    one.store.confirm(
        Record(task.key, target.key, winner, replace(good(1e-3), incumbent_s=1.5e-3, provenance=provenance)), lease
    )
    one.store.voids.void(task.key, target.key, winner.key, "wrong on odd days")
    _, view = look(made.path())
    gain = view["gain"]
    assert (gain["default_ms"], gain["default_interval_ms"]) == (1.5, [1.4, 1.6]) and gain["is_default_confirmed"]
    assert not gain["is_confirmed"] and gain["best_ms"] != 1.0


def test_a_default_that_was_taken_back_is_held_against_nothing(one, look, kit):
    target, task = kit.target(), product()
    one.store.add_target(target)
    lease = queued(one.store, task, target)
    made = tried(one.store, target, 2)
    confirmed = replace(good(1e-3), incumbent_s=1.5e-3, provenance=machine())
    one.store.confirm(Record(task.key, target.key, made.schedules[0], confirmed), lease)
    one.store.voids.void(task.key, target.key, made.default.key, "wrong on odd days")
    page, view = look(made.path())
    assert view["gain"] is None and "The default was taken back." in page.words
    assert view["best"]["median_ms"] == 1.0 and view["best"]["is_confirmed"]


def test_schedules_of_other_versions_do_not_look_the_best(one, look, kit):
    made = tried(one.store, kit.target(), 2)
    for sketch, version in (("magic", 5), ("tiled", 99)):
        made.record(Schedule(sketch, version, (("n", 1),)), good(1e-6))
    page, view = look(made.path())
    assert [row["is_usable"] for row in view["rows"]] == [False, False, True, True, True]
    assert view["best"]["schedule"]["key"] == made.schedules[0].key  # what a session would use
    first, _, rest = page.words.rpartition("Never used, however little they took")
    assert "magic.5" in rest and "tiled.99" in rest and "magic.5" not in first
    assert "1.00 ms°" in first and "1.00x° as long" in first and "as long" not in rest
    page, _ = look(made.path(Schedule("magic", 5, (("n", 1),))))
    assert "It is never used: this version has no such schedule" in page.words


@pytest.mark.parametrize("result", [{"tasks": 7}, {"tasks": [7, {"key": 1}]}, {"peak_gflops": "x"}, {}])
def test_reports_of_any_form(one, look, kit, result):
    target = kit.target()
    lease = queued(one.store, product(), target)
    made = tried(one.store, target, 1)
    made.record(others(made.task, target, 2)[1], good(5e-4), lease)
    one.store.jobs.finish(lease, JobState.SUCCEEDED, result=result)
    _, view = look(made.path(), job=lease.job_id)
    assert not view["gain"]["is_confirmed"]


def test_the_default_may_be_best(one, look, kit):
    made = tried(one.store, kit.target(), 0)
    page, view = look(made.path())
    assert view["is_default_best"] and view["gain"] is None and view["default_form"] is None
    assert "It is the default: of the 1 trial none is faster" in page.words
    made.record(others(made.task, made.target, 1)[0], good(1.9e-3))  # as a trial may take, whatever a comparison says
    one.store.confirm(
        Record(made.task.key, made.target.key, made.default, good(2e-3)), queued(one.store, made.task, made.target)
    )
    page, view = look(made.path())
    assert view["is_default_best"] and "none of the best of 2 trials was clearly faster" in page.words
    assert view["gain"] and "none: the default is the fastest known" in page.words
    assert "not yet confirmed" not in page.words and "no gain" not in page.words
    assert "none is faster" not in page.words


def test_nothing_was_tried(one, look, kit):
    task = product()
    one.store.add_task(task)
    one.store.add_target(kit.target())
    page, view = look(f"/tasks/{task.key}")
    assert "Nobody has tried anything of this task" in page.words and "tunewright submit" in page.words
    assert view["best"] is None and view["rows"] == [] and view["trials"] == 0


def test_nothing_works(one, look, kit):
    made = tried(one.store, kit.target(), 0, product(32))
    task = product(48)
    one.store.add_task(task)
    for number, schedule in enumerate(others(task, made.target, 2)):
        one.store.record(Record(task.key, made.target.key, schedule, failed([Status.CRASH, Status.TIMEOUT][number])))
    page, view = look(f"/tasks/{task.key}")
    assert "Of 2 trials none has worked" in page.words
    assert view["counts"] == {"crash": 1, "timeout": 1}
    assert "The default was not" not in page.words


def test_hostile_texts(one, shown_client, look, kit):
    task = product(label=HOSTILE)
    lease = queued(one.store, task, kit.target(), label=HOSTILE)
    made = tried(one.store, kit.target(), 1, task)
    made.record(others(task, kit.target(), 2)[1], failed(), lease)
    page, view = look(made.path(), job=lease.job_id)
    assert view["task"]["op"] == HOSTILE
    assert "alert(1)" in page.words and "\u202e" not in page.words
    text = shown_client.get(made.path(), params={"target": kit.target().key}).text
    assert "<script>alert" not in text


def test_the_table_is_sorted_and_filtered_and_comes_in_pages(one, look, kit):
    target = kit.target()
    made = tried(one.store, target, 60)
    for schedule in others(made.task, target, 64)[60:]:
        made.record(schedule, failed(error="it crashed"))
    page, view = look(made.path())
    times_ms = [row["median_ms"] for row in view["rows"]]
    assert len(times_ms) == views.ROWS and times_ms == sorted(times_ms)
    assert view["shown"] == view["trials"] == 65 and view["counts"] == {"ok": 61, "crash": 4}
    [following] = [attrs["href"] for tag, attrs in page.tags if tag == "a" and attrs.get("rel") == "next"]
    assert f"cursor={view['next']}".replace(" ", "+") in following.replace("%2B", "+").replace("%2E", ".")
    while view["next"]:
        second, view = look(made.path(), tab="trials", cursor=view["next"])
    assert len(view["rows"]) == 65 % views.ROWS
    assert [row["status"] for row in view["rows"]][-4:] == ["crash"] * 4
    assert "it crashed" in second.words and "First" in second.words
    _, view = look(made.path(), desc=True)
    assert view["rows"][0]["median_ms"] == max(row["median_ms"] for row in view["rows"])
    _, view = look(made.path(), sort="created", desc=True, status="crash")
    assert [row["status"] for row in view["rows"]] == ["crash"] * 4 and view["shown"] == 4
    page, view = look(made.path(), status=["crash", "timeout"])
    assert view["shown"] == 4
    page, view = look(made.path(), status="timeout")
    assert "No trial ended so" in page.words


def test_sorting_links_turn_round(one, look, kit):
    made = tried(one.store, kit.target(), 2)

    def heading(page, word):
        place = next(n for n, (tag, attrs) in enumerate(page.tags) if tag == "th" and attrs.get("aria-sort"))
        return page.tags[place][1]["aria-sort"], page.tags[place + 1][1]["href"]

    page, _ = look(made.path())
    direction, link = heading(page, "Time")
    assert direction == "ascending" and "desc=true" in link
    page, view = look(made.path(), desc="true")
    direction, link = heading(page, "Time")
    assert direction == "descending" and "desc" not in link
    assert view["rows"][0]["median_ms"] == 2.0
    page, _ = look(made.path(), sort="created", desc="true")
    direction, link = heading(page, "When")
    assert direction == "descending" and "sort=created" in link and "desc" not in link


def test_the_trials_of_a_job(one, look, kit):
    target = kit.target()
    lease = queued(one.store, product(), target)
    made = tried(one.store, target, 3)
    made.record(others(made.task, target, 4)[3], good(4e-3), lease)
    page, view = look(made.path(), job=lease.job_id)
    assert [row["job"] for row in view["rows"]] == [lease.job_id] and view["trials"] == 5
    newest = one.store.jobs.newest_event(lease.job_id)
    of = {"id": lease.job_id, "label": "net.onnx", "dims": {}, "state": "running", "newest": newest}
    assert newest and view["job"] == of
    [body] = [attrs for tag, attrs in page.tags if tag == "body"]
    assert body["data-stream"] == f"/v1/jobs/{lease.job_id}/events?after={newest}"
    assert f"/jobs/{lease.job_id}" in page.links()


def finished(one, made, best, best_ms):
    """A job of the task that has ended: it reports this schedule as the best."""
    lease = queued(one.store, made.task, made.target)
    made.record(best, good(best_ms / 1e3), lease)
    entry = {"key": made.task.key, "chosen": 1, "default_ms": 2.0, "best_ms": best_ms, "schedule": best.to_json()}
    edges = {"default_interval_ms": [1.9, 2.1], "best_interval_ms": [0.99 * best_ms, 1.01 * best_ms]}
    one.store.jobs.finish(lease, JobState.SUCCEEDED, result={"tasks": [entry | edges]})
    return lease.job_id


def head(page):
    """The words of the head of a page, with a space for each piece of markup."""
    source = page.source
    return " ".join(re.sub(r"<[^>]*>", " ", source[source.index('<dl class="brief"') : source.index("</dl>")]).split())


def test_who_comes_from_a_job_is_told_of_its_best_and_of_a_better_one_of_another(one, look, kit):
    made = tried(one.store, kit.target(), 0)
    first, second = others(made.task, made.target, 2)
    earlier = finished(one, made, first, 1.2)
    page, view = look(made.path(), job=earlier)
    assert f"Best of job {earlier} 1.20 ms 1.19 ms to 1.21 ms Gain 1.67x 1.57x to 1.77x" in head(page)
    assert "Best known" not in head(page) and view["job_best"]["is_best_known"]
    later = finished(one, made, second, 0.8)
    page, view = look(made.path(), job=earlier)
    assert f"Best of job {earlier} 1.20 ms 1.19 ms to 1.21 ms Gain 1.67x 1.57x to 1.77x" in head(page)
    assert f"Best known 800 µs ° 792 µs to 808 µs, job {later}" in head(page)
    assert made.path(second) + f"?target={made.target.key}" in page.links() and f"/jobs/{later}" in page.links()
    assert not view["job_best"]["is_best_known"] and view["job_best"]["best_ms"] == 1.2
    page, view = look(made.path())
    assert head(page).startswith("Best 800 µs °") and view["job_best"] is None


def test_a_job_that_goes_on_has_the_best_that_it_told(one, look, kit):
    made = tried(one.store, kit.target(), 0)
    first, second = others(made.task, made.target, 2)
    lease = queued(one.store, made.task, made.target)
    page, _ = look(made.path(), job=lease.job_id)
    assert f"Best of job {lease.job_id} - Gain - Best known 2.00 ms ° 1.98 ms to 2.02 ms" in head(page)
    data = {"task_key": made.task.key, "default_ms": 2.0, "best_ms": 1.2, "trial": 0}
    record = Record(made.task.key, made.target.key, first, good(1.2e-3))
    one.store.record(record, lease, [NewEvent(EventKind.IMPROVED, data)])
    page, _ = look(made.path(), job=lease.job_id)
    assert f"Best of job {lease.job_id} 1.20 ms ° Gain 1.67x °" in head(page) and "Best known" not in head(page)
    made.record(second, good(0.8e-3))
    page, _ = look(made.path(), job=lease.job_id)
    assert f"Best of job {lease.job_id} 1.20 ms °" in head(page) and "Best known 800 µs °" in head(page)


def test_a_job_of_other_tasks_has_no_best_of_this_one(one, look, kit):
    made = tried(one.store, kit.target(), 1)
    lease = queued(one.store, product(48), made.target)
    page, view = look(made.path(), job=lease.job_id)
    assert view["job_best"] is None and "Best of job" not in page.words


def test_what_is_not_known(one, shown_client, kit):
    made = tried(one.store, kit.target(), 1)
    target = {"target": made.target.key}
    kit.problem(shown_client.get("/tasks/" + "0" * 64, params=target), "no-such-task", 404)
    kit.problem(shown_client.get(made.path(), params={"target": "0" * 64}), "no-such-target", 404)
    kit.problem(shown_client.get(made.path(), params=target | {"job": 99}), "no-such-job", 404)
    kit.problem(shown_client.get(made.path()), "invalid-request", 422)
    kit.problem(shown_client.get("/tasks/x", params=target), "invalid-request", 422)
    for wrong in ({"cursor": "x"}, {"sort": "x"}, {"status": "x"}, {"job": 0}, {"desc": "x"}):
        kit.problem(shown_client.get(made.path(), params=target | wrong), "invalid-request", 422)
    _, slowest = kit, shown_client.get("/v1/pages" + made.path(), params=target).json()
    assert slowest["next"] is None


def test_a_cursor_of_another_order(one, shown_client, look, kit):
    made = tried(one.store, kit.target(), 55)
    _, view = look(made.path())
    query = {"target": made.target.key, "cursor": view["next"], "desc": "true"}
    kit.problem(shown_client.get(made.path(), params=query), "invalid-request", 422)


def test_nobody_waits_long_for_pictures(one, look, kit, shower, monkeypatch):
    monkeypatch.setattr(descriptions, "PATIENCE_S", 0.0)
    shower.may.clear()
    made = tried(one.store, kit.target(), 2)
    page, view = look(made.path())
    assert view["form"] == {"words": [], "parts": [], "is_pending": True, "why": ""}
    assert "It is being looked at" in page.words and "Look again" in page.words
    shower.may.set()
    wait_for(lambda: look(made.path())[1]["form"]["parts"])
    wait_for(lambda: look(made.path())[1]["analysis"])


def test_what_can_not_be_lowered(one, look, kit, shower):
    shower.why = f"it takes more than 5 s {HOSTILE}"
    made = tried(one.store, kit.target(), 1)
    page, view = look(made.path())
    assert "It can't be shown: it takes more than 5 s" in page.words
    assert view["form"]["parts"] == []


def test_trials_are_judged_now_and_then(one, shown_client, look, kit, shower, monkeypatch):
    monkeypatch.setattr(descriptions, "RENEW_S", 1e9)
    one.app.state.descriptions = Descriptions(lambda: shower)
    made = tried(one.store, kit.target(), 3)
    _, before = look(made.path())
    made.record(others(made.task, made.target, 4)[3], good(4e-3))
    _, after = look(made.path())
    assert (before["trials"], after["trials"]) == (4, 5)
    assert before["analysis"]["sampled"] == after["analysis"]["sampled"] == 4
    monkeypatch.setattr(descriptions, "RENEW_S", 0.0)
    one.app.state.descriptions = Descriptions(lambda: shower)
    assert look(made.path())[1]["analysis"]["sampled"] == 5


def test_no_figure_is_of_an_older_best(one, look, kit, shower, monkeypatch):
    """What the cost model says comes now and then; speed and share of the peak are of the time beside them."""
    monkeypatch.setattr(descriptions, "RENEW_S", 1e9)
    one.app.state.descriptions = Descriptions(lambda: shower)
    made = tried(one.store, kit.target(), 40)
    _, before = look(made.path())
    assert before["analysis"]["reasons"] and before["analysis"]["best"] == before["best"]["schedule"]["key"]
    better = others(made.task, made.target, 41)[40]
    made.record(better, good(5e-4))
    page, after = look(made.path())
    assert after["best"]["schedule"]["key"] == better.key != after["analysis"]["best"]
    assert after["nearness"]["flops_s"] == pytest.approx(made.task.flops / 5e-4)
    assert f"It reaches {large(after['nearness']['flops_s'], 'FLOP/s')}°" in page.words
    assert after["analysis"]["reasons"] is None and "what speaks for it beside the default" not in page.words
    assert "The cost model is being asked" in page.words and "ranks it" not in page.words
    confirmed = replace(good(6e-4), incumbent_s=2.4e-3)  # of the same schedule
    one.store.confirm(
        Record(made.task.key, made.target.key, better, confirmed), queued(one.store, made.task, made.target)
    )
    for path in (made.path(), made.path(better)):
        _, view = look(path)
        assert view["nearness"]["flops_s"] == pytest.approx(made.task.flops / 6e-4), path


def test_what_is_taken_back_is_judged_no_longer(one, look, kit, shower, monkeypatch):
    monkeypatch.setattr(descriptions, "RENEW_S", 0.0)
    one.app.state.descriptions = Descriptions(lambda: shower)
    made = tried(one.store, kit.target(), 3)
    assert len(look(made.path())[1]["analysis"]["points"]) == 4
    one.store.voids.void(made.task.key, made.target.key, others(made.task, made.target, 3)[2].key, "noisy")
    wait_for(lambda: len(look(made.path())[1]["analysis"]["points"]) == 3)


def test_many_trials_are_sampled(one, look, kit, monkeypatch):
    monkeypatch.setattr("tunewright.api.dashboard.task.analysis.SAMPLED", 20)
    monkeypatch.setattr("tunewright.api.dashboard.task.analysis.FASTEST", 5)
    made = tried(one.store, kit.target(), 60)
    page, view = look(made.path())
    keys = {point["schedule"] for point in view["analysis"]["points"]}
    assert {schedule.key for schedule in made.schedules[:5]} | {made.default.key} <= keys
    assert 20 <= view["analysis"]["sampled"] <= 26 == 20 + 5 + 1
    assert f"A sample of {view['analysis']['sampled']} of 61 trials" in page.words
    assert json.dumps(view)


def test_names_that_no_import_takes_any_more_are_shown_escaped(one, look, kit):
    """An older version took them, and they are history of a sketch that nobody knows."""
    made = tried(one.store, kit.target(), 2)
    odd = "a\ud800\x1b\u202e"
    strange = Schedule(odd, 1, ((odd, 2**70), ("b" * 400, 1)))
    made.record(strange, replace(good(1e-4), provenance={odd: odd}))
    told = "a\\ud800\x1b\u202e"  # what UTF-8 can't have is escaped, and in pages what no eye can see
    page, view = look(made.path())
    assert r"a\ud800\x1b\u202e" in page.words
    assert told in {trial["schedule"]["sketch"] for trial in view["rows"]}
    page, view = look(made.path(strange))
    assert r"a\ud800\x1b\u202e" in page.words
    assert view["schedule"]["values"] == {told: 2**70, "b" * 297 + "...": 1}
    assert view["evidence"]["provenance"] == {told: told}


@pytest.mark.parametrize(
    ("query", "tab"),
    [
        ({}, "Overview"),
        ({"tab": "loops"}, "Loops"),
        ({"tab": "about"}, "About"),
        ({"status": "ok"}, "Trials"),
        ({"sort": "created"}, "Trials"),
        ({"desc": "true"}, "Trials"),
        ({"status": "ok", "tab": "overview"}, "Overview"),
    ],
)
def test_a_page_shows_one_tab(one, shown_client, kit, query, tab):
    """Addresses from before there were tabs lead to the one that has what they ask for."""
    made = tried(one.store, kit.target(), 3)
    page = whole(shown_client.get(made.path(), params={"target": made.target.key} | query))
    [current] = [attrs["href"] for attrs in page.of("a", **{"aria-current": "page"}) if "/tasks/" in attrs["href"]]
    assert ("tab" in current) == (tab != "Overview") and current in page.links()
    titles = {"Overview": "why", "Loops": "form", "Trials": "trials", "About": "about"}
    shown = {name for name, place in titles.items() if page.of("h2", id=f"{place}-title")}
    assert shown == {tab}
    kit.problem(shown_client.get(made.path(), params={"target": made.target.key, "tab": "x"}), "invalid-request", 422)
