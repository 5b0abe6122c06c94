"""The Machine tab of a job: can its times be trusted, and what disturbed them?"""

from dataclasses import replace
from datetime import timedelta

import pytest

from tunewright.api import program
from tunewright.api.client.work.remote_store import open_remote_store
from tunewright.api.dashboard.job import history
from tunewright.api.dashboard.job.history import Histories
from tunewright.api.dashboard.job.machine import MOST_MARKS, machine_view
from tunewright.db.access import KeyScope
from tunewright.db.job import EventKind, JobState, NewEvent
from tunewright.tuner.explain.machine_record import MOST_SPANS
from tunewright.tuner.models.model import open_model
from tunewright.workers.machine_sample import MachineSample

from ..commands import commands
from ..tuner.conftest import small_model
from ..tuner.fake_pool import FakePool, by_key
from ..tuner.fake_pool import job as tune
from .page import PAGE_BYTES, whole
from .searched import HOSTILE, report, searched, twin

QUIET = {"steal": [0.0, 0.001, 0.01], "others": [0.0, 0.01, 0.02], "clock_mhz": [2500.0, 2550.0, 2600.0]}


@pytest.fixture
def tell(search):
    """Tell what the machine did in the last ten seconds."""

    def of_machine(**data):
        search.tell(EventKind.MACHINE, **({"elapsed_s": 10.0, "noisy_s": 0.0, "trials": 5} | QUIET | data))

    return of_machine


def tab(client, job_id):
    return whole(client.get(f"/jobs/{job_id}", params={"tab": "machine"}))


def test_a_job_without_samples_says_so(client, search):
    searched(search)
    said = twin(client, search.id)["machine"]
    assert (said["quiet_share"], said["curves"], said["watched_s"]) == (None, [], 0.0)
    page = tab(client, search.id)
    assert "Nothing is known of the machine" in page.words and "What it did meanwhile" not in page.words
    assert "No default, improvement or confirmation of this job is marked" in page.words
    assert "Tuner processes" in page.words


def test_a_quiet_machine(client, search, tell):
    searched(search)
    for _ in range(3):
        tell()
    said = twin(client, search.id)["machine"]
    assert (said["quiet_share"], said["watched_s"], said["trials"], said["busy_trials"]) == (1.0, 30.0, 15, 0)
    assert [curve["gauge"] for curve in said["curves"]] == ["steal", "others", "clock_mhz"]
    clock = said["curves"][2]
    assert (clock["low"], clock["mean"], clock["high"]) == (2500.0, 2550.0, 2600.0)
    assert [point[1:] for point in clock["points"]] == [[2500.0, 2550.0, 2600.0]] * 3
    assert [total for _, total in said["improved"]] == [1, 2] and said["confirmed"] == []
    page = tab(client, search.id)
    for words in (
        "The machine was quiet all the time that it was watched.",
        "Worst steal 1.0% 0.1% in the mean",
        "Worst other load 2.0% 1.0% in the mean",
        "Clock 2.50 to 2.60 GHz",
        "Trials while busy 0 of 15",
    ):
        assert words in page.words, words

    assert len(page.of("svg")) >= 4


def test_planted_steal_and_load_show_as_such(client, search, tell):
    searched(search)
    for _ in range(30):
        tell()
    tell(noisy_s=10.0, busy_trials=3, marked_trials=2, steal=[0.4, 0.4, 0.4])
    tell(noisy_s=10.0, others=[0.3, 0.3, 0.6], throttled=[0.0, 0.1, 0.2])
    said = twin(client, search.id)["machine"]
    worst = {curve["gauge"]: curve["high"] for curve in said["curves"]}
    assert (worst["steal"], worst["others"], worst["throttled"]) == (0.4, 0.6, 0.2)
    assert said["quiet_share"] == pytest.approx(300 / 320)
    assert said["verdict"] == (
        "The machine was quiet in 93.8% of the time; 3 trials of 160 were taken while it was too busy."
    )
    page = tab(client, search.id)
    assert said["verdict"] in page.words and "Worst steal 40.0%" in page.words
    assert "More of the machine: throttled" in page.words and "Trials marked ~ 2" in page.words
    assert "too noisy above" in page.source


