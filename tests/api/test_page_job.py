"""The page of a job: how much faster, where the time goes, what has something to gain, is it worth more budget."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace

import pytest
from markupsafe import escape

from tunewright.api.dashboard.job import cost_model, history
from tunewright.api.dashboard.job.curves import MOST_STEPS, _steps
from tunewright.api.dashboard.job.history import Histories, Times
from tunewright.api.dashboard.job.page import job_page
from tunewright.api.dashboard.job.tasks import Reason, total_ms
from tunewright.api.dashboard.job.view import JobPageAsked, JobTab
from tunewright.codegen.host import machine
from tunewright.db.fleet import TunerDevice
from tunewright.db.job import EventKind, JobSpec, JobState, SearchBudget, SpecTask
from tunewright.db.snapshot import NewSnapshot
from tunewright.db.store import open_store
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.explain.calibration import Calibration
from tunewright.tuner.explain.curves import Improvement
from tunewright.tuner.explain.gain import GainBasis
from tunewright.tuner.explain.peak import DOUBT, FEWER_MULTIPLICATIONS, OTHER_MOMENT
from tunewright.tuner.models.model import open_model
from tunewright.tuner.search.lease_keeper import LeaseKeeper
from tunewright.tuner.text import about, duration
from tunewright.tuner.units import in_s

from ..tuner.conftest import small_model
from ..tuner.fake_pool import LEASE_S, FakePool, by_key, is_default, leased, work
from ..tuner.fake_pool import job as tune
from ..waiting import wait_for
from .page import whole
from .searched import FAILED, HOSTILE, Search, page, page_words, report, searched, took, twin

REST = "the rest of its budget, about 2 min, should"


class TestBeforeAnyTrial:
    def test_it_says_that_nothing_is_known(self, client, search):
        said = twin(client, search.id)
        assert (said["job"]["state"], said["latency"]["speedup"], said["prospect"]["outlook"]) == (
            "running",
            None,
            "unknown",
        )
        assert [task["reason"] for task in said["tasks"]] == ["untried", "untried"]
        assert (said["failures"], said["curves"], said["model"]["steps"]) == ([], [], [])
        words = page(client, search.id)
        assert "There are no trials yet" in words
        assert "is told once each task that the model needs had its first trial" in words

    def test_a_job_that_nobody_takes_up(self, serve, kit):
        with serve() as one:
            one.store.add_target(kit.target())
            client = one.client()
            model = kit.send(client, 8)
            job = client.post("/v1/jobs", json={"model": model, "target": kit.target().key}).json()["id"]
            assert "tunewright work" in page(client, job)


class TestWhileItRuns:
    def test_how_much_faster_it_is_so_far(self, client, search):
        searched(search)
        said = twin(client, search.id)
        told = {"of": "trials", "default_ms": 10.0, "tuned_ms": 4.0, "speedup": 2.5, "is_default_tried": True}
        told |= dict.fromkeys(("why_not", "default_fault", "noise", "vendor_text", "precision_text"), "")
        assert {name: value for name, value in said["latency"].items() if value is not None} == told
        assert all(not task["is_confirmed"] for task in said["tasks"])
        words = page(client, search.id)
        assert "2.50x ° so far, by its tasks, not all confirmed" in words
        assert "4.00 ms ° 10.0 ms ° by default" in words

    def test_an_improvement_is_in_every_figure_at_once(self, client, search):
        """The progress is told once a second."""
        searched(search)
        search.improve(search.tasks[1], 0.5, 4.0)
        said = twin(client, search.id)
        assert sum(part["after_ms"] for part in said["parts"]) == said["latency"]["tuned_ms"] == 3.0
        assert said["latency"]["speedup"] == said["job"]["speedup"] == pytest.approx(10 / 3)
        assert said["model"]["steps"][-1]["speedup"] == said["latency"]["speedup"]
        assert said["model"]["steps"][-1]["trial"] == said["job"]["trials"] == said["trials"] == 7

    def test_tasks_that_are_called_alike_are_told_apart(self, client, search):
        searched(search)
        said = twin(client, search.id)
        expected = {task.key: f"Relu {task.shape}" for task in search.tasks}
        for lines in (said["tasks"], said["promising"], said["curves"], [one for one in said["log"] if one["key"]]):
            assert lines and all(line["op"] == expected[line["key"]] for line in lines)
        assert {part["name"] for part in said["parts"]} == set(expected.values())

    def test_a_task_with_a_name_of_its_own_has_no_shape(self, one, client, kit):
        job = client.post("/v1/jobs", json={"model": kit.send(client, 8)}).json()["id"]
        assert [task["op"] for task in twin(client, job)["tasks"]] == ["Relu"]

    def test_where_the_time_goes(self, client, search):
        searched(search)
        first, second = twin(client, search.id)["parts"]
        assert {first["key"], second["key"]} == {task.key for task in search.tasks}
        assert {(part["before_ms"], part["after_ms"]) for part in (first, second)} == {(8.0, 2.0), (2.0, 2.0)}
        assert 'class="chart shares"' in client.get(f"/jobs/{search.id}").text

    @pytest.mark.slow
    def test_what_was_spent_on_each_task_and_why(self, client, search):
        searched(search)
        small, large = (
            next(t for t in twin(client, search.id)["tasks"] if t["key"] == one.key) for one in search.tasks
        )
        assert (large["uses"], large["occurrences"], large["default_ms"], large["best_ms"]) == (2, 2, 4.0, 1.0)
        assert (large["before_share"], large["after_share"]) == pytest.approx((0.8, 0.5))
        assert (large["saved_share"], small["saved_share"]) == pytest.approx((1.0, 0.0))
        assert (large["trials"], large["failed"], large["improved_trial"]) == (4, 1, 5)
        assert large["trials_share"] == pytest.approx(4 / 6)
        assert [(task["expected_share"], task["reason"]) for task in (large, small)] == [
            (0.04, "most"),
            (0.001, "some"),
        ]
        assert "more trials are expected to bring most here faster last at trial 5" in page(client, search.id)

    @pytest.mark.parametrize("parts", [(0.039, 0.04), (0.0009, 0.00092)])
    def test_most_is_said_of_the_task_of_which_most_is_expected(self, client, search, parts):
        searched(search)
        search.progress(task_gains=list(parts))
        assert {task["key"]: task["reason"] for task in twin(client, search.id)["tasks"]} == dict(
            zip((task.key for task in search.tasks), ("some", "most"), strict=True)
        )

    def test_what_a_search_of_less_than_a_minute_promises_is_of_a_minute(self, client, search):
        searched(search)
        search.progress(spent_s=12.0, again_gain=0.045, remaining_gain=0.03, task_gains=[0.001, 0.04])
        words = page(client, search.id)
        assert "A minute more would make its tasks 4.5% faster" in words and "by searching for a minute more" in words
        assert "as long again" not in words and "again, 1:00" not in words

    def test_where_nothing_was_timed_words_say_so(self, client, search):
        search.trial(search.tasks[0], FAILED)
        assert "known once each task's default was timed" in page(client, search.id).replace("&#39;", "'")
        search.store.jobs.finish(search.lease, JobState.CANCELLED)
        source = client.get(f"/jobs/{search.id}").text
        assert '<p class="nothing">Not every task was timed' in source and 'class="chart shares"' not in source

    def test_what_was_taken_back_is_no_failure(self, one, client, search):
        searched(search)
        small, large = search.tasks
        assert one.store.voids.void(small.key, search.target.key, search.schedule(1).key, "wrong on odd days")
        assert one.store.voids.void(large.key, search.target.key, search.schedule(2).key, "wrong on odd days")
        said = twin(client, search.id)
        assert (said["trials"], said["voided"], [one["status"] for one in said["failures"]]) == (6, 2, ["timeout"])
        counts = {task["key"]: (task["trials"], task["failed"], task["voided"]) for task in said["tasks"]}
        assert counts == {small.key: (2, 1, 1), large.key: (4, 0, 1)}
        words = page(client, search.id)
        assert "of 40, 1 failed, 2 taken back" in words and "2 trials were taken back, which need not" in words

    def test_whether_it_is_worth_more(self, client, search):
        searched(search)
        said = twin(client, search.id)
        assert said["prospect"] == {"outlook": "some", "again_s": 90.0, "again_gain": 0.045, "ended_by": None}
        assert [one["expected_share"] for one in said["promising"]] == [0.04, 0.001]
        words = page(client, search.id)
        assert "The rest of its budget is expected to make its tasks 3.0% faster" in words
        assert "As long again would make its tasks 4.5% faster" in words
        first, second = (
            r"Relu 16 -&gt; 16 \(4% of the time of all tasks\)",
            r"Relu 8 -&gt; 8 \(0.1% of the time of all tasks\)",
        )
        assert re.search(rf"Most of that is expected of {first} and {second}\.", words)
        search.progress(spent_s=91.0, remaining_gain=0.03, again_gain=0.1, task_gains=[0.001, 0.04], left_s=120.0)
        words = page(client, search.id)
        assert re.search(rf"Of single tasks most is expected of {first} and {second}\.", words)
        search.progress(spent_s=95.0, remaining_gain=0.001, again_gain=0.002, task_gains=[0.0, None], left_s=100.0)
        assert "little more to expect" in page(client, search.id)
        assert [task["reason"] for task in twin(client, search.id, sort="expected")["tasks"]] == ["little", "exhausted"]

    def test_no_gain_is_no_news(self, client, search):
        search.default(search.tasks[0], 2.001)
        search.improve(search.tasks[0], 2.0, 2.001)
        words = page(client, search.id)
        assert re.search(r"takes 2\.00 ms ° *, at trial 2", words) and "no gain as fast" not in words

    def test_what_changes_with_its_end_is_renewed_while_it_is_watched(self, client, search):
        assert '<h2 id="curves-of" data-live>' in client.get(f"/jobs/{search.id}").text

    def test_curves_against_trials_and_time(self, client, search):
        searched(search)
        said = twin(client, search.id)
        [curve] = [curve for curve in said["curves"] if curve["key"] == search.tasks[1].key]
        assert [(step["trial"], step["speedup"]) for step in curve["steps"]] == [
            (0, 1.0),
            (4, pytest.approx(4 / 3)),
            (5, 4.0),
        ]
        assert [(step["trial"], step["speedup"]) for step in said["model"]["steps"]] == [(6, 2.5)]
        assert "trials of the job" in client.get(f"/jobs/{search.id}").text
        assert "time at work" in client.get(f"/jobs/{search.id}", params={"x": "seconds"}).text

    def test_failures_by_kind(self, client, search):
        searched(search)
        failures = twin(client, search.id)["failures"]
        assert {(one["status"], one["trials"], one["tasks"]) for one in failures} == {
            ("crash", 1, 1),
            ("timeout", 1, 1),
        }
        assert "it killed its process" in page(client, search.id)

    def test_who_is_at_work(self, client, search, kit):
        [tuner] = twin(client, search.id)["tuners"]
        assert (tuner["host"], tuner["pid"], tuner["devices"]) == ("host-1", 4711, [])
        kit.enlist(search.store, kit.target())
        search.store.fleet.leave("t1")
        assert twin(client, search.id)["tuners"] == []
        assert "host-1:4711, not heard of in the last minute" in page(client, search.id)

    def test_a_task_of_which_nothing_works_leaves_the_sum_open(self, client, search):
        small, large = search.tasks
        for _ in range(2):
            search.trial(small, FAILED)
        search.default(large, 4.0)
        said = twin(client, search.id)
        assert (said["latency"]["default_ms"], said["latency"]["speedup"]) == (None, None)
        assert {task["key"]: task["reason"] for task in said["tasks"]} == {small.key: "failing", large.key: "unknown"}

    def test_its_stream_goes_on_behind_what_is_shown(self, client, search):
        searched(search)
        newest = search.store.jobs.newest_event(search.id)
        assert f'data-stream="/v1/jobs/{search.id}/events?after={newest}"' in client.get(f"/jobs/{search.id}").text


class TestConfirming:
    """One of two tasks was timed side by side, and the model was not."""

    @pytest.fixture
    def confirming(self, search):
        searched(search)
        large = search.tasks[1]
        search.tell(EventKind.STAGE, stage="confirming")
        times = {"default_ms": 4.4, "best_ms": 1.5, "default_interval_ms": [4.3, 4.5], "best_interval_ms": [1.4, 1.6]}
        search.tell(EventKind.CONFIRMED, task_key=large.key, op=large.op, noise="it was busy", **times)
        sums = {
            "speedup": 2.16,
            "default_ms": 10.8,
            "tuned_ms": 5.0,
            "is_tried": True,
        }  # of both tasks, as in the table
        search.progress(stage="confirming", confirmed=1, to_confirm=3, left_s=None, noise="it was busy", **sums)

    def test_a_sum_of_confirmed_tasks_says_so_where_it_has_no_interval(self, client, search, confirming):
        search.progress(stage="running", default_ms=10.8, tuned_ms=5.0, speedup=2.16, is_tried=False)
        assert "2.16x by its tasks, each confirmed" in page_words(client, "/")

    @pytest.mark.parametrize("ended", [None, JobState.CANCELLED])
    def test_what_its_tasks_come_to_is_one_figure(self, client, search, confirming, ended):
        if ended:
            search.store.jobs.finish(search.lease, ended)
        said, asked = twin(client, search.id), client.get(f"/v1/jobs/{search.id}").json()
        [listed] = client.get("/v1/pages/jobs").json()["jobs"]
        for one in (asked, listed, said["job"]):
            assert (one["speedup"], one["speedup_of"], one["noise"]) == (2.16, "trials", "it was busy")
        assert (said["latency"]["speedup"], said["latency"]["of"], said["parts_of"]) == (2.16, "trials", "trials")
        assert said["latency"]["noise"] == said["model"]["noise"] == "it was busy"
        parts = [(part["before_ms"], part["after_ms"]) for part in said["parts"]]
        assert [sum(side) for side in zip(*parts, strict=True)] == [10.8, 5.0]
        assert said["model"]["steps"][-1] == {"trial": 6, "speedup": 2.16, "is_noisy": True, "is_tried": True} | {
            "at_s": said["model"]["steps"][-1]["at_s"]
        }
        words = page(client, search.id)
        assert "~ 2.16x °" in words and "by its tasks, not all confirmed" in words and "~ 5.00 ms °" in words
        assert "while its tasks were timed to rely on the figures marked ~: it was busy" in words
        assert "sum of its tasks from 2.50x° to ~2.16x°." in words
        assert "~ 2.16x ° by its tasks, not all confirmed" in page_words(client, "/")
        assert ("What comes of it is timed at the end" in words) is (ended is None)

    def test_the_table_tells_which_times_are_confirmed(self, client, search, confirming):
        small, large = (
            next(t for t in twin(client, search.id)["tasks"] if t["key"] == one.key) for one in search.tasks
        )
        assert (small["is_confirmed"], small["best_ms"]) == (False, 2.0)
        assert (large["is_confirmed"], large["default_ms"], large["best_ms"]) == (True, 4.4, 1.5)
        search.default(search.tasks[1], 4.0)  # as another process tells that takes the job up
        [large] = [t for t in twin(client, search.id)["tasks"] if t["key"] == search.tasks[1].key]
        assert (large["is_confirmed"], large["default_ms"], large["best_ms"]) == (True, 4.4, 1.5)
        search.improve(search.tasks[1], 0.9, 4.0)
        [large] = [t for t in twin(client, search.id)["tasks"] if t["key"] == search.tasks[1].key]
        assert (large["is_confirmed"], large["default_ms"], large["best_ms"]) == (False, 4.0, 0.9)

    def test_a_curve_goes_on_from_what_was_confirmed_before(self, client, search):
        """The default, as it was confirmed, has no mark where it is told beside a trial, and its interval."""
        task = search.tasks[1]
        times = {"default_ms": 4.5, "best_ms": 1.5, "default_interval_ms": [4.4, 4.6], "best_interval_ms": [1.4, 1.6]}
        about = {"task_key": task.key, "op": task.op}
        search.trial(task, took(4.0), (EventKind.DEFAULT, about | times | {"confirmed": times}))
        found = times | {"best_ms": 1.2, "best_interval_ms": [1.1, 1.3], "default_confirmed": True, "trial": 1}
        search.trial(task, took(1.2), (EventKind.IMPROVED, about | found))
        said = twin(client, search.id)
        [curve] = [one for one in said["curves"] if one["key"] == task.key]
        steps = [(step["speedup"], step["is_tried"]) for step in curve["steps"]]
        assert steps == [(pytest.approx(3.0), False), (pytest.approx(3.75), True)]
        [line] = [one for one in said["tasks"] if one["key"] == task.key]
        assert (line["is_confirmed"], line["is_default_confirmed"], line["speedup_interval"]) == (False, True, None)
        words = page(client, search.id)
        assert "4.50 ms 4.40 ms to 4.60 ms" in words and "1.20 ms ° 1.10 ms to 1.30 ms" in words and "3.75x °" in words

    @pytest.mark.parametrize("confirmed", [1, 2])
    def test_a_sum_of_defaults_has_the_mark_of_the_trials_in_it(self, client, search, confirmed):
        """A default that was confirmed has none beside a trial, in the headline as in the table."""
        edges = {"default_interval_ms": [3.9, 4.1], "best_interval_ms": [0.9, 1.1]}
        for n, task in enumerate(search.tasks):
            told = {"task_key": task.key, "op": task.op, "default_ms": 4.0, "best_ms": 1.0}
            search.trial(task, took(4.0), (EventKind.DEFAULT, told))
            found = told | edges | {"default_confirmed": n < confirmed, "trial": 1}
            search.trial(task, took(1.0), (EventKind.IMPROVED, found))
        search.progress(stage="searching", default_ms=8.0, tuned_ms=2.0, speedup=4.0, is_tried=True)
        said, words = twin(client, search.id), page(client, search.id)
        is_tried, default_ms = confirmed < 2, said["latency"]["default_ms"]
        mark = "°" * is_tried
        assert said["latency"]["is_default_tried"] is is_tried and said["latency"]["of"] == "trials"
        assert [one["is_default_tried"] for one in said["parts"]].count(True) == 2 - confirmed
        assert f"{duration(default_ms)}{' ' * is_tried}{mark} by default" in words
        sums = re.findall(r"<desc>([^<]*)<", client.get(f"/jobs/{search.id}").text)[0]
        assert re.search(rf"by default [\d.]+ ms{mark}; so far [\d.]+ ms°", sums), sums

    def test_a_small_chart_repeats_no_confirmation_of_an_earlier_job(self, client, search):
        """The job confirms the same task anew: that is in the table, beside which there is no second figure."""
        again, faster = search.tasks
        times = {"default_ms": 3.5, "best_ms": 2.0}
        for task in (again, faster):
            about = {"task_key": task.key, "op": task.op}
            search.trial(task, took(3.6), (EventKind.DEFAULT, about | times | {"confirmed": times}))
        search.improve(faster, 1.0, 3.6)
        search.tell(EventKind.CONFIRMED, task_key=again.key, op=again.op, default_ms=6.0, best_ms=1.5)
        curves = {one["key"]: one for one in twin(client, search.id)["curves"]}
        assert curves[again.key]["steps"][-1] | {"at_s": 0.0} == curves[again.key]["steps"][0]
        source = client.get(f"/jobs/{search.id}?tab=tasks").text
        charts = source.partition('<ul class="multiples"')[2].partition("</ul>")[0]
        assert "<text" not in charts  # a figure in a curve would be a second one
        assert sorted(re.findall(r"<strong>([^<]*)<", charts)) == ["3.60x°", "4.00x"]

    def test_how_far_it_is(self, client, search, confirming):
        words = page(client, search.id)
        assert "timing default and best schedules side by side: 1 of 3 tasks" in words
        assert "the search is over" in words and "timing side by side is left" in words and "not known yet" not in words
        search.store.jobs.pause(search.id)
        search.store.jobs.give_back(search.lease)
        assert "paused while timing default and best schedules side by side: 1 of 3 tasks" in page(client, search.id)

    def test_what_failed_when_it_was_compared_has_no_time(self, client, search, confirming):
        small = search.tasks[0]
        search.tell(EventKind.CONFIRMED, task_key=small.key, op=small.op, default_ms=None, best_ms=2.2)
        [line] = [t for t in twin(client, search.id)["tasks"] if t["key"] == small.key]
        assert (line["is_confirmed"], line["default_ms"], line["best_ms"], line["speedup"]) == (True, None, 2.2, None)


class TestAtOnce:
    """The two questions that are answered first."""

    def told(self, client, search):
        said, words = twin(client, search.id), page_words(client, f"/jobs/{search.id}")
        for verdict in (said["worth"], said["trust"]):
            assert f"{escape(verdict['answer'].capitalize())} : {escape(verdict['why'])}" in words
        assert str(escape(said["worth"].pop("more"))) in words
        return said["worth"], said["trust"]

    def test_before_anything_is_known(self, client, search):
        worth, trust = self.told(client, search)
        assert worth == {"answer": "not yet", "why": "known once each task had its first trial"}
        assert trust == {"answer": "not yet", "why": "no speed-up is known so far"}

    @pytest.mark.parametrize(
        ("remaining", "worth"),
        [
            (0.03, {"answer": "yes", "why": f"{REST} make its tasks 3.0% faster"}),
            (
                0.004,
                {
                    "answer": "no",
                    "why": f"{REST} make its tasks 0.4% faster, 0.2% a minute; cancelled, it keeps what it found",
                },
            ),
            (1.5, {"answer": "yes", "why": f"{REST} make its tasks 2.50x as fast"}),
        ],
    )
    def test_while_it_searches(self, client, search, remaining, worth):
        searched(search)
        search.progress(spent_s=90.0, remaining_gain=remaining, again_gain=0.045, task_gains=[0.001, 0.04], left_s=120)
        assert self.told(client, search) == (
            worth,
            {"answer": "not yet", "why": "it is by trials so far: what comes of it is timed at the end"},
        )

    @pytest.mark.parametrize(
        ("changes", "trust"),
        [
            ({"outcome": "faster", "speedup_interval": [2.1, 2.3]}, "yes"),
            ({"outcome": "unsure", "speedup_interval": [0.9, 2.3]}, "partly"),
            ({"outcome": "faster", "speedup_interval": [2.1, 2.3], "noise": "it was busy"}, "no"),
            ({"outcome": "defaults_kept", "tuned_ms": 11.0, "rejected_ms": 11.9}, "yes"),
            ({"default_ms": None, "tuned_ms": None, "whole_model": "it has no weights"}, "no"),
        ],
    )
    def test_once_it_is_over(self, client, search, changes, trust):
        searched(search)
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=report(search, **changes))
        worth, trusted = self.told(client, search)
        assert trusted["answer"] == trust and ("it was busy" in trusted["why"]) is ("noise" in changes)
        other = {"defaults_kept": "maybe"}.get(changes["outcome"], "yes") if "outcome" in changes else "yes"
        assert worth["answer"] == ("can't be told" if "noise" in changes else other)
        look = "untold" if "noise" in changes else other
        assert whole(client.get(f"/jobs/{search.id}")).of("strong", **{"class": f"answer {look}"})
        assert ("its interval is clear of 1, but" in trusted["why"]) is ("noise" in changes)
        machine = f"/jobs/{search.id}?tab=machine"
        assert whole(client.get(f"/jobs/{search.id}")).links().count(machine) == 1 + ("noise" in changes)

    @pytest.mark.parametrize(
        ("told", "outlook", "answer"),
        [
            ({"left_s": 7300.0, "remaining_gain": 0.1}, "some", "yes"),
            ({"left_s": 120.0, "remaining_gain": 0.004}, "little", "no"),
            ({"left_s": 7300.0, "remaining_gain": 0.03}, "little", "no"),  # less than 0.05% a minute
            ({"left_s": 7300.0, "remaining_gain": 0.1, "noise": "it was busy"}, "noisy", "can't be told"),
            ({"left_s": 7300.0, "remaining_gain": 0.03, "noise": "it was busy"}, "little", "no"),
        ],
    )
    def test_the_list_the_card_and_the_page_judge_alike(self, client, search, told, outlook, answer):
        """By one rule; what more than little to expect of noisy times nobody tells."""
        searched(search)
        about = {"task_key": search.tasks[0].key, "op": search.tasks[0].op, "default_ms": 2.0, "best_ms": 2.0}
        search.tell(EventKind.IMPROVED, **about, noise=told.get("noise", ""))
        search.progress(spent_s=90.0, again_gain=0.045, task_gains=[0.001, 0.04], is_tried=True, **told)
        worth, _ = self.told(client, search)
        first = client.get("/v1/pages/jobs").json()
        assert {line["outlook"] for line in (*first["jobs"], *first["running"])} == {outlook}
        assert worth["answer"] == answer
        words = whole(client.get("/")).words
        assert words.count("little more to expect") == 2 * (outlook == "little")
        assert words.count("too noisy to tell what more to expect") == 2 * (outlook == "noisy")
        assert ("about 2 h left" in words) is (told["left_s"] > 120.0)
        assert ("0.024% a minute; cancelled" in worth["why"]) is (worth["answer"] == "no" and told["left_s"] > 120.0)

    def test_a_noisy_speed_up_is_told_as_its_interval(self, client, search):
        """Its value may lie at the very end of that: which of them is right nobody can tell."""
        searched(search)
        edges = {"speedup_interval": [2.0, 2.2]}
        found = report(search, **edges, outcome="too_noisy", noise="it was busy")
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=found)
        shown = whole(client.get(f"/jobs/{search.id}"))
        assert "Speed-up ~2.00x to 2.20x too noisy to tell" in shown.words  # in the head
        assert "~2.00x to 2.20x too noisy to tell; the medians make ~2.20x, timed on the whole model" in shown.words
        assert shown.of("span", **{"class": "state noisy"})

    @pytest.mark.slow
    def test_which_task_is_worth_most_is_said_on_both_tabs(self, client, search):
        searched(search)
        for tab in ("overview", "tasks"):
            shown = whole(client.get(f"/jobs/{search.id}", params={"tab": tab}))
            said = "Most is expected of Relu 16 -> 16: 4% of the time of all tasks, by searching for as long again."
            assert said in shown.words
            assert len(shown.of("li", **{"class": "most"})) == (tab == "tasks")
        assert "4%of all tasks" in shown.words  # in the table, as a note below the figure

    def test_parts_stay_in_their_places_as_tasks_become_faster(self, client, search):
        """And so do their colours and numbers."""
        searched(search)
        before = [part["key"] for part in twin(client, search.id)["parts"]]
        search.improve(search.tasks[1], 0.1, 4.0)
        after = twin(client, search.id)["parts"]
        assert [part["key"] for part in after] == before and after[0]["after_ms"] < after[1]["after_ms"]
        assert "its part of the time of all tasks, by default → so far" in whole(client.get(f"/jobs/{search.id}")).words

    @pytest.mark.parametrize(
        ("left_s", "words"),
        [
            (5.4, "5 s"),
            (119.4, "119 s"),
            (120.0, "about 2 min"),
            (599.0, "about 10 min"),
            (1570.0, "about 25 min"),
            (5340.0, "about 90 min"),
            (6361.0, "about 2 h"),
            (12573.0, "about 3 h"),
            (200_000.0, "about 2 days"),
        ],
    )
    def test_what_is_left_is_told_as_roughly_as_it_is_known(self, left_s, words):
        assert about(left_s) == words

    def test_nothing_is_left(self, client, search):
        searched(search)
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=report(search, ended_by="exhausted"))
        assert self.told(client, search)[0] == {"answer": "no", "why": "nothing was left to try"}

    def test_a_job_that_was_cancelled_is_by_trials_alone(self, client, search):
        searched(search)
        search.store.jobs.finish(search.lease, JobState.CANCELLED)
        assert self.told(client, search)[1]["answer"] == "no"


class TestTrials:
    def test_they_lead_to_their_candidates_the_newest_first(self, client, search):
        searched(search)
        said = twin(client, search.id, tab="trials")["trial_page"]
        assert [row["ordinal"] for row in said["rows"]] == [5, 4, 3, 2, 1, 0] and said["next"] is None
        assert said["counts"] == {"ok": 4, "crash": 1, "timeout": 1}
        small, large = search.tasks
        assert {one["key"]: one["trials"] for one in said["tasks"]} == {small.key: 2, large.key: 4}
        source = client.get(f"/jobs/{search.id}?tab=trials").text
        for row in said["rows"]:
            assert row["schedule"] == search.schedule(row["ordinal"]).key
            assert f"/tasks/{row['key']}/schedules/{row['schedule']}?target={search.target.key}" in source

    @pytest.mark.parametrize(
        ("of", "status", "wanted"), [("", ["crash"], [2]), ("large", [], [4, 3, 2, 0]), ("large", ["ok"], [4, 3, 0])]
    )
    def test_they_are_narrowed_by_task_and_status(self, client, search, of, status, wanted):
        searched(search)
        asked = {"tab": "trials", "task": search.tasks[1].key if of else "", "status": status}
        said = twin(client, search.id, **asked)["trial_page"]
        assert [row["ordinal"] for row in said["rows"]] == wanted
        source = client.get(f"/jobs/{search.id}", params=asked).text
        assert ("selected" in source) is bool(of)
        other = twin(client, search.id, tab="trials", task="ab" * 32)["trial_page"]
        assert (other["rows"], other["counts"]) == ([], {})

    def test_they_come_in_pages(self, client, search):
        for n in range(60):
            search.trial(search.tasks[n % 2], FAILED if n % 5 == 0 else took(1.0 + n))
        found, cursor = [], None
        while True:
            said = twin(client, search.id, tab="trials", **({"cursor": cursor} if cursor else {}))["trial_page"]
            found += [row["ordinal"] for row in said["rows"]]
            if (cursor := said["next"]) is None:
                break
        assert found == [*range(59, -1, -1)]
        assert 'rel="next">Older' in client.get(f"/jobs/{search.id}?tab=trials").text

    @pytest.mark.parametrize("cursor", ["x", "fastest 0 1 1"])
    def test_what_is_no_cursor(self, client, kit, search, cursor):
        searched(search)
        asked = {"tab": "trials", "cursor": cursor}
        kit.problem(client.get(f"/v1/pages/jobs/{search.id}", params=asked), "invalid-request", 422)

    def test_other_tabs_do_without(self, client, search):
        searched(search)
        for tab in JobTab:
            said = twin(client, search.id, tab=tab.value)
            assert (said["trial_page"] is None) is (tab is not JobTab.TRIALS)
            assert (said["models"] is None) is (tab is not JobTab.COST_MODEL)


class TestCostModel:
    @pytest.fixture
    def asked(self, monkeypatch):
        """What models were asked about: the numbers of trials by task."""
        found = {}

        def calibrations(store, task, target, lines):
            found[task.key] = len(lines)
            figures = (0.5 + len(lines) / 100, 0.75, 0.9, 1.0)
            return [
                Calibration("base model", (), *figures, has_learned_from_these=False),
                Calibration("snapshot 7", (), 0.9, None, 0.9, 1.0, has_learned_from_these=True),
            ]

        monkeypatch.setattr(cost_model, "calibrations", calibrations)
        return found

    def test_models_are_asked_about_the_trials_of_the_job(self, one, client, search, asked):
        for n in range(30):
            search.trial(search.tasks[n % 3 // 2], took(1.0 + n))
        for n in range(8):
            one.store.record(
                Record(search.tasks[0].key, search.target.key, Schedule("tiled", 1, (("n", 100 + n),)), took(3.0))
            )
        told = wait_for(lambda: self.told(client, search))
        small, large = search.tasks
        assert asked == {small.key: 20, large.key: 10}  # none of those that are of no job
        assert {task["key"]: task["trials"] for task in told["tasks"]} == asked
        assert {task["key"]: task["models"][0]["rank_correlation"] for task in told["tasks"]} == {
            small.key: 0.7,
            large.key: 0.6,
        }
        words = page_words(client, f"/jobs/{search.id}", tab="cost_model")
        assert "0.65 median of 2 tasks, 75.0% of pairs in order; it never saw these trials" in words
        assert "The order of trials that it never saw is better than chance: the base model has" in words
        assert "snapshot 7 has learned from them 0.90 - 90.0% 100.0%" in words

    def told(self, client, search):
        """Once all is there; else None."""
        models = twin(client, search.id, tab="cost_model")["models"]
        return None if any(task["models"] is None for task in models["tasks"]) else models

    def test_which_models_those_are(self, one, client, search):
        assert twin(client, search.id, tab="cost_model")["models"]["began_with"] is None
        before, after = (self.learn(one.store, job_id) for job_id in (None, search.id))
        told = twin(client, search.id, tab="cost_model")["models"]
        assert (told["began_with"], told["taught"]) == (None, [after]) and before < after

    def learn(self, store, job_id):
        new = NewSnapshot(
            "cpu", "1", b"model of %d" % (job_id or 0), trials=100, newest_trial_id=0, metrics={}, job_id=job_id
        )
        return store.snapshots.keep(new).id

    def test_it_began_with_the_newest_that_was_there(self, one, client, kit):
        one.store.add_target(kit.target())
        known = self.learn(one.store, None)
        job_id = client.post("/v1/jobs", json={"model": kit.send(client, 8), "trials": 40}).json()["id"]
        assert one.store.jobs.lease([kit.target().key], "h")
        self.learn(one.store, job_id)
        assert twin(client, job_id, tab="cost_model")["models"]["began_with"] == known

    def test_the_page_says_where_there_is_nothing_to_ask_about(self, client, search):
        assert "No task has enough trials to judge it by yet" in page_words(
            client, f"/jobs/{search.id}", tab="cost_model"
        )


class TestFinished:
    def test_the_model_was_timed(self, client, search):
        searched(search)
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=report(search))
        said = twin(client, search.id)
        assert (said["latency"]["default_ms"], said["latency"]["speedup"], said["latency"]["of"]) == (
            11.0,
            2.2,
            "model",
        )
        saved = 4.1 / 5.0 * 0.045 / 1.045
        assert said["prospect"]["ended_by"] == "trials"
        assert said["prospect"]["again_gain"] == pytest.approx(saved / (1 - saved))
        assert {task["best_ms"] for task in said["tasks"]} == {2.0, 1.05}
        assert {task["peak_share"] for task in said["tasks"]} == {0.25, None}
        parts = {part["name"]: (part["before_ms"], part["after_ms"]) for part in said["parts"] if not part["key"]}
        assert parts == {"besides its tasks": pytest.approx((11.0 - 2.1 - 2 * 4.2, 5.0 - 2.0 - 2 * 1.05))}
        words = page(client, search.id)
        assert "2.20x timed on the whole model" in words and "°" not in words.partition("Speed-up of the model")[0]
        assert "all its trials were done" in words
        assert "By its trials, searching for as long again was expected to make it 3.7% faster" in words
        assert "Pause" not in words and "Cancel" not in words

    def test_what_is_expected_is_part_of_the_run_that_was_timed(self, client, search):
        """Not of the time of its tasks, of which the search told it: no task gives more than it takes."""
        searched(search)
        search.progress(spent_s=90.0, again_gain=1.5, task_gains=[0.6, 0.01])
        result = report(search, default_ms=110.0, tuned_ms=100.0)
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=result)
        said = twin(client, search.id)
        tasks = {task["key"]: task for task in said["tasks"]}
        small, large = (tasks[task.key] for task in search.tasks)
        assert (small["after_share"], large["after_share"]) == pytest.approx((0.02, 0.021))
        assert (small["expected_share"], large["expected_share"]) == pytest.approx((0.02, 0.041 * 0.01))
        saved = 0.041 * 1.5 / 2.5
        assert said["prospect"]["again_gain"] == pytest.approx(saved / (1 - saved))
        assert said["parts_of"] == "model" and "(2% of a run)" in page(client, search.id)

    def test_what_runs_without_a_kernel(self, client, search):
        result = report(search, fallback={"Resize": 2, "<b>": 1}, fallback_share=0.25, whole_model="")
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=result)
        assert "25.0% of a run goes into 2 Resize, 1 &lt;b&gt;, run by ONNX" in page(client, search.id)

    def test_a_share_of_a_noisy_run_is_noisy(self, client, search):
        result = report(search, fallback={"Resize": 2}, fallback_share=0.25)
        result["tasks"][0]["noise"] = "it was busy"
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=result)
        assert "~ 25.0% of a run goes into 2 Resize" in page(client, search.id)

    def test_nothing_was_left_to_try(self, client, search):
        searched(search)
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=report(search, ended_by="exhausted"))
        said, words = twin(client, search.id), page(client, search.id)
        assert "more budget brings nothing" in words and "Most of that" not in words
        assert (said["prospect"]["again_gain"], said["promising"]) == (0.0, [])
        assert {(task["expected_share"], task["reason"]) for task in said["tasks"]} == {(None, "exhausted")}
        assert words.count("nothing is left to try") == 2 and "more trials are expected" not in words

    @pytest.mark.parametrize(
        "result", [{}, {"tasks": "?"}, {"tasks": [1, {"key": None}], "fallback": 3, "ended_by": "?"}]
    )
    def test_reports_that_say_little(self, client, search, result):
        searched(search)
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=result)
        assert twin(client, search.id)["latency"]["speedup"] is None
        page(client, search.id)

    def test_intervals_are_told(self, client, search):
        """One figure a thing: the page, its JSON, and the list of jobs say the same."""
        result = report(search, default_interval_ms=[10.9, 11.1], tuned_interval_ms=[4.9, 5.1])
        result |= {"outcome": "faster", "speedup_interval": [2.15, 2.25]}
        result["tasks"][0] |= {"default_interval_ms": [2.05, 2.15], "best_interval_ms": [1.95, 2.05]}
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=result)
        said, [listed] = twin(client, search.id), client.get("/v1/pages/jobs").json()["jobs"]
        for one in (said["latency"], said["job"], listed):
            assert (one["speedup"], one["speedup_interval"], one["outcome"]) == (2.2, [2.15, 2.25], "faster")
        [small] = [task for task in said["tasks"] if task["key"] == search.tasks[0].key]
        assert (small["best_interval_ms"], small["is_confirmed"]) == ([1.95, 2.05], True)
        assert small["speedup_interval"] == pytest.approx([2.05 / 2.05, 2.15 / 1.95])
        words = page(client, search.id)
        assert "2.20x timed on the whole model: 2.15x to 2.25x" in words and "1.95 ms to 2.05 ms" in words
        assert "1.05x 1.00x to 1.10x" in words

    def test_what_was_taken_back_since_is_marked_wherever_it_is_told(self, one, client, search):
        searched(search)
        small, large = search.tasks
        best, default = search.schedule(4), search.schedule(1)
        result = report(search, default_ms=11.0, failed={"crash": 1}, voided=0)
        result["tasks"][1] |= {"schedule": best.to_json(), "fraction_of_peak": 0.5}
        result["tasks"][0] |= {"default_schedule": default.key}
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=result)
        assert "†" not in page(client, search.id)
        for task, schedule in ((large, best), (small, default), (large, search.schedule(2))):
            one.store.voids.void(task.key, search.target.key, schedule.key, "wrong on odd days")
        said, told = twin(client, search.id), client.get(f"/v1/jobs/{search.id}").json()["result"]
        marks = {task["key"]: (task["default_voided"], task["best_voided"]) for task in said["tasks"]}
        assert marks == {small.key: (True, False), large.key: (False, True)}
        assert [entry.get("best_voided", False) for entry in told["tasks"]] == [False, True]
        assert (told["voided"], told["failed"]) == (said["voided"], {"timeout": 1}) == (3, {"timeout": 1})
        words = page(client, search.id)
        assert "1.05 ms † " in words and "4.00x † " in words and "2.10 ms † " in words and "4.20 ms †" not in words
        assert "50.0% † of peak" in words and "25.0% of peak" in words
        assert "† Taken back since, and used no more" in words
        one.store.voids.lift(large.key, search.target.key, best.key)
        assert not any(task["best_voided"] for task in twin(client, search.id)["tasks"])

    def test_defaults_that_were_kept(self, client, search):
        changes = {"outcome": "defaults_kept", "tuned_ms": 11.0, "rejected_ms": 11.9, "rejected_interval": [0.9, 1.01]}
        searched(search)
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=report(search, **changes))
        said = twin(client, search.id)
        assert (said["latency"]["speedup"], said["job"]["speedup"]) == (1.0, 1.0)
        assert all(task["after_ms"] == task["before_ms"] for task in said["tasks"])
        words = page(client, search.id)
        assert "defaults kept" in words and "succeeded" not in words
        assert "it came to its end: defaults kept" in words and "Speed-up of its tasks" in words
        assert "none: defaults kept what was found: 0.92x (0.90x to 1.01x)" in words
        assert "promised so far made the whole model no faster" in words and "worth it" not in words
        assert said["job"]["state"] == "succeeded"  # for programs
        listed, words = client.get("/v1/pages/jobs").json(), whole(client.get("/")).words
        assert (listed["counts"]["succeeded"], listed["kept"], listed["unsure"]) == (1, 1, 0)
        assert "1 defaults kept" in words and "1 succeeded" not in words

    def test_a_vendor_that_was_taken(self, client, search):
        """Beside kernels that keep the defaults: no gain of ours is told for one that is in use."""
        vendor = {"version": "1.2.3\x1b[2J", "time_ms": 5.0, "own_ms": 10.0, "speedup_interval": [1.9, 2.1]}
        changes = {"outcome": "vendor", "own_outcome": "defaults_kept", "tuned_ms": 11.0, "rejected_ms": 11.9}
        searched(search)
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=report(search, **changes, vendor=vendor))
        said, words = twin(client, search.id), page(client, search.id)
        assert said["latency"]["outcome"] == said["job"]["outcome"] == "vendor"
        assert (
            "1.2.3\\x1b[2J takes 5.00 ms, our kernels 10.0 ms: it is 2.00x as fast (1.90x to 2.10x), so it runs"
            in words
        )
        assert "it came to its end: runs in ONNX Runtime" in words and "our kernels keep its defaults" in words
        assert "was not measured beside it" not in words and "succeeded" not in words
        listed, words = client.get("/v1/pages/jobs").json(), whole(client.get("/")).words
        assert (listed["counts"]["succeeded"], listed["kept"], listed["vendor"]) == (1, 0, 1)
        assert "1 runs in ONNX Runtime" in words and "1 succeeded" not in words

    def test_the_error_of_a_precision(self, client, search):
        searched(search)
        told = report(search, precision="bf16", precision_errors={"a": 0.001, "<b>\n": 0.0125, "c": None})
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=told)
        text = twin(client, search.id)["latency"]["precision_text"]
        assert text == (
            "precision bf16 moves output <b>\\n, others less, by 1.2% of its largest value on made-up inputs; "
            "not compared: NaN or infinite at other places: c"
        )
        assert str(escape(text)) in client.get(f"/jobs/{search.id}").text
        assert "was not measured beside it" in page(client, search.id)  # the job's own precision is as given
        assert client.get(f"/v1/jobs/{search.id}").json()["result"]["precision_errors"]["a"] == 0.001

    def test_what_is_slower_for_certain_is_called_so(self, client, search):
        changes = {"outcome": "defaults_kept", "tuned_ms": 11.0, "rejected_ms": 11.7}
        ended = report(search, **changes, rejected_interval=[0.93, 0.99])
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=ended)
        words = page_words(client, f"/jobs/{search.id}")
        assert "11.7 ms: slower than on its defaults" in words and "chance" not in words

    def test_a_gain_on_a_busy_machine_is_not_counted_as_one(self, client, search):
        changes = {"outcome": "faster", "noise": "it was busy", "speedup_interval": [2.1, 2.3]}
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=report(search, **changes))
        assert "it came to its end: too noisy to tell" in page(client, search.id)
        assert "1 too noisy to tell" in whole(client.get("/")).words

    def test_the_sum_of_the_tasks_is_no_run(self, client, search):
        """Tasks that take longer one by one than a run does, on a busy machine: marked, and said to be that sum."""
        result = report(search, default_ms=3.0, tuned_ms=1.0)
        result["tasks"][1]["noise"] = "it was busy"
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=result)
        said, words = twin(client, search.id), page(client, search.id)
        assert (said["parts_of"], said["parts_noise"]) == ("tasks", "it was busy")
        assert "by default, its tasks one by one ~10.5 ms" in words and "tuned, its tasks one by one ~4.10 ms" in words
        assert "That is another figure than the time of one run" in words and "Besides its tasks" not in words

    def test_each_bar_is_marked_as_its_task_is(self, client, search):
        """One that nothing confirmed, as there was nothing to compare, marks the sum, but no other bar."""
        small, large = search.tasks
        result = report(search, default_ms=3.0, tuned_ms=1.0)
        result["tasks"][0] |= {"confirmed": False, "noise": "it was busy"}
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=result)
        source = client.get(f"/jobs/{search.id}").text
        assert f"<title>Relu {small.shape}: ~2.10 ms°</title>".replace("->", "-&gt;") in source
        assert f"<title>Relu {large.shape}: 8.40 ms</title>".replace("->", "-&gt;") in source
        assert "one by one ~10.5 ms°" in page(client, search.id)

    def test_bars_are_marked_as_the_run_is(self, client, search):
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=report(search, noise="it was busy"))
        assert twin(client, search.id)["parts_of"] == "model"
        words = page(client, search.id)
        assert "by default ~11.0 ms" in words and "tuned ~5.00 ms" in words and "Besides its tasks" in words

    def test_what_was_confirmed_is_told_as_in_the_report(self, client, search):
        task = search.tasks[0]
        data = {"task_key": task.key, "op": task.op, "default_ms": 2.0, "best_ms": 1.0}
        search.tell(EventKind.CONFIRMED, **data)
        assert "side by side: 2.00 ms by default, 1.00 ms on its best" in page(client, search.id)  # of before
        edges = {"default_interval_ms": [1.9, 2.1], "best_interval_ms": [0.9, 1.1]}
        search.tell(EventKind.CONFIRMED, **data, **edges, noise="it was busy")
        words = page(client, search.id)
        assert "side by side: ~ 2.00 ms (1.90 ms to 2.10 ms) by default, ~ 1.00 ms (900 µs to 1.10 ms) on its" in words
        [line] = [line for line in twin(client, search.id)["tasks"] if line["key"] == task.key]
        assert (line["noise"], line["best_interval_ms"]) == ("it was busy", [0.9, 1.1])

    def test_a_regression_is_told_with_what_changed(self, client, search):
        task = search.tasks[0]
        times = {"before_ms": 1.0, "before_interval_ms": [0.99, 1.01], "now_ms": 1.2, "now_interval_ms": [1.18, 1.22]}
        versions = {"before": {"llvm": "21"}, "now": {"llvm": "22<b>\u202e"}}
        search.tell(EventKind.REGRESSED, task_key=task.key, op=task.op, **times, **versions)
        words = page(client, search.id)
        assert "is slower than it was confirmed before: 1.20 ms (1.18 ms to 1.22 ms), was 1.00 ms (990 µs" in words
        assert ": +20%; llvm 21, now 22&lt;b&gt;\\u202e" in words
        for tab in JobTab:
            shown = whole(client.get(f"/jobs/{search.id}", params={"tab": tab.value}))
            assert "1 task became slower than it was confirmed before: why" in shown.words
            assert f"/compare?job={search.id}" in shown.links()
        search.tell(EventKind.REGRESSED, task_key=5, now="x", before=[1])  # of a later version
        assert "2 tasks became slower than they were confirmed before" in page(client, search.id)
        assert "is slower than it was confirmed before: -, was -" in page(client, search.id)

    def test_nothing_to_tune(self, one, client, kit):
        one.store.add_target(kit.target())
        one.store.jobs.submit(JobSpec("ab" * 32, kit.target().key, ()), "net.onnx", SearchBudget(10))
        lease = one.store.jobs.lease([kit.target().key], "h")
        result = {"default_ms": 3.0, "tuned_ms": 3.0, "trials": 0, "tasks": [], "outcome": "defaults_kept"}
        one.store.jobs.finish(lease, JobState.SUCCEEDED, result=result)
        words = page(client, lease.job_id)
        assert "There was nothing to tune: no node of the model has a kernel" in words and "was tried is" not in words
        assert "There were no trials" in words and "The model has no tasks" in words

    def test_a_busy_machine_is_told(self, client, search):
        noise = "other processes took 40% of the processors that it ran on"
        result = report(search, noise=noise)
        result["tasks"][0]["noise"] = noise
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=result)
        words = page(client, search.id)
        assert f"to rely on the figures marked ~: {noise}" in words
        assert "~ 2.20x timed" in words and "~ 2.00 ms" in words and "~ 1.05 ms" not in words
        assert twin(client, search.id)["job"]["noise"] == noise

    @pytest.mark.parametrize(
        ("sketch", "share", "why"),
        [
            ("winograd4", 1.4, FEWER_MULTIPLICATIONS),
            ("winograd4", 1.016, FEWER_MULTIPLICATIONS),
            ("contraction", 1.4, DOUBT),
            ("contraction", 1.016, OTHER_MOMENT),
            (None, 1.016, OTHER_MOMENT),
        ],
    )
    def test_more_than_the_peak_is_explained(self, client, search, sketch, why, share):
        """In the words of the command line, for its kind of schedule."""
        assert "100% of peak" not in page(client, search.id)
        result = report(search)
        result["tasks"][0] |= {"fraction_of_peak": share, "schedule": {"sketch": sketch}}
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=result)
        assert page(client, search.id).count(f"* Above 100% of peak: {escape(why)}.") == 1
        assert [task["why_above_peak"] for task in twin(client, search.id)["tasks"]].count(why) == 1

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({}, "25.0% of peak"),
            ({"noise": "it was busy"}, "~ 25.0% of peak"),
            ({"confirmed": False}, "25.0% ° of peak"),
        ],
    )
    def test_a_share_of_the_peak_is_marked_as_its_time_is(self, client, search, changes, said):
        result = report(search)
        result["tasks"][0] |= changes
        search.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=result)
        found = re.search(r"(~ )?25.0% (° )?of peak", page(client, search.id))
        assert found and found[0] == said

    def test_a_job_that_failed_says_why(self, client, search):
        search.store.jobs.finish(search.lease, JobState.FAILED, error="OSError: no space")
        assert page_words(client, f"/jobs/{search.id}", tab="events").count("OSError: no space") == 2  # and in the log


class TestOutOfTime:
    @pytest.fixture
    def paused(self, one, search):
        searched(search)
        found = report(search, ended_by="minutes", outcome="too_noisy", noise="3 others at work")
        one.store.jobs.pause_leased(search.lease, result=found)

    def test_the_page_says_why_it_ended_and_what_came_of_it(self, client, search, paused):
        words = page(client, search.id)
        assert "paused, minutes over: too noisy to tell" in words
        assert re.search(r"More expected \? [^?]+? ~ \S+% faster by noisy trials", words)
        assert "its trials differ by more than they promise: go on with it when the machine is quiet" in words
        assert "The same command goes on from what it found" in words
        assert not re.search(r"of the rest of its budget|about \S+ left|so far", words)

    def test_the_list_says_so_too(self, client, search, paused):
        [line] = client.get("/v1/pages/jobs").json()["jobs"]
        assert (line["left_s"], line["remaining_gain"], line["outlook"]) == (None, None, "unknown")
        assert "paused, minutes over: too noisy to tell" in whole(client.get("/")).words

    def test_its_progress_is_that_of_a_job_that_is_over(self, client, search, paused):
        progress = client.get(f"/v1/jobs/{search.id}").json()["progress"]
        assert [progress[name] for name in ("stage", "left_s", "remaining_gain")] == ["done", None, None]
        assert progress["again_gain"] == 0.045  # of more budget

    def test_a_job_that_somebody_paused_has_no_outcome(self, one, client, search):
        searched(search)
        one.store.jobs.pause(search.id)
        one.store.jobs.give_back(search.lease)
        words = page(client, search.id)
        assert "paused" in words and "minutes over" not in words
        assert "about 2 min left" in words


class TestLists:
    @pytest.fixture
    def many(self, one, client, kit):
        """A search of sixty tasks, each of which takes 1 ms more than the one before."""
        extents = range(1, 61)
        model = kit.send(client, *extents)
        job_id = client.post("/v1/jobs", json={"model": model, "trials": 400}).json()["id"]
        lease = one.store.jobs.lease([kit.target().key], "h")
        found = Search(one.store, kit.target(), [kit.task(extent) for extent in extents], job_id, lease)
        for place, task in enumerate(found.tasks, 1):
            found.default(task, float(place))
        return found

    def test_tasks_come_in_pages(self, client, many):
        first = twin(client, many.id)
        second = twin(client, many.id, start=first["next_start"])
        third = twin(client, many.id, start=second["next_start"])
        keys = [task["key"] for said in (first, second, third) for task in said["tasks"]]
        assert keys == [task.key for task in reversed(many.tasks)]
        assert (len(first["tasks"]), third["next_start"], first["task_count"]) == (25, None, 60)
        assert [curve["key"] for curve in second["curves"]] == [task["key"] for task in second["tasks"]]
        assert "26 to 50 of 60" in page(client, many.id, start=25)
        assert "no tasks behind these" in page(client, many.id, start=1000)
        assert [part["name"] for part in first["parts"]][-1] == "54 more tasks"

    def test_tasks_are_sorted(self, client, many):
        for _ in range(3):
            many.trial(many.tasks[4], FAILED)
        many.improve(many.tasks[9], 1.0, 10.0)
        gains = [0.0] * 60
        gains[7] = 0.02
        many.progress(again_gain=0.02, task_gains=gains, remaining_gain=0.01, left_s=60.0)
        for sort, place in (("trials", 4), ("failed", 4), ("saved", 9), ("expected", 7), ("time", 59)):
            assert twin(client, many.id, sort=sort)["tasks"][0]["key"] == many.tasks[place].key, sort
        text = client.get(f"/jobs/{many.id}", params={"tab": "tasks", "sort": "failed", "x": "seconds"}).text
        assert (
            'aria-sort="descending"><a href="/jobs/1?tab=tasks&amp;x=seconds&amp;sort=failed#task-table">Failed' in text
        )
        assert f'href="/jobs/{many.id}?tab=tasks&amp;x=seconds&amp;sort=failed&amp;start=25#task-table"' in text

    def test_the_log_comes_in_pages_and_without_what_is_told_all_the_time(self, client, many):
        for place, task in enumerate(many.tasks, 1):
            many.improve(task, 0.5 * place, place)
        many.progress()
        first = twin(client, many.id)
        second = twin(client, many.id, before=first["next_before"])
        numbers = [line["number"] for said in (first, second) for line in said["log"]]
        assert numbers == [*range(122, 62, -1), 2, 1] and first["newest"] == 123
        assert second["next_before"] is None and len(first["log"]) == 40
        assert "Older" in page(client, many.id) and "Newest" in page(client, many.id, before=20)
        assert {line["kind"] for line in first["log"]} == {"improved"}
        assert first["kinds"] == {"queued": 1, "started": 1, "improved": 60}
        told = twin(client, many.id, kind=["queued", "started"])
        assert ([line["kind"] for line in told["log"]], told["next_before"]) == (["started", "queued"], None)
        assert twin(client, many.id, kind="progress")["log"] == []

    @pytest.mark.parametrize("tab", JobTab)
    def test_a_page_stays_small(self, client, many, tab):
        for place, task in enumerate(many.tasks, 1):
            many.improve(task, 0.5 * place, place)
        source = client.get(f"/jobs/{many.id}", params={"tab": tab.value}).text
        assert len(source) < 150_000
        assert (source.count('class="chart multiple"') == 25) is (tab is JobTab.TASKS)

    @pytest.mark.parametrize(
        "asked",
        [
            {"sort": "name"},
            {"x": "y"},
            {"start": -1},
            {"before": 0},
            {"task": "x"},
            {"status": "good"},
            {"kind": "none"},
            {"tab": "none"},
        ],
    )
    def test_what_can_not_be_asked(self, client, kit, many, asked):
        kit.problem(client.get(f"/v1/pages/jobs/{many.id}", params=asked), "invalid-request", 422)


def test_a_job_that_is_none(client, kit):
    kit.problem(client.get("/v1/pages/jobs/99"), "no-such-job", 404)
    assert client.get("/jobs/99", headers={"Accept": "text/html"}).status_code == 404


@pytest.mark.parametrize("name", HOSTILE)
def test_names_come_as_text(one, client, kit, name):
    model = kit.send(client, 8, label=name)
    job_id = client.post("/v1/jobs", json={"model": model}).json()["id"]
    lease = one.store.jobs.lease([kit.target().key], holder=name)
    one.store.fleet.enlist("t2", name, 1, name, name[:16])
    one.store.fleet.report("t2", [], job_id)
    search = Search(one.store, kit.target(), [kit.task(8)], job_id, lease)
    search.tell(EventKind.STAGE, stage=name)
    data = {"task_key": name, "op": name, "default_ms": 2.0, "best_ms": 1.0, "trial": 0}
    for kind in (EventKind.IMPROVED, EventKind.CONFIRMED, EventKind.DEFAULT, EventKind.CHANGED):
        search.tell(kind, **data)
    search.progress(stage=name)
    result = report(
        SimpleNamespace(tasks=[kit.task(8), kit.task(16)]), whole_model=name, fallback={name: 1}, ended_by=name
    )
    one.store.jobs.finish(lease, JobState.SUCCEEDED, result=result | {"default_ms": None})
    text = "".join(whole(client.get(f"/jobs/{job_id}", params={"tab": tab.value})).source for tab in JobTab)
    assert text.count(str(escape(name))) >= 8 + len(JobTab)
    assert name not in text or name == escape(name)


def test_texts_of_strangers_are_cut(one, client, kit):
    name = "<x>" * 5000
    task = replace(kit.task(8), op=name)
    one.store.add_target(kit.target())
    one.store.add_tasks([task])
    spec = JobSpec("", kit.target().key, (SpecTask(task.key, 1),), {"strategy": name})
    job = one.store.jobs.submit(spec, name, SearchBudget(10)).job
    one.store.fleet.enlist("t2", name, 1, name, "local")
    one.store.fleet.report("t2", [TunerDevice(name, kit.target().key, datetime.now(UTC), name)], job.id)
    search = Search(one.store, kit.target(), [task], job.id, one.store.jobs.lease([kit.target().key], name))
    search.default(task, 2.0)
    search.improve(task, 1.0, 2.0)
    search.trial(task, FAILED)
    search.progress(stage=name, task_gains=[0.5], again_gain=0.5)
    for _ in range(2):
        assert len(client.get("/").content) < 20_000
        assert len(client.get(f"/jobs/{job.id}").content) < 80_000
        if job.state is not JobState.FAILED:
            one.store.jobs.finish(search.lease, JobState.FAILED, error=name)
            job = one.store.jobs.get(job.id)
    said = twin(client, job.id)
    assert said["job"]["label"] == said["tasks"][0]["op"] == name[:297] + "..."


@pytest.mark.parametrize("alone_ms", [1.0, 4.0])
def test_a_task_that_stands_for_two_others(one, client, kit, alone_ms):
    """Of a run it takes something only where the model would run it: where it is faster than both."""
    tasks = [kit.task(extent) for extent in (8, 16, 24)]
    one.store.add_tasks(tasks)
    chains = [{"calls": [0, 1], "runs": [[0, 2, 2]], "occurrences": 1}]
    spec = JobSpec("", kit.target().key, tuple(SpecTask(task.key, 1) for task in tasks), {"chains": chains})
    job = one.store.jobs.submit(spec, "chain", SearchBudget(10)).job
    search = Search(one.store, kit.target(), tasks, job.id, one.store.jobs.lease([kit.target().key], "h"))
    for task, time_ms in zip(tasks, (alone_ms, alone_ms, 3.0), strict=True):
        search.default(task, time_ms)
    search.progress(task_gains=[0.0, 0.0, 0.0], again_gain=0.0)
    said = twin(client, job.id)
    by_key = {task["key"]: task for task in said["tasks"]}
    first, second, both = (by_key[task.key] for task in tasks)
    is_faster = alone_ms == 4.0
    assert [one["uses"] for one in (first, second, both)] == ([0, 0, 1] if is_faster else [1, 1, 0])
    assert [one["before_ms"] for one in (first, second, both)] == [alone_ms, alone_ms, 0.0]
    assert sum(one["after_ms"] for one in (first, second, both)) == (3.0 if is_faster else 2.0)
    assert both["reason"] == ("little" if is_faster else "unused")
    assert (both["key"] in {part["key"] for part in said["parts"]}) == is_faster


def test_what_a_real_search_tells():
    """All that the page says of a finished job is what its report has, and what its process told on the way."""
    network = open_model(small_model().SerializeToString())
    with open_store("sqlite://") as store:
        found = tune(network, store, FakePool(by_key), trials=40)
        view = job_page(store, Histories(), found.job_id, JobPageAsked())
    times = {task.key: (task.default_s, task.best_s) for task in found.tasks}
    for task in view.tasks:
        assert (in_s(task.default_ms), in_s(task.best_ms)) == pytest.approx(times[task.key])
    assert sum(task.trials for task in view.tasks) == view.trials == found.trials
    for curve in view.curves:
        default_s, best_s = times[curve.key]
        assert default_s and best_s
        assert curve.steps[0].speedup == 1.0
        assert curve.steps[-1].speedup == pytest.approx(default_s / best_s)
    assert view.confirmed == len(found.tasks)
    assert len(view.curves) == len(times) and view.latency.speedup and view.latency.speedup > 1
    assert view.prospect.again_gain is not None and view.prospect.ended_by == found.ended_by
    assert Reason.UNKNOWN not in {task.reason for task in view.tasks}


def test_the_tasks_of_a_job_come_to_one_figure():
    """Also where side by side they take other times than in trials, and for the next job of the model, as it begins."""

    def compared(candidate):
        time_s, part = (2e-3, 0.05) if is_default(candidate) else (1.6e-3, 0.01)  # the default's lie apart
        samples_s = tuple(time_s * (1 + part * n) for n in range(-2, 3))
        edges_s = samples_s[0], samples_s[-1]
        return Measurement(Status.OK, samples_s, time_s, *edges_s, provenance=machine())

    network = open_model(small_model().SerializeToString())
    views = []

    def nothing_found(candidate):
        views.append(job_page(store, Histories(), keeper.lease.job_id, JobPageAsked()))
        return FAILED

    with open_store("sqlite://") as store:
        first = tune(network, store, FakePool(by_key, compared), trials=12)
        views.append(job_page(store, Histories(), first.job_id, JobPageAsked()))
        with LeaseKeeper(store.jobs, leased(network, store, seed=1), LEASE_S) as keeper:
            keeper.tell()
            work(network, store, FakePool(nothing_found, compared), keeper)
    for one in (views[0], views[-1]):
        assert one.latency.of is one.parts_of is GainBasis.TASKS
        assert one.latency.speedup == one.model.steps[-1].speedup == pytest.approx(1.25)
        assert total_ms([part.before_ms for part in one.parts]) == pytest.approx(one.latency.default_ms)
        assert not any(part.is_tried for part in one.parts) and not one.model.steps[-1].is_tried
        assert "20% apart" in one.latency.noise and one.model.steps[-1].is_noisy and one.model.noise
        for task in one.tasks:
            assert task.default_interval_ms == pytest.approx((1.8, 2.2))
            assert task.best_interval_ms == pytest.approx((1.568, 1.632))
            assert task.speedup_interval and "20% apart" in task.noise and task.is_confirmed


def test_marks_of_noise_are_those_of_the_trials():
    """An improvement is marked in the events as its trial is on its page."""

    def unsteady(candidate):
        found = by_key(candidate)
        return found if is_default(candidate) else replace(found, high_s=1.5 * (found.median_s or 0.0))

    network = open_model(small_model().SerializeToString())
    with open_store("sqlite://") as store:
        found = tune(network, store, FakePool(unsteady), trials=12)
        view = job_page(store, Histories(), found.job_id, JobPageAsked())
    improved = [line for line in view.log if line.kind is EventKind.IMPROVED]
    assert improved
    for line in improved:
        assert line.best_ms and line.best_interval_ms == pytest.approx((line.best_ms, 1.5 * line.best_ms))
        assert "50%" in line.noise and not line.default_noise
    assert "50%" in view.model.noise and all("50%" in curve.noise for curve in view.curves)


def test_an_improvement_on_a_noisy_default_is_noisy(client, search):
    large = search.tasks[1]
    about = {"task_key": large.key, "op": large.op, "default_ms": 4.0, "best_ms": 1.0, "trial": 1}
    search.tell(EventKind.IMPROVED, **about, noise="", default_noise="it was busy")
    assert re.search(r"takes 1.00 ms ° , ~ 4.00x ° as fast", page(client, search.id))
    search.tell(EventKind.IMPROVED, **about, noise="", default_noise="", apart_noise="others were busy")
    assert re.search(r"takes 1.00 ms ° , ~ 4.00x ° as fast", page(client, search.id))
    search.tell(EventKind.IMPROVED, **about, noise="it was busy", default_noise="")
    assert re.search(r"takes ~ 1.00 ms ° , ~ 4.00x ° as fast", page(client, search.id))


class TestHistory:
    """What is kept of a job's events."""

    @pytest.fixture
    def store(self, kit):
        with open_store("sqlite://") as opened:
            opened.add_target(kit.target())
            opened.add_tasks([kit.task(8)])
            yield opened

    @pytest.fixture
    def search(self, store, kit):
        spec = JobSpec("", kit.target().key, (SpecTask(kit.task(8).key, 1),))
        job = store.jobs.submit(spec, "", SearchBudget(1000)).job
        return Search(store, kit.target(), [kit.task(8)], job.id, store.jobs.lease([kit.target().key], "h"))

    def read(self, histories, store, search):
        return histories.of(store.jobs.get(search.id), store.jobs, store.trials)

    def test_it_grows_with_the_job(self, store, search):
        histories = Histories()
        for n in range(3):
            search.default(search.tasks[0], 1.0 + n)
            search.progress(again_gain=n / 10, speedup=1.0)
            found = self.read(histories, store, search)
            assert [event.kind.value for event in found.events] == ["queued", "started", *["default"] * (n + 1)]
            assert [event.kind.value for event in found.spine] == ["queued", "started", *["progress"] * (n + 1)]
            assert found.of_tasks == {search.tasks[0].key: found.events[2:]}
            assert found.times == {search.tasks[0].key: Times(1.0 + n, 1.0)}
            assert (found.newest, found.expected["again_gain"]) == (4 + 2 * n, n / 10)
            assert found.counts == {search.tasks[0].key: {Status.OK: n + 1}}
        assert found == self.read(Histories(), store, search)

    def test_of_the_progress_a_sample_is_kept(self, store, search, monkeypatch):
        monkeypatch.setattr(history, "MOST_PROGRESS", 8)
        monkeypatch.setattr(history, "READ_AT_ONCE", 5)
        histories = Histories()
        for n in range(200):
            search.progress(task_gains=[0.1] * 9, again_gain=0.1)
            if n % 7 == 0:
                found = self.read(histories, store, search)
        search.tell(EventKind.STAGE, stage="learning")
        found = self.read(histories, store, search)
        kept = [event for event in found.spine if event.kind is EventKind.PROGRESS]
        assert 8 <= len(kept) <= 16 and "task_gains" not in kept[0].data
        gaps = {later.number - event.number for event, later in pairwise(kept)}
        assert len(gaps) == 1 and found.newest - kept[-1].number <= max(gaps)
        assert found == self.read(Histories(), store, search)
        assert [event.number for event in found.spine] == sorted(event.number for event in found.spine)

    def test_improvements_are_thinned(self, store, search, monkeypatch):
        monkeypatch.setattr(history, "MOST_EVENTS", 20)
        histories = Histories()
        for n in range(60):
            search.improve(search.tasks[0], 100.0 - n, 100.0)
            found = self.read(histories, store, search)
        trials = [event.data["trial"] for event in found.events if event.kind is EventKind.IMPROVED]
        assert len(found.events) <= 20 and trials[-1] == 59
        key = search.tasks[0].key
        assert found.of_tasks[key] == found.events[2:] and found.times[key] == Times(100.0, 41.0, 60)
        assert [event.kind.value for event in found.events[:2]] == ["queued", "started"]

    def test_what_was_not_looked_at_for_long_is_let_go_of(self, store, search, kit, monkeypatch):
        monkeypatch.setattr(history, "MOST_IN_ALL", 3)
        store.add_tasks([kit.task(16)])
        spec = JobSpec("", kit.target().key, (SpecTask(kit.task(16).key, 1),))
        other = store.jobs.submit(spec, "", SearchBudget(1)).job
        histories = Histories()
        for n in range(4):
            search.progress()
            first = self.read(histories, store, search)
            assert histories.of(other, store.jobs, store.trials).newest == 1
            assert first.newest == n + 3

    def test_long_counts_are_made_seldom(self, store, search, monkeypatch):
        now = [0.0]
        counted, counts = [], store.trials.counts

        def count(job_id):
            counted.append(now[0])
            now[0] += 1.0  # it takes a second
            return counts(job_id)

        monkeypatch.setattr(store.trials, "counts", count)
        histories = Histories(clock=lambda: now[0])
        for _ in range(30):
            search.default(search.tasks[0], 1.0)
            found = histories.of(store.jobs.get(search.id), store.jobs, store.trials)
            now[0] += 1.0
        assert counted == [0.0, 21.0]
        store.jobs.finish(search.lease, JobState.SUCCEEDED, result={})
        for _ in range(3):
            found = histories.of(store.jobs.get(search.id), store.jobs, store.trials)
        assert len(counted) == 3 and found.counts == {search.tasks[0].key: {Status.OK: 30}}


@pytest.mark.parametrize("count", [1, MOST_STEPS, MOST_STEPS + 1, 2 * MOST_STEPS, 5 * MOST_STEPS + 3])
def test_a_long_curve_ends_where_it_came_to(count):
    found = [Improvement(n, float(n), 1.0 / n) for n in range(1, count + 1)]
    steps = _steps(Times(default_ms=1000.0), found)
    assert len(steps) <= MOST_STEPS + 1
    assert [steps[0].trial, steps[-1].trial] == [0, count]
    assert steps[-1].speedup == pytest.approx(count)
