"""A search under test: a job under a lease, what its process tells, and what its page says of it."""

import re

import pytest

from tunewright.api.dashboard.job.view import JobTab
from tunewright.db.job import EventKind, NewEvent
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

from .page import whole

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "' onclick='x"]

FAILED = Measurement(Status.CRASH, error="signal 11")


def took(time_ms):
    time_s = time_ms / 1e3
    return Measurement(Status.OK, (time_s,), time_s, time_s, time_s, 0.0)


class Search:
    """A job under a lease, and what its process tells."""

    def __init__(self, store, target, tasks, job_id, lease):
        self.store, self.target, self.tasks, self.id, self.lease = store, target, tasks, job_id, lease
        self.trials = 0

    def tell(self, kind, **data):
        self.store.jobs.renew(self.lease, events=[NewEvent(kind, data)])

    def progress(self, **data):
        data = {"stage": "searching", "trials": self.trials} | data
        told = [NewEvent(EventKind.PROGRESS, data)]
        self.store.jobs.renew(self.lease, progress=data, events=told, spent_s=1.0)

    def schedule(self, trial):
        return Schedule("tiled", 1, (("n", trial),))

    def trial(self, task, measurement, *events):
        record = Record(task.key, self.target.key, self.schedule(self.trials), measurement)
        self.store.record(record, self.lease, [NewEvent(kind, data) for kind, data in events])
        self.trials += 1

    def default(self, task, time_ms):
        data = {"task_key": task.key, "op": task.op, "default_ms": time_ms, "best_ms": time_ms}
        self.trial(task, took(time_ms), (EventKind.DEFAULT, data))

    def improve(self, task, time_ms, default_ms):
        data = {"task_key": task.key, "op": task.op, "default_ms": default_ms, "best_ms": time_ms, "trial": self.trials}
        self.trial(task, took(time_ms), (EventKind.IMPROVED, data))


@pytest.fixture
def search(one, client, kit):
    """A search of a model with two tasks, the second of which occurs twice."""
    model = kit.send(client, 8, 16, label="net.onnx")
    job_id = client.post("/v1/jobs", json={"model": model, "trials": 40}).json()["id"]
    lease = one.store.jobs.lease([kit.target().key], "host-1:4711")
    one.store.fleet.report("t1", [], job_id)
    return Search(one.store, kit.target(), [kit.task(8), kit.task(16)], job_id, lease)


def twin(client, job_id, **asked):
    answer = client.get(f"/v1/pages/jobs/{job_id}", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def page(client, job_id, **asked):
    """The words of the page, with a space for each piece of markup."""
    return " ".join(page_words(client, f"/jobs/{job_id}", **asked, tab=tab.value) for tab in JobTab)


def page_words(client, path, **asked):
    return " ".join(re.sub(r"<[^>]*>", " ", whole(client.get(path, params=asked)).source).split())


def searched(search):
    """Two tasks with their defaults, one of which became faster, and two failures."""
    small, large = search.tasks
    search.tell(EventKind.STAGE, stage="searching")
    search.default(large, 4.0)
    search.default(small, 2.0)
    search.trial(large, FAILED)
    search.improve(large, 3.0, 4.0)
    search.improve(large, 1.0, 4.0)
    search.trial(small, Measurement(Status.TIMEOUT, error="60 s"))
    gains = {"remaining_gain": 0.03, "again_gain": 0.045, "task_gains": [0.001, 0.04], "left_s": 120.0}
    search.progress(spent_s=90.0, speedup=2.5, default_ms=10.0, tuned_ms=4.0, **gains)


def report(search, **changes):
    small, large = search.tasks
    tasks = [
        {"key": small.key, "chosen": 1, "default_ms": 2.1, "best_ms": 2.0, "fraction_of_peak": 0.25},
        {"key": large.key, "chosen": 2, "default_ms": 4.2, "best_ms": 1.05, "fraction_of_peak": None},
    ]
    return {"default_ms": 11.0, "tuned_ms": 5.0, "trials": 6, "tasks": tasks, "ended_by": "trials"} | changes