def test_what_was_marked_is_listed_with_links(client, search, tell):
    small, large = search.tasks
    searched(search)
    tell()
    for task, noise in ((small, ""), (large, HOSTILE[0])):
        times = {"default_ms": 4.0, "best_ms": 1.0, "noise": noise}
        search.tell(EventKind.CONFIRMED, task_key=task.key, op=task.op, **times)
    said = twin(client, search.id)["machine"]
    [mark] = said["marks"]
    assert (mark["kind"], mark["key"], mark["noise"], mark["trial"]) == ("confirmed", large.key, HOSTILE[0], None)
    assert (said["mark_count"], said["confirmed"][-1][1]) == (1, 2)
    page = tab(client, search.id)
    assert "Of 2 confirmed tasks, 1 is marked ~." in page.words
    assert any(large.key in link for link in page.links())
    for trial in range(2 * MOST_MARKS):
        data = {"default_ms": 4.0, "best_ms": 1.0, "trial": trial, "default_noise": "others were busy"}
        search.tell(EventKind.IMPROVED, task_key=small.key, op=small.op, **data)
    said = twin(client, search.id)["machine"]
    assert (len(said["marks"]), said["mark_count"]) == (MOST_MARKS, 2 * MOST_MARKS + 1)
    assert (said["marks"][0]["trial"], said["marks"][0]["noise"]) == (2 * MOST_MARKS, "others were busy")
    assert f"The newest {MOST_MARKS} of {2 * MOST_MARKS + 1}." in tab(client, search.id).words


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"elapsed_s": "10"},
        {"elapsed_s": -1.0},
        {"elapsed_s": 1e300},
        {"elapsed_s": True, "steal": [0.1, 0.1, 0.1]},
        {"elapsed_s": 10.0, "noisy_s": 1e9, "trials": 1e14, "busy_trials": 1e14, "steal": [7, 7, 7]},
        {"elapsed_s": 10.0, "trials": [3], "clock_mhz": {"a": 1}, "others": HOSTILE, HOSTILE[0]: [0.1, 0.1, 0.1]},
        {"elapsed_s": 1e-300, "temperature_c": [1e3, 1e3, 1e3], "spread": [1e6, 1e6, 1e6], "drift": [0, 0, 0]},
    ],
)
def test_what_a_tuner_tells_may_be_anything(one, client, search, data):
    searched(search)
    search.tell(EventKind.MACHINE, **data)
    page = tab(client, search.id)
    assert not any(hostile in page.source for hostile in HOSTILE)
    said = twin(client, search.id)["machine"]
    assert said["quiet_share"] is None or 0.0 <= said["quiet_share"] <= 1.0
    assert said["busy_trials"] <= said["trials"] <= 10**9


def test_it_is_told_from_elsewhere(one, client, kit, search, monkeypatch):
    """By a tuner process that has a key and no database."""
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.key(KeyScope.WORK))
    network = open_model(small_model().SerializeToString())
    seen = MachineSample(10.0, 0.2, 0.0, 0.4, None, None, 2600.0, is_noisy=True)
    with open_remote_store(one.url, 30.0) as far:
        lease = far.jobs.lease([kit.target().key], "h", devices=[])
        assert lease is None  # the other job is at work
        span = {"elapsed_s": 10.0, "noisy_s": 10.0, "trials": 4, "busy_trials": 4, "steal": [0.2, 0.2, 0.2]}
        far.jobs.renew(search.lease, events=[NewEvent(EventKind.MACHINE, span)])
    assert "too busy for 100.0% of the time" in twin(client, search.id)["machine"]["verdict"]
    done = tune(network, one.store, FakePool(by_key, machine=seen))
    assert twin(client, done.job_id)["machine"]["busy_trials"] == done.trials


