"""The contract of Webhooks, checked on every database."""

import base64
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from unittest.mock import patch

import pytest
from sqlalchemy import insert, text

from tunewright.db import webhooks as webhooks_module
from tunewright.db.access import LOCAL, KeyScope
from tunewright.db.errors import NotFound, Unreachable
from tunewright.db.job import EventKind, JobState, NewEvent, SearchBudget
from tunewright.db.store import open_store
from tunewright.db.tables import JobTagRow, KeyRow
from tunewright.db.webhooks import (
    ATTEMPTS_OF_OWNER,
    MOST_WEBHOOKS,
    PAUSES_S,
    TAKEN_S,
    TEST,
    WEBHOOK_KINDS,
    DeliveryState,
    NoLastingKey,
    TooManyDeliveries,
    TooManyWebhooks,
)

from .conftest import in_threads, selected

URL = "https://hooks.example.org/tunewright"
OWNER = "k1"
NOW = datetime(2026, 1, 1, tzinfo=UTC)

TAKER = """
import sys
from tunewright.db.store import open_store

with open_store(sys.argv[1]) as store:
    [attempt] = store.webhooks.take(1)
    print(attempt.delivery.id, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def webhooks(filled):
    own(filled, OWNER, "k2")
    return filled.webhooks


def own(store, *owners):
    """Keys with these names."""
    row = {"name": "n", "secret_sha256": "", "scopes": [], "is_passing": False, "created_at": NOW}
    with store.database.write() as session:
        session.execute(insert(KeyRow), [{"id": owner, **row} for owner in owners])


@pytest.fixture
def webhook(webhooks):
    return webhooks.create(URL, WEBHOOK_KINDS, OWNER)[0]


@pytest.fixture
def lease(filled, samples):
    return leased(filled, samples)


def leased(store, samples, number=0, owner=OWNER):
    store.jobs.submit(samples.spec(number), f"model{number}.onnx", SearchBudget(10), owner=owner)
    return store.jobs.lease([samples.target().key], "h")


def deliveries(webhooks, webhook, **conditions):
    return webhooks.deliveries(webhook.id, webhook.owner, **conditions)


class TestWebhook:
    def test_comes_back_without_its_secret(self, webhooks, clock):
        webhook, secret = webhooks.create(URL, [EventKind.REGRESSED, EventKind.FAILED], OWNER)
        assert (webhook.url, webhook.kinds, webhook.owner) == (URL, ("failed", "regressed"), OWNER)
        assert webhook.created_at == clock.now
        assert webhooks.list(OWNER) == [webhook] == [webhooks.get(webhook.id, OWNER)]
        assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
        assert secret not in repr(webhooks.list(OWNER))

    def test_is_its_owners_alone(self, webhooks, webhook):
        assert webhooks.list("k2") == []
        for call in (webhooks.get, webhooks.delete, webhooks.deliveries, webhooks.test):
            for name, owner in ((webhook.id, "k2"), ("0" * 16, OWNER)):
                with pytest.raises(NotFound):
                    call(name, owner)
        assert webhooks.list(OWNER) == [webhook]

    def test_an_owner_has_so_many(self, webhooks):
        for _ in range(MOST_WEBHOOKS):
            webhooks.create(URL, WEBHOOK_KINDS, OWNER)
        with pytest.raises(TooManyWebhooks, match=str(MOST_WEBHOOKS)):
            webhooks.create(URL, WEBHOOK_KINDS, OWNER)
        webhooks.create(URL, WEBHOOK_KINDS, "k2")
        webhooks.delete(webhooks.list(OWNER)[0].id, OWNER)
        webhooks.create(URL, WEBHOOK_KINDS, OWNER)

    def test_of_many_at_once_so_many_are_made(self, shared_url):
        with open_store(shared_url) as store:
            own(store, OWNER)

            def create(_):
                try:
                    return store.webhooks.create(URL, WEBHOOK_KINDS, OWNER)
                except TooManyWebhooks:
                    return None

            assert sum(made is not None for made in in_threads(create, MOST_WEBHOOKS + 4)) == MOST_WEBHOOKS

    def test_goes_with_its_deliveries(self, webhooks, webhook):
        other, _ = webhooks.create(URL, WEBHOOK_KINDS, OWNER)
        webhooks.test(webhook.id, OWNER), webhooks.test(other.id, OWNER)
        assert webhooks.delete(webhook.id, OWNER) == webhook
        assert webhooks.list(OWNER) == [other]
        assert [attempt.delivery.webhook_id for attempt in webhooks.take(10)] == [other.id]

    def test_goes_with_the_key(self, filled, webhooks):
        key, _ = filled.keys.create("n", [KeyScope.JOBS_WRITE])
        webhook, _ = webhooks.create(URL, WEBHOOK_KINDS, key.id)
        webhooks.test(webhook.id, key.id)
        filled.keys.revoke(key.id)
        assert (webhooks.list(key.id), webhooks.take(10)) == ([], [])

    def test_of_a_key_that_is_over_none_is_made(self, filled, webhooks, clock):
        """Who calls may have checked it a while ago."""
        revoked, _ = filled.keys.create("n", [KeyScope.JOBS_WRITE])
        expired, _ = filled.keys.create("n", [KeyScope.JOBS_WRITE], 60.0)
        webhooks.create(URL, WEBHOOK_KINDS, expired.id)
        filled.keys.revoke(revoked.id)
        clock.advance(60.0)
        for owner in (revoked.id, expired.id, "k9"):
            with pytest.raises(NoLastingKey, match="unknown, expired or revoked"):
                webhooks.create(URL, WEBHOOK_KINDS, owner)

    def test_of_a_session_it_is_the_keys(self, filled, webhooks):
        local, token = filled.keys.create(f"{LOCAL}/tmp", [KeyScope.JOBS_WRITE])
        session, _ = filled.keys.begin_session(token, [KeyScope.JOBS_WRITE], 60.0)
        by_link, _ = filled.keys.create("browser session", [KeyScope.JOBS_WRITE], 60.0, passing=True)
        webhook, _ = webhooks.create(URL, WEBHOOK_KINDS, session.owner)
        assert webhooks.list(local.owner) == [webhook]
        with pytest.raises(NoLastingKey, match="began with a link"):
            webhooks.create(URL, WEBHOOK_KINDS, by_link.owner)

    def test_none_outlives_a_key_that_is_revoked_meanwhile(self, shared_url):
        with open_store(shared_url) as store:
            keys = [store.keys.create("n", [KeyScope.JOBS_WRITE])[0] for _ in range(12)]

            def work(number):
                for key in keys:
                    if number == 0:
                        store.keys.revoke(key.id)
                    else:
                        with suppress(NoLastingKey):
                            store.webhooks.create(URL, WEBHOOK_KINDS, key.id)

            in_threads(work, 3)
            assert [webhook for key in keys for webhook in store.webhooks.list(key.id)] == []


class TestDeliveries:
    def test_the_end_of_a_job_is_told(self, filled, webhooks, webhook, lease, clock):
        with filled.database.write() as session:
            session.execute(insert(JobTagRow), [{"job_id": lease.job_id, "tag": tag} for tag in ("b", "a")])
        result = {"speedup": 1.5, "outcome": "faster", "tasks": [{"key": "k"}], "default_ms": 3.0, "tuned_ms": 2.0}
        job = filled.jobs.finish(lease, JobState.SUCCEEDED, result=result)
        [delivery] = deliveries(webhooks, webhook)
        assert (delivery.kind, delivery.created_at, delivery.due_at) == ("succeeded", clock.now, clock.now)
        assert (delivery.attempts, delivery.status, delivery.error) == (0, None, "")
        assert delivery.content() == {
            "id": f"{webhook.id}-{delivery.number}",
            "kind": "succeeded",
            "created_at": clock.now.isoformat(),
            "job": {
                "id": job.id,
                "label": "model0.onnx",
                "state": "succeeded",
                "model": job.spec.model_sha256,
                "target": job.spec.target_key,
                "tags": ["a", "b"],
            },
            "event": {
                "number": filled.jobs.events(job.id)[-1].number,
                "data": {name: result[name] for name in ("speedup", "outcome", "default_ms", "tuned_ms")},
            },
        }

    @pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
    def test_so_is_any_other_end(self, filled, webhooks, webhook, lease, state):
        filled.jobs.finish(lease, state, error="it broke")
        [delivery] = deliveries(webhooks, webhook)
        assert (delivery.kind, delivery.data["job"]["state"]) == (state.value, state.value)
        assert delivery.data["event"]["data"] == ({"error": "it broke"} if state is JobState.FAILED else {})

    def test_a_cancelled_job_that_nobody_took_up(self, filled, samples, webhooks, webhook):
        job = filled.jobs.submit(samples.spec(), "", SearchBudget(1), owner=OWNER).job
        filled.jobs.cancel(job.id)
        assert [delivery.kind for delivery in deliveries(webhooks, webhook)] == ["cancelled"]

    def test_a_regression_is_told_with_its_confirmation(self, filled, samples, webhooks, webhook, lease):
        data = {"task_key": samples.task().key, "now_ms": 1.2}
        events = [NewEvent(EventKind.CONFIRMED), NewEvent(EventKind.REGRESSED, data)]
        filled.confirm(samples.record(1), lease, events)
        [delivery] = deliveries(webhooks, webhook)
        assert (delivery.kind, delivery.data["job"]["state"]) == ("regressed", "running")
        assert delivery.data["event"] == {"number": 4, "data": data}

    def test_only_what_is_asked_for_and_of_the_own_jobs(self, filled, samples, webhooks):
        of_failures, _ = webhooks.create(URL, [EventKind.FAILED], OWNER)
        of_another, _ = webhooks.create(URL, WEBHOOK_KINDS, "k2")
        for number, owner in enumerate((OWNER, "k3", "")):
            filled.jobs.finish(leased(filled, samples, number, owner), JobState.CANCELLED)
        assert deliveries(webhooks, of_failures) == deliveries(webhooks, of_another) == []

    def test_progress_asks_for_no_webhooks(self, filled, webhook, lease):
        with selected(filled) as queries:
            filled.jobs.renew(lease, events=[NewEvent(EventKind.PROGRESS), NewEvent(EventKind.IMPROVED)])
        assert queries and not [query for query, _ in queries if "webhooks" in query]

    def test_a_repeated_write_queues_one(self, filled, webhooks, webhook, lease):
        """The connection is lost between the commit and its answer."""
        retry, calls = filled.database.retry, []

        def lose(work):
            def once():
                result = work()
                calls.append(result)
                if len(calls) == 1:
                    raise Unreachable("gone")
                return result

            return retry(once)

        filled.database.patience_s = 10
        with patch.object(filled.database, "retry", lose):
            filled.jobs.finish(lease, JobState.SUCCEEDED, result={})
        assert len(calls) == 2
        assert len(deliveries(webhooks, webhook)) == 1

    def test_pages(self, webhooks, webhook):
        numbers = [webhooks.test(webhook.id, OWNER).number for _ in range(5)]
        newest = deliveries(webhooks, webhook, limit=2)
        assert [delivery.number for delivery in newest] == numbers[:2:-1]
        rest = deliveries(webhooks, webhook, before=newest[-1].number)
        assert [delivery.number for delivery in rest] == numbers[2::-1]
        assert {delivery.kind for delivery in rest} == {TEST}

    def test_so_many_wait_and_what_is_beyond_is_given_up(self, filled, samples, webhooks, webhook, monkeypatch):
        monkeypatch.setattr(webhooks_module, "MOST_WAITING", 2)
        other, _ = webhooks.create(URL, WEBHOOK_KINDS, OWNER)
        webhooks.test(webhook.id, OWNER)
        for number in range(3):
            filled.jobs.finish(leased(filled, samples, number), JobState.CANCELLED)
        given_up, waits = (DeliveryState.GIVEN_UP, "2 others were waiting"), (DeliveryState.WAITING, "")
        found = [(delivery.state, delivery.error) for delivery in deliveries(webhooks, webhook)]
        assert found == [given_up, given_up, waits, waits]
        assert [delivery.state for delivery in deliveries(webhooks, other)].count(DeliveryState.WAITING) == 2
        with pytest.raises(TooManyDeliveries, match="2 deliveries are waiting"):
            webhooks.test(webhook.id, OWNER)
        [attempt] = [attempt for attempt in webhooks.take(2) if attempt.delivery.webhook_id == webhook.id]
        webhooks.settle(attempt, 200)
        assert webhooks.test(webhook.id, OWNER).state is DeliveryState.WAITING

    def test_what_is_beyond_is_forgotten_too(self, filled, samples, webhooks, webhook, monkeypatch):
        monkeypatch.setattr(webhooks_module, "MOST_WAITING", 1)
        monkeypatch.setattr(webhooks_module, "DELIVERIES_KEPT", 2)
        waiting = webhooks.test(webhook.id, OWNER)
        for number in range(5):
            filled.jobs.finish(leased(filled, samples, number), JobState.CANCELLED)
        newest, *others = deliveries(webhooks, webhook)
        assert newest.data["job"]["label"] == "model4.onnx"
        assert [delivery.data["job"]["label"] for delivery in others[:-1]] == ["model3.onnx"]
        assert others[-1] == waiting

    def test_a_webhook_that_is_deleted_meanwhile_fails_no_job(self, shared_url, samples):
        """Jobs that end while webhooks go and come: each ends, and no delivery is without its webhook."""
        with open_store(shared_url) as store:
            samples.fill(store)
            own(store, OWNER)
            leases = [leased(store, samples, number) for number in range(12)]

            def work(number):
                if number == 0:
                    for _ in range(12):
                        webhook, _ = store.webhooks.create(URL, WEBHOOK_KINDS, OWNER)
                        store.webhooks.delete(webhook.id, OWNER)
                else:
                    for lease in leases[number - 1 :: 3]:
                        store.jobs.finish(lease, JobState.SUCCEEDED)

            in_threads(work, 4)
            assert store.jobs.counts()[JobState.SUCCEEDED] == 12
            with store.database.engine.connect() as connection:
                assert connection.scalar(text("SELECT count(*) FROM deliveries")) == 0


class TestSending:
    def test_an_attempt_has_what_it_takes(self, webhooks):
        webhook, secret = webhooks.create(URL, WEBHOOK_KINDS, OWNER)
        queued = webhooks.test(webhook.id, OWNER)
        assert webhooks.count_due() == 1
        [attempt] = webhooks.take(10)
        assert (attempt.url, attempt.secret, attempt.delivery.id) == (URL, secret, queued.id)
        assert (attempt.delivery.attempts, webhooks.count_due()) == (1, 0)
        assert webhooks.take(10) == []
        assert webhooks.settle(attempt, 204) is DeliveryState.DELIVERED
        [delivery] = deliveries(webhooks, webhook)
        assert (delivery.state, delivery.status, delivery.due_at) == (DeliveryState.DELIVERED, 204, None)

    def test_a_failure_is_tried_again_after_growing_pauses_and_given_up(self, webhooks, webhook, clock):
        webhooks.test(webhook.id, OWNER)
        for number, pause_s in enumerate(PAUSES_S, 1):
            [attempt] = webhooks.take(10)
            assert attempt.delivery.attempts == number
            assert webhooks.settle(attempt, 500, "answered\n500\0") is DeliveryState.WAITING
            [delivery] = deliveries(webhooks, webhook)
            assert delivery.due_at == clock.now + timedelta(seconds=pause_s)
            assert delivery.error == "answered 500\N{REPLACEMENT CHARACTER}"
            clock.advance(pause_s - 1)
            assert webhooks.take(10) == []
            clock.advance(1)
        [attempt] = webhooks.take(10)
        assert webhooks.settle(attempt, None, "no answer") is DeliveryState.GIVEN_UP
        [delivery] = deliveries(webhooks, webhook)
        assert (delivery.state, delivery.status, delivery.error) == (DeliveryState.GIVEN_UP, None, "no answer")
        clock.advance(1e6)
        assert webhooks.take(10) == []

    def test_what_was_taken_and_not_settled_is_due_again(self, webhooks, webhook, clock):
        webhooks.test(webhook.id, OWNER)
        [late] = webhooks.take(10)
        clock.advance(TAKEN_S)
        [attempt] = webhooks.take(10)
        assert (attempt.delivery.id, attempt.delivery.attempts) == (late.delivery.id, 2)
        assert webhooks.settle(late, 500, "late") is None  # it is another's by now
        assert webhooks.settle(attempt, 200) is DeliveryState.DELIVERED
        assert webhooks.settle(attempt, 500, "again") is None
        assert deliveries(webhooks, webhook)[0].state is DeliveryState.DELIVERED

    def test_nothing_is_settled_of_what_is_gone(self, webhooks, webhook):
        webhooks.test(webhook.id, OWNER)
        [attempt] = webhooks.take(10)
        webhooks.delete(webhook.id, OWNER)
        assert webhooks.settle(attempt, 200) is None

    def test_one_of_each_webhook_the_oldest_first(self, webhooks, webhook, clock):
        other, _ = webhooks.create(URL, WEBHOOK_KINDS, "k2")
        first, second = (webhooks.test(webhook.id, OWNER).id for _ in range(2))
        clock.advance(1)
        third = webhooks.test(other.id, "k2").id
        [attempt] = webhooks.take(1)
        assert attempt.delivery.id == first
        assert [attempt.delivery.id for attempt in webhooks.take(10, [attempt])] == [third]
        assert [attempt.delivery.id for attempt in webhooks.take(10)] == [second]

    def test_an_owner_takes_no_others_turn(self, webhooks, clock):
        ids = [webhooks.create(URL, WEBHOOK_KINDS, OWNER)[0].id for _ in range(ATTEMPTS_OF_OWNER + 2)]
        first = [webhooks.test(name, OWNER).id for name in ids]
        clock.advance(1)
        others, _ = webhooks.create(URL, WEBHOOK_KINDS, "k2")
        third = webhooks.test(others.id, "k2").id
        under_way = webhooks.take(1)
        assert [attempt.delivery.id for attempt in under_way] == first[:1]
        under_way = [*under_way, *webhooks.take(1, under_way)]
        assert under_way[-1].delivery.id == third
        under_way += webhooks.take(MOST_WEBHOOKS, under_way)
        assert [attempt.delivery.id for attempt in under_way if attempt.owner == OWNER] == first[:ATTEMPTS_OF_OWNER]
        assert webhooks.take(MOST_WEBHOOKS, under_way) == []
        webhooks.settle(under_way.pop(0), 200)
        [attempt] = webhooks.take(MOST_WEBHOOKS, under_way)
        assert attempt.delivery.id == first[ATTEMPTS_OF_OWNER]

    def test_several_processes_take_each_once(self, shared_url, samples):
        with open_store(shared_url) as store:
            own(store, *(f"k{number}" for number in range(8)))
            for number in range(8):
                webhook, _ = store.webhooks.create(URL, WEBHOOK_KINDS, f"k{number}")
                for _ in range(3):
                    store.webhooks.test(webhook.id, webhook.owner)

            def work(_):
                with open_store(shared_url) as own:
                    return [a.delivery.id for take in iter(partial(own.webhooks.take, 2), []) for a in take]

            taken = [name for names in in_threads(work, 4) for name in names]
            taken += [a.delivery.id for take in iter(partial(store.webhooks.take, 9), []) for a in take]
            assert len(taken) == len(set(taken)) == 24

    def test_a_killed_process_loses_nothing(self, shared_url):
        with open_store(shared_url) as store:
            own(store, OWNER)
            webhook, _ = store.webhooks.create(URL, WEBHOOK_KINDS, OWNER)
            queued = store.webhooks.test(webhook.id, OWNER)
            command = [sys.executable, "-c", TAKER, shared_url]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None and process.stdout.readline() == f"{queued.id}\n"
                process.kill()
            assert store.webhooks.take(1) == []
            due_at = store.webhooks.deliveries(webhook.id, OWNER)[0].due_at
            assert due_at is not None
            store.database.clock = lambda: due_at
            [attempt] = store.webhooks.take(1)
            assert (attempt.delivery.id, attempt.delivery.attempts) == (queued.id, 2)

    def test_of_what_is_over_the_newest_are_kept(self, webhooks, webhook, monkeypatch):
        monkeypatch.setattr(webhooks_module, "DELIVERIES_KEPT", 2)
        ids = [webhooks.test(webhook.id, OWNER).id for _ in range(5)]
        for _ in ids[:4]:
            [attempt] = webhooks.take(1)
            webhooks.settle(attempt, 200)
        assert [delivery.id for delivery in deliveries(webhooks, webhook)] == ids[:2:-1]
