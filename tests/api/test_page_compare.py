"""The page that compares jobs: a planted regression is found and no other, and what can't be told is told as that."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markupsafe import escape

from tunewright.api.dashboard.compare.page import compare_page
from tunewright.api.dashboard.compare.view import CompareAsked, CompareTab, CompareWith
from tunewright.api.dashboard.job.history import Histories
from tunewright.db.access import KeyScope
from tunewright.db.best import TaskComparisons
from tunewright.db.store import Store, open_store
from tunewright.search_space.measurement import Record
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.search.regression import Regression

from .compared import Confirmed, finished, slower
from .conftest import TARGET, make_target, make_task
from .examples import others, product
from .page import PAGE_BYTES, whole

QUICK = Confirmed(0.99, 1.01)


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/tuning.db") as opened:
        yield opened


def compared(store, *jobs, **asked):
    return compare_page(store, Histories(), CompareAsked(job=list(jobs), **asked))


def findings(view, side=1):
    """What was found of each task of a job, by key."""
    return {row.key: row.cells[side] and row.cells[side].finding for row in view.tasks}


def tasks_of(count):
    return [product(8 * (n + 1)) for n in range(count)]


def confirmed_alike(tasks):
    """Times that differ from task to task."""
    return {task: Confirmed(0.99 + 0.1 * n, 1.01 + 0.1 * n) for n, task in enumerate(tasks)}


def anew(times, factor=1.001):
    """The same times as they are confirmed once more: a little off."""
    return {task: slower(confirmed, factor) for task, confirmed in times.items()}


class TestPlanted:
    def test_a_regression_is_found_and_no_other(self, store):
        tasks = tasks_of(15)
        before = confirmed_alike(tasks)
        planted = slower(before[tasks[6]], 1.2, provenance=(("llvm", "22"), ("tunewright", "1.0")))
        jobs = finished(store, before), finished(store, anew(before) | {tasks[6]: planted}, run=(5.2, 5.3))
        view = compared(store, *jobs)
        assert [one.key for one in view.flagged] == [tasks[6].key] == [view.tasks[0].key]
        assert [key for key, found in findings(view).items() if found != "equal"] == [tasks[6].key]
        now = view.flagged[0].now
        assert (now.finding, now.cause, now.factor) == ("slower", "versions", pytest.approx(1.2))
        assert now.cause_brief == now.cause_text == "the same schedule, built by llvm 22 instead of 21"
        assert now.run_share == pytest.approx(0.2 * 1.6 / sum(1 + 0.1 * n for n in range(15)), rel=0.01)
        assert 0.9 < now.part < 1.0  # all others are a little slower too
        run, tasks_text, *rest = view.jobs[1].verdict
        assert run == (
            "A run of the whole model is slower: 5.25 ms (5.20 ms to 5.30 ms), was 5.00 ms (4.95 ms to 5.05 ms): +5.0%."
        )
        assert tasks_text.startswith(
            "1 of 15 tasks is slower: MatMul 56x64, 64x64 -> 56x64 +20.0% (the same schedule, "
        )
        assert tasks_text.endswith("built by llvm 22 instead of 21).")
        assert (view.jobs[1].run.finding, view.jobs[1].counts, rest) == ("slower", {"slower": 1, "equal": 14}, [])

    def test_a_default_that_became_slower_too_leaves_the_machine(self, store: Store) -> None:
        before = confirmed_alike(tasks_of(2))
        drifted: dict[str, Any] = {"default_ms": 11.0, "default_interval_ms": [10.9, 11.1]}
        jobs = finished(store, before), finished(store, anew(before), run=(5.4, 5.6), **drifted)
        run = compared(store, *jobs).jobs[1].verdict[0]
        assert run.endswith(
            ": +10.0%. Its default is slower too, +10.0%: it is the machine or versions, not the schedules."
        )
        back = compared(store, *jobs, baseline=jobs[1]).jobs[1].verdict[0]
        assert back.endswith(
            ": -9.1%. Its default is faster too, -9.1%: it is the machine or versions, not the schedules."
        )

    def test_another_schedule_is_told_by_its_knobs(self, store):
        [task] = tasks_of(1)
        first, second = others(task, TARGET, 2)
        jobs = [
            finished(store, {task: replace(QUICK, schedule=first)}),
            finished(store, {task: slower(QUICK, 1.5, schedule=second)}),
        ]
        now = compared(store, *jobs).flagged[0].now
        differing = {name: value for name, value in second.values if dict(first.values)[name] != value}
        assert (now.cause, now.difference.knob_count) == ("schedule", len(differing))
        assert {knob.name: knob.now for knob in now.difference.knobs} == differing

    def test_a_sketch_of_another_version_is_told(self, store):
        [task] = tasks_of(1)
        first = others(task, TARGET, 1)[0]
        second = Schedule(first.sketch, first.version + 1, first.values)
        jobs = [finished(store, {task: slower(QUICK, n, schedule=s)}) for n, s in ((1, first), (1.5, second))]
        now = compared(store, *jobs).flagged[0].now
        assert (now.cause, now.difference.sketch_now) == ("sketch", f"{first.sketch}, version {first.version + 1}")

    def test_the_machine_is_told_where_nothing_else_differs(self, store):
        """With its default, which takes longer too."""
        [task] = tasks_of(1)
        jobs = [
            finished(store, {task: replace(QUICK, provenance=(("llvm", "21"), ("system", "Linux 5")))}),
            finished(
                store, {task: slower(QUICK, 1.5, provenance=(("llvm", "21"), ("system", "Linux 6")), default_low=3.0)}
            ),
        ]
        now = compared(store, *jobs).flagged[0].now
        assert now.cause == "machine"
        assert now.cause_text.endswith(
            "that leaves the machine; its default changed too: +50%; system Linux 5, now Linux 6"
        )

    def test_of_versions_that_nobody_noted_nothing_is_said(self, store):
        [task] = tasks_of(1)
        jobs = [finished(store, {task: slower(QUICK, n, provenance=())}) for n in (1, 1.5)]
        assert compared(store, *jobs).flagged[0].now.cause == "unknown"

    def test_what_became_faster_is_found_too(self, store):
        tasks = tasks_of(3)
        before = confirmed_alike(tasks)
        jobs = finished(store, before), finished(store, anew(before) | {tasks[2]: slower(before[tasks[2]], 0.5)})
        view = compared(store, *jobs)
        assert [(one.key, one.now.finding) for one in view.flagged] == [(tasks[2].key, "faster")]
        assert "Of 3 tasks that can be compared none is slower for certain." in view.jobs[1].verdict
        assert view.jobs[1].verdict[2].startswith("1 of 3 tasks is faster: MatMul")


EDGES = st.tuples(st.floats(0.5, 2.0), st.floats(0.0005, 0.01)).map(
    lambda one: (one[0] * (1 - one[1]), one[0] * (1 + one[1]))
)


@st.composite
def confirmations(draw):
    median, half = draw(st.floats(0.5, 2.0)), draw(st.floats(0.0005, 0.01))
    is_odd = st.sampled_from([False, False, False, True])
    noise = "others took the processor" if draw(is_odd) else ""
    return Confirmed(
        (1 - half) * median, (1 + half) * median, noise=noise, warm=draw(is_odd), is_confirmed=not draw(is_odd)
    )


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(confirmations(), confirmations()), min_size=1, max_size=6))
def test_flagged_are_those_with_disjoint_intervals_that_may_be_compared(tmp_path_factory, pairs):
    """As the rule of events has it, whatever the times are."""
    tasks = tasks_of(len(pairs))
    with open_store(f"sqlite:///{tmp_path_factory.mktemp('pairs')}/t.db") as store:
        jobs = [finished(store, {task: pair[n] for task, pair in zip(tasks, pairs, strict=True)}) for n in (0, 1)]
        view = compared(store, *jobs)
    found = findings(view)
    for task, (before, now) in zip(tasks, pairs, strict=True):
        may = before.is_confirmed and now.is_confirmed and not (before.noise or now.noise) and before.warm == now.warm
        is_slower, is_faster = may and now.low > before.high, may and now.high < before.low
        assert (found[task.key] == "slower", found[task.key] == "faster") == (is_slower, is_faster)
        record = Record(task.key, TARGET.key, Schedule("s", 1, ()), before.measurement)
        told = Regression.between(TaskComparisons(record, record), now.measurement)
        if before.is_confirmed and now.is_confirmed:
            assert (told is not None) is is_slower
    assert {one.key for one in view.flagged} == {key for key, one in found.items() if one in ("slower", "faster")}


class TestNothingIsClaimed:
    def test_identical_jobs_show_no_change(self, store):
        times = confirmed_alike(tasks_of(4))
        view = compared(store, finished(store, times), finished(store, anew(times, 1.0), seed=1))
        assert set(findings(view).values()) == {"repeated"} and view.flagged == []
        assert (view.jobs[1].run.finding, view.jobs[1].tasks_factor) == ("equal", 1.0)
        assert view.jobs[1].verdict[0].startswith("A run of the whole model is neither slower nor faster for certain:")
        assert not [row for row in view.facts if row.differs]

    def test_tasks_that_one_side_lacks(self, store):
        tasks = tasks_of(3)
        times = confirmed_alike(tasks)
        first = {task: times[task] for task in tasks[:2]}
        second = {task: slower(times[task], 1.001) for task in tasks[1:]}
        view = compared(store, finished(store, first), finished(store, second))
        rows = {row.key: row.cells for row in view.tasks}
        assert rows[tasks[0].key][1] is None and rows[tasks[2].key][0] is None
        assert findings(view) == {tasks[0].key: None, tasks[1].key: "equal", tasks[2].key: "missing"}
        assert "Tasks that one side lacks: 1 only here, 1 only in the baseline." in view.jobs[1].verdict
        assert (view.flagged, view.jobs[1].tasks_factor) == ([], None)

    @pytest.mark.parametrize(
        ("before", "now", "why"),
        [
            (QUICK, slower(QUICK, 2, noise="others took it"), "too noisy: others took it"),
            (replace(QUICK, noise="it was busy"), slower(QUICK, 2), "too noisy: it was busy"),
            (QUICK, slower(QUICK, 2, warm=True), "one was timed with warm caches, the other with cold ones"),
            (QUICK, slower(QUICK, 2, is_confirmed=False), "not confirmed: its time is of a trial"),
            (QUICK, None, "it has no time"),
        ],
    )
    def test_what_may_not_be_compared_says_why(self, store, before, now, why):
        [task] = tasks_of(1)
        view = compared(store, finished(store, {task: before}), finished(store, {task: now}))
        [row] = view.tasks
        assert (row.cells[1].finding, row.cells[1].why, view.flagged) == ("unsure", why, [])
        assert f"1 task can't be compared: {why}." in view.jobs[1].verdict

    def test_what_was_taken_back_is_not_compared(self, store):
        [task] = tasks_of(1)
        first, second = others(task, TARGET, 2)
        jobs = [
            finished(store, {task: slower(QUICK, n, schedule=schedule)}) for n, schedule in ((1, first), (2, second))
        ]
        store.voids.void(task.key, TARGET.key, second.key, "its machine was faulty")
        view = compared(store, *jobs)
        cell = view.tasks[0].cells[1]
        assert (cell.finding, cell.why, cell.best_voided) == ("unsure", "it failed, or was taken back", True)
        assert view.flagged == []

    def test_a_confirmation_that_is_gone_is_told(self, store):
        """As of a job whose results were kept, and whose records were not."""
        [task] = tasks_of(1)
        first, last = (finished(store, {task: slower(QUICK, n, is_stored=n == 1)}) for n in (1, 2))
        [row] = compared(store, first, last).tasks
        assert (row.cells[1].finding, row.cells[1].why) == ("unsure", "its confirmation is not stored here")

    def test_different_targets_are_shown_and_not_compared(self, store):
        [task] = tasks_of(1)
        other = make_target(8)
        jobs = finished(store, {task: QUICK}), finished(store, {task: slower(QUICK, 3)}, target=other, run=(9.0, 9.1))
        view = compared(store, *jobs)
        assert (view.flagged, view.tasks[0].cells[1].why) == ([], "they are of different targets")
        assert view.tasks[0].cells[1].factor == pytest.approx(3.0)
        assert (view.jobs[1].run.finding, view.jobs[1].run.why) == ("unsure", "they are of different targets")
        assert [row.name for row in view.facts if row.differs] == ["target"]

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"model": "cd" * 32}, "they are of different models"),
            ({"settings": {"dims": {"n": 4}}}, "they are of different sizes of the model"),
            ({"run": None}, "a run of the whole model was not timed in both"),
            ({"noise": "it was busy"}, "too noisy: it was busy"),
        ],
    )
    def test_runs_that_may_not_be_compared(self, store, changes, why):
        [task] = tasks_of(1)
        jobs = finished(store, {task: QUICK}), finished(store, {task: QUICK}, **{"run": (9.0, 9.1), **changes})
        run = compared(store, *jobs).jobs[1].run
        assert (run.finding, run.why) == ("unsure", why)

    def test_a_job_that_goes_on_is_compared_with_nothing(self, store):
        [task] = tasks_of(1)
        view = compared(store, finished(store, {task: QUICK}), finished(store, {task: QUICK}, state=None))
        assert view.flagged == [] and not view.is_finished
        assert view.tasks[0].cells[1].finding == "unsure"


class TestOneJob:
    def test_it_is_compared_with_the_one_before_it(self, store):
        """Of its model, sizes and target, that succeeded."""
        [task] = tasks_of(1)
        first = finished(store, {task: QUICK})
        finished(store, {task: QUICK}, settings={"dims": {"n": 4}})
        finished(store, {task: QUICK}, model="cd" * 32)
        finished(store, {task: QUICK}, target=make_target(8))
        last = finished(store, {task: slower(QUICK, 1.5)})
        view = compared(store, last)
        assert [one.job.id for one in view.jobs] == [first, last]
        assert [one.key for one in view.flagged] == [task.key]

    def test_without_one_it_stands_alone(self, store):
        [task] = tasks_of(1)
        view = compared(store, finished(store, {task: QUICK}))
        assert len(view.jobs) == 1 and view.why_alone.startswith("no job before it of the same model")
        assert view.jobs[0].verdict == [] and view.tasks[0].cells[0].finding is None

    def test_today_is_what_was_confirmed_since(self, store):
        tasks = tasks_of(2)
        times = confirmed_alike(tasks)
        job = finished(store, times)
        finished(store, {tasks[0]: slower(times[tasks[0]], 1.5)}, model="cd" * 32)
        view = compared(store, job, against=CompareWith.TODAY)
        assert findings(view) == {tasks[0].key: "slower", tasks[1].key: "repeated"}
        assert view.jobs[1].latency is None and view.jobs[1].verdict[0].startswith("1 of 2 tasks is slower")
        assert view.name == f"Job {job} as known today since job {job}"

    def test_before_it_timed_stale_tasks_again(self, store):
        tasks = tasks_of(2)
        times = confirmed_alike(tasks)
        finished(store, times)
        retimed = {"versions": {"llvm": "21"}, "default_ms": 2.02, "best_ms": 1.0, "payoff": "pays"}
        again = slower(times[tasks[0]], 1.3, provenance=(("llvm", "22"), ("tunewright", "1.0")), retimed=retimed)
        job = finished(store, {tasks[0]: again, tasks[1]: times[tasks[1]]}, settings={"retime": 3})
        view = compared(store, job, against=CompareWith.BEFORE)
        assert findings(view) == {tasks[0].key: "slower", tasks[1].key: "repeated"}
        assert view.flagged[0].now.cause == "versions"

    def test_a_job_that_searched_has_no_moment_before(self, store):
        [task] = tasks_of(1)
        view = compared(store, finished(store, {task: QUICK}), against=CompareWith.BEFORE)
        assert len(view.jobs) == 1 and "only a job that times stale tasks again" in view.why_alone


class TestAsked:
    @pytest.fixture
    def jobs(self, one):
        [task] = tasks_of(1)
        return [finished(one.store, {task: slower(QUICK, n)}) for n in (1.0, 1.5, 1.0)]

    def test_the_oldest_is_the_baseline_unless_another_is_named(self, client, jobs):
        def asked(**query):
            return client.get("/v1/pages/compare", params=query).json()

        assert [one["job"]["id"] for one in asked(job=jobs[::-1])["jobs"]] == jobs
        named = asked(job=jobs, baseline=jobs[1])
        assert [one["job"]["id"] for one in named["jobs"]] == [jobs[1], jobs[0], jobs[2]]
        [flagged] = named["flagged"]
        assert (flagged["now"]["finding"], flagged["side"], flagged["also"]) == ("faster", 1, [2])
        assert [one["job"]["id"] for one in asked(job=[jobs[2], jobs[2]])["jobs"]] == jobs[1:]  # the one before it

    def test_the_page_of_a_job_says_what_it_is_compared_with(self, client, jobs):
        assert [client.get(f"/v1/pages/jobs/{job}").json()["earlier"] for job in jobs] == [None, *jobs[:2]]
        assert f"Compare with job {jobs[0]} " in whole(client.get(f"/jobs/{jobs[1]}")).words
        assert "Compare with" not in whole(client.get(f"/jobs/{jobs[0]}")).words

    def test_what_makes_no_sense_is_refused(self, client, jobs):
        def refusal(**query):
            answer = client.get("/v1/pages/compare", params=query)
            assert answer.headers["content-type"] == "application/problem+json"
            return answer.status_code, answer.json()["detail"]

        assert refusal()[0] == refusal(job=[])[0] == refusal(job=0)[0] == refusal(job="x")[0] == 422
        assert refusal(job=list(range(1, 10))) == (422, "query #/job: must have at most 8 items")
        assert refusal(job=jobs, baseline=99)[1] == "query #/baseline: job 99 is none of those to compare"
        assert "is for a single job" in refusal(job=jobs, against="today")[1]
        assert refusal(job=[jobs[0], 99]) == (404, "there is no job 99 here, or none any more")
        answer = client.get("/compare", params={"job": 99}, headers={"Accept": "text/html"})
        assert answer.status_code == 404 and answer.headers["content-type"].startswith("text/html")

    def test_it_needs_the_scope_of_the_page_of_a_job(self, one, jobs):
        path = f"/v1/pages/compare?job={jobs[0]}"
        assert one.client(token=one.key(KeyScope.RECORDS_READ)).get(path).status_code == 403
        assert one.client(token="").get(path).status_code == 401
        assert one.client(token=one.key(KeyScope.JOBS_READ)).get(path).status_code == 200

    def test_the_page_says_what_its_data_do(self, client, jobs):
        query = {"job": jobs[:2]}
        view = client.get("/v1/pages/compare", params=query).json()
        page = whole(client.get("/compare", params=query))
        for sentence in view["jobs"][1]["verdict"]:
            assert sentence in page.words
        [flagged] = view["flagged"]
        assert flagged["now"]["cause_text"] in page.words and "+50.0%" in page.words
        tasks = whole(client.get("/compare", params=query | {"tab": "tasks"}))
        assert all(f'title="{row["key"]}"' in tasks.source for row in view["tasks"])
        facts = whole(client.get("/compare", params=query | {"tab": "settings"})).words
        assert all(row["name"] in facts for row in view["facts"])

    def test_what_is_not_compared_shows_no_change_as_certain(self, one, client):
        [task] = tasks_of(1)
        jobs = [finished(one.store, {task: slower(QUICK, n, is_confirmed=False)}, run=None) for n in (1, 1.5)]
        query = {"job": jobs, "tab": "tasks"}
        assert client.get("/v1/pages/compare", params=query).json()["tasks"][0]["cells"][1]["finding"] == "unsure"
        tasks = whole(client.get("/compare", params=query)).words
        assert tasks.count("+50.0%") == tasks.count("+50.0%\N{DEGREE SIGN}") == 2
        overview = whole(client.get("/compare", params={"job": jobs}))
        assert "+50.0%" in overview.words and "+50.0%" not in overview.words.replace("+50.0%\N{DEGREE SIGN}", "")
        assert overview.of("section", id="flagged")  # where what is flagged later will be

    def test_a_job_was_searched_for_as_long_as_its_page_says(self, client, jobs):
        assert "0:30" in whole(client.get(f"/jobs/{jobs[0]}")).words
        assert whole(client.get("/compare", params={"job": jobs[:2]})).words.count("0:30") == 2

    def test_the_chart_has_what_was_timed(self, client, jobs):
        words = whole(client.get("/compare", params={"job": jobs[:2]})).words
        assert f"job {jobs[0]}, timed" in words and f"job {jobs[1]}, timed" in words

    def test_what_is_slower_has_a_bar_to_the_right(self, client, jobs):
        [bar] = whole(client.get("/compare", params={"job": jobs[:2]})).of("rect", **{"class": "fill failed"})
        assert (bar["x"], bar["width"]) == ("0%", "100%")

    def test_pages_of_jobs_lead_there(self, client, jobs):
        assert f"/compare?job={jobs[0]}" in whole(client.get(f"/jobs/{jobs[0]}")).links()
        form = whole(client.get(f"/jobs/{jobs[0]}", params={"tab": "settings"}))
        assert form.of("form", action="/compare") and form.of("input", name="job", value=str(jobs[0]))
        page = whole(client.get("/compare", params={"job": jobs}))
        assert f"/compare?job={jobs[0]}&job={jobs[1]}&job={jobs[2]}&baseline={jobs[2]}" in page.links()

    def test_one_job_has_links_to_its_moments(self, client, jobs):
        page = whole(client.get("/compare", params={"job": jobs[1]}))
        assert {f"/compare?job={jobs[1]}&against={one.value}" for one in CompareWith} <= set(page.links())
        for moment in CompareWith:
            for tab in CompareTab:
                whole(client.get("/compare", params={"job": jobs[1], "against": moment.value, "tab": tab.value}))


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}",
    "' onclick='x",
    "a\u202egnp.exe",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_come_as_text(one, client, name):
    hostile = replace(make_task(), op=name)
    knobs = Schedule(name, 1, ((name, 1),)), Schedule(name, 1, ((name, 2),))
    origins = [((name, "1"),), ((name, name),)]
    jobs = [
        finished(
            one.store,
            {hostile: slower(QUICK, n + 1, schedule=knobs[n], provenance=(*origins[n], ("llvm", name)))},
            label=name,
            settings={"strategy": name, "dims": {name: n}},
        )
        for n in (0, 1)
    ]
    for tab in CompareTab:
        page = whole(client.get("/compare", params={"job": jobs, "tab": tab.value}))
        shown = str(escape(name.replace("\u202e", "\\u202e")))
        assert shown in page.source and (name not in page.source or name == shown)


@pytest.mark.slow
def test_eight_jobs_of_three_hundred_tasks_fit_a_page(one, client):
    """And their names are as long as they may be."""
    tasks = [replace(make_task(n + 1), op="x" * 400) for n in range(300)]
    jobs = []
    for number in range(8):
        times = {
            task: slower(
                QUICK, 1 + 0.1 * number, provenance=tuple((f"{n}{'p' * 200}", f"{number}" * 99) for n in range(9))
            )
            for task in tasks
        }
        jobs.append(finished(one.store, times, label="l" * 200))
    view = client.get("/v1/pages/compare", params={"job": jobs})
    assert len(view.content) < PAGE_BYTES
    data = view.json()
    assert (len(data["tasks"]), data["next_start"], data["task_count"], data["flagged_count"]) == (20, 20, 300, 300)
    for tab in CompareTab:
        whole(client.get("/compare", params={"job": jobs, "tab": tab.value}))
    behind = client.get("/v1/pages/compare", params={"job": jobs, "start": 300}).json()
    assert (behind["tasks"], behind["next_start"]) == ([], None)
    assert (
        "There are no tasks behind these"
        in whole(client.get("/compare", params={"job": jobs, "start": 300, "tab": "tasks"})).words
    )