@pytest.mark.slow
def test_the_command_tells_it_in_a_line(one, client, search, tell, monkeypatch, capfd):
    monkeypatch.setenv("TUNEWRIGHT_SERVER", one.url)
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)
    command = commands(program.execute, capfd)
    searched(search)
    assert "Nothing is known of the machine" in command("jobs", "show", search.id).out
    tell(noisy_s=1.0, busy_trials=2)
    words = "The machine was quiet in 90.0% of the time; 2 trials of 5 were taken while it was too busy."
    assert words in " ".join(command("jobs", "show", search.id).out.split())
    assert command("jobs", "show", search.id, "--json").data["machine"] == words


def test_events_of_it_are_not_listed(client, search, tell):
    searched(search)
    before = twin(client, search.id)
    for _ in range(60):
        tell()
    after = twin(client, search.id)
    assert after["log"] == before["log"] and after["newest"] == before["newest"] + 60
    assert after["model"] == before["model"]


class TestALongJob:
    @pytest.fixture
    def spans(self, one, search):
        """A week of looks at a machine, which was busy once."""
        busy = {"noisy_s": 10.0, "steal": [0.5, 0.5, 0.5]}
        for hour in range(7 * 24):
            told = [
                NewEvent(
                    EventKind.MACHINE, {"elapsed_s": 10.0, "trials": 1} | QUIET | (busy if (hour, n) == (9, 3) else {})
                )
                for n in range(60)
            ]
            search.store.jobs.renew(search.lease, events=told)
        return 7 * 24 * 60

    def test_is_kept_as_some_hundred(self, client, search, spans):
        searched(search)
        answer = client.get(f"/v1/pages/jobs/{search.id}")
        assert len(answer.content) < PAGE_BYTES
        said = answer.json()["machine"]
        assert (said["watched_s"], said["trials"]) == (pytest.approx(10.0 * spans), spans)
        assert all(MOST_SPANS / 3 < len(curve["points"]) <= MOST_SPANS for curve in said["curves"])
        [steal] = [curve for curve in said["curves"] if curve["gauge"] == "steal"]
        assert steal["high"] == 0.5 == max(point[3] for point in steal["points"])
        assert said["verdict"] == "The machine was quiet nearly all the time that it was watched."
        tab(client, search.id)

    def test_is_the_same_however_often_it_was_looked_at(self, one, search, monkeypatch):
        monkeypatch.setattr(history, "READ_AT_ONCE", 7)
        seldom, often = Histories(), Histories()
        for _ in range(40):
            for _ in range(20):
                search.tell(EventKind.MACHINE, **({"elapsed_s": 10.0} | QUIET))
            found = often.of(one.store.jobs.get(search.id), one.store.jobs, one.store.trials)
        assert found.machine == seldom.of(one.store.jobs.get(search.id), one.store.jobs, one.store.trials).machine
        assert len(found.machine) <= MOST_SPANS


def test_spans_lie_where_work_was(one, search):
    """A pause takes no room on the axis, and no span begins before the one before ended."""
    search.tell(EventKind.STAGE, stage="searching")
    search.tell(EventKind.MACHINE, **({"elapsed_s": 10.0} | QUIET))
    search.tell(EventKind.MACHINE, **({"elapsed_s": 10.0} | QUIET))
    one.store.jobs.finish(search.lease, JobState.SUCCEEDED, result=report(search))
    found = Histories().of(one.store.jobs.get(search.id), one.store.jobs, one.store.trials)
    begin = found.events[1].created_at
    machine = [
        end._replace(told_at=begin + timedelta(seconds=s)) for end, s in zip(found.machine, (12, 24), strict=True)
    ]
    ends = [replace(event, created_at=begin + timedelta(seconds=30)) for event in found.spine[-1:]]
    moved = replace(found, machine=tuple(machine), spine=(*found.spine[:-1], *ends))
    [steal, *_] = machine_view(moved, {}).curves
    assert [point.at_s for point in steal.points] == [2.0, 14.0]
