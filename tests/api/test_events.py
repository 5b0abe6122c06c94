"""Events: replayed from the database by number, none lost, none twice."""

import json
import threading
import time
from queue import SimpleQueue
from typing import Any

import pytest

from tunewright.api.http.changes import WAIT_S
from tunewright.api.http.service import Options
from tunewright.db.access import KeyScope
from tunewright.db.job import EventKind, JobSpec, JobState, NewEvent, SearchBudget, SpecTask

from ..waiting import wait_for


@pytest.fixture
def begin(kit):
    """A function that queues a job and leases it."""

    def make(store, seed=0):
        store.add_target(kit.target())
        store.add_task(kit.task(8))
        spec = JobSpec("", kit.target().key, (SpecTask(kit.task(8).key, 1),), {"seed": seed})
        job = store.jobs.submit(spec, "<script>", SearchBudget(10)).job
        return job.id, store.jobs.lease([kit.target().key], "h")

    return make


def tell(store, lease, *numbers):
    for number in numbers:
        store.jobs.renew(lease, events=[NewEvent(EventKind.PROGRESS, {"trials": number})])


def read(client, job_id, most=None, headers=None, **query):
    """(id, event, data) of each event of a stream, until it ends or there are so many."""
    found: list[tuple[int, str, Any]] = []
    fields: dict[str, str] = {}
    with client.stream("GET", f"/v1/jobs/{job_id}/events", params=query, headers=headers or {}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        for line in answer.iter_lines():
            if not line and fields:
                found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
                fields = {}
                if len(found) == most:
                    break
            elif line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
    return found


def test_a_finished_job_is_told_from_its_beginning(one, client, begin):
    job_id, lease = begin(one.store)
    tell(one.store, lease, 1, 2)
    one.store.jobs.finish(lease, JobState.SUCCEEDED, result={"tuned_ms": 1.0, "model": "</script>\r\n\r\nid: 9"})
    events = read(client, job_id)
    assert [number for number, _, _ in events] == list(range(1, len(events) + 1))
    assert [kind for _, kind, _ in events] == ["queued", "started", "progress", "progress", "succeeded"]
    last = events[-1][2]
    assert (last["job"], last["number"], last["kind"]) == (job_id, len(events), "succeeded")
    assert last["data"] == {"tuned_ms": 1.0, "model": "</script>\r\n\r\nid: 9"}
    assert read(client, job_id, after=3) == events[3:]
    assert read(client, job_id, headers={"Last-Event-ID": "4"}, after=1) == events[4:]
    over = client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": str(len(events))})
    assert (over.status_code, over.content) == (204, b"")


@pytest.mark.parametrize(
    "given", [{"headers": {"Last-Event-ID": "x"}}, {"params": {"after": -1}}, {"params": {"after": 10**20}}]
)
def test_numbers_of_no_event(one, client, kit, begin, given):
    job_id, _ = begin(one.store)
    kit.problem(client.get(f"/v1/jobs/{job_id}/events", **given), "invalid-request", 422)


def test_reconnecting_loses_nothing_and_repeats_nothing(serve, url, begin):
    """A writer at work, and clients that break off after a few events and come back."""
    with serve(url=url) as one:
        job_id, lease = begin(one.store)

        def write():
            for number in range(60):
                tell(one.store, lease, number)
            one.store.jobs.finish(lease, JobState.SUCCEEDED, result={})

        def follow(most, found):
            client = one.client()
            while not found or found[-1][1] != "succeeded":
                found += read(client, job_id, most, {"Last-Event-ID": str(found[-1][0])} if found else {})

        all_found: list[list[Any]] = [[] for _ in range(4)]
        threads = [threading.Thread(target=write)] + [
            threading.Thread(target=follow, args=(most, found))
            for most, found in zip((3, 7, 20, None), all_found, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        stored = one.store.jobs.events(job_id)
        assert len(stored) == 63
        for found in all_found:
            assert [(number, kind) for number, kind, _ in found] == [(e.number, e.kind) for e in stored]


def test_events_of_another_process_are_told_at_once(serve, url, begin):
    from tunewright.db.store import open_store

    with serve(url=url) as one, open_store(url) as other:
        job_id, lease = begin(other)
        came_s: SimpleQueue[float] = SimpleQueue()
        delays_s = []

        def follow():
            with one.client().stream("GET", f"/v1/jobs/{job_id}/events", params={"after": 2}) as answer:
                for line in answer.iter_lines():
                    if line.startswith("id:"):
                        came_s.put(time.monotonic())

        thread = threading.Thread(target=follow)
        thread.start()
        wait_for(lambda: one.service.stream_slots.borrowed_tokens == 1)
        for number in range(3):
            sent_s = time.monotonic()
            tell(other, lease, number)
            delays_s.append(came_s.get(timeout=60) - sent_s)
        assert min(delays_s) < WAIT_S / 2  # the machine may be busy for once
        other.jobs.finish(lease, JobState.FAILED, error="x")
        thread.join(60)
        assert not thread.is_alive()
        assert came_s.qsize() == 1  # the last one


def test_streams_end_when_the_service_is_asked_to(serve, begin, kit):
    with serve() as one:
        job_id, _ = begin(one.store)
        found = []
        thread = threading.Thread(target=lambda: found.append(read(one.client(), job_id)))
        thread.start()
        streams = one.service.metrics.streams
        wait_for(lambda: streams.collect()[0].samples[0].value == 1)
        one.service.drain()
        thread.join(60)
        assert not thread.is_alive()
        assert [kind for _, kind, _ in found[0]] == ["queued", "started"]
        wait_for(lambda: streams.collect()[0].samples[0].value == 0)
        kit.problem(one.client().get(f"/v1/jobs/{job_id}/events"), "busy", 503)
        assert one.client(token="").get("/readyz").json()["status"] == "draining"
        assert one.client().get("/v1/jobs").status_code == 200


def test_a_client_that_goes_away_is_forgotten(one, begin, kit):
    job_id, lease = begin(one.store)
    streams = one.service.metrics.streams
    for _ in range(5):
        with one.client().stream("GET", f"/v1/jobs/{job_id}/events") as answer:
            next(answer.iter_lines())
    tell(one.store, lease, 1)
    wait_for(lambda: streams.collect()[0].samples[0].value == 0)


@pytest.mark.slow
def test_streams_outlive_a_database_that_is_away(one, begin, monkeypatch):
    from tunewright.db.errors import Unreachable

    monkeypatch.setattr("tunewright.api.http.routes.events.AWAY_S", 0.1)
    job_id, lease = begin(one.store)
    jobs, events, fails, back = (
        one.store.jobs,
        one.store.jobs.events,
        iter([False, False, True, True]),
        threading.Event(),
    )

    def sometimes(*arguments):
        if (fails_now := next(fails, None)) is None:
            back.set()
        if fails_now:
            raise Unreachable("away")
        return events(*arguments)

    def finish():
        assert back.wait(60)
        jobs.finish(lease, JobState.CANCELLED)

    monkeypatch.setattr(jobs, "events", sometimes)
    threading.Thread(target=finish).start()
    assert [kind for _, kind, _ in read(one.client(), job_id)] == ["queued", "started", "cancelled"]


def test_streams_end_with_their_key(one, begin, kit, monkeypatch):
    monkeypatch.setattr("tunewright.api.http.access.TRUST_S", 0.1)
    monkeypatch.setattr("tunewright.api.http.changes.WAIT_S", 0.1)
    job_id, _ = begin(one.store)
    token = one.key(KeyScope.JOBS_READ)
    with one.client(token).stream("GET", f"/v1/jobs/{job_id}/events") as answer:
        lines = answer.iter_lines()
        assert next(lines)
        one.store.keys.revoke(token.split("_")[1])
        assert not any("succeeded" in line for line in lines)  # they end


def test_so_many_streams_at_once(serve, begin, kit):
    with serve(Options(streams=1)) as one:
        job_id, lease = begin(one.store)
        with one.client().stream("GET", f"/v1/jobs/{job_id}/events") as answer:
            lines = answer.iter_lines()
            assert next(lines)
            refused = one.client().get(f"/v1/jobs/{job_id}/events")
            assert kit.problem(refused, "busy", 503) and refused.headers["retry-after"]
        one.store.jobs.finish(lease, JobState.SUCCEEDED)
        wait_for(lambda: one.client().get(f"/v1/jobs/{job_id}/events").status_code == 200)


def test_streams_in_step_share_their_looks(one, begin, monkeypatch):
    job_id, lease = begin(one.store)
    jobs, ask = one.store.jobs, one.store.jobs.events
    looks: SimpleQueue[Any] = SimpleQueue()

    def noted(*arguments):
        looks.put(arguments)
        return ask(*arguments)

    monkeypatch.setattr(jobs, "events", noted)
    told: list[SimpleQueue[str]] = [SimpleQueue() for _ in range(8)]

    def follow(mine):
        with one.client().stream("GET", f"/v1/jobs/{job_id}/events") as answer:
            for line in answer.iter_lines():
                if line.startswith("id:"):
                    mine.put(line)

    followers = [threading.Thread(target=follow, args=(mine,)) for mine in told]
    for follower in followers:
        follower.start()

    def await_all(number):
        wait_for(lambda: all(mine.qsize() == number for mine in told))

    await_all(2)  # it was queued and begun
    before = looks.qsize()
    for number in range(2, 12):
        tell(one.store, lease, number)
        await_all(number + 1)
    jobs.finish(lease, JobState.SUCCEEDED)
    for follower in followers:
        follower.join(60)
    assert [mine.qsize() for mine in told] == [13] * 8
    assert looks.qsize() - before < 8 * 11  # of which each would need two for each event
