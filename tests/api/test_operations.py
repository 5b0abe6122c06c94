"""Health, metrics, logs, and a database that goes away."""

import io
import json
import logging
import platform
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event

from tunewright.api.http.logs import configure
from tunewright.api.http.metrics import FRESH_S, TrialCounts
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.db import exchange
from tunewright.db.errors import StoreError, Unreachable
from tunewright.db.fleet import TunerDevice
from tunewright.db.snapshot import NewSnapshot
from tunewright.db.store import open_store
from tunewright.db.tables import TrialRow
from tunewright.db.translate import measurement_values
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule

from ..waiting import wait_for


def numbers(client):
    """(name, labels) -> value."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics(one, client, kit):
    model = kit.send(client, 8)
    kit.send(client, 8)
    client.post("/v1/jobs", json={"model": model})
    client.get("/v1/jobs/1")
    client.get("/v1/jobs/1/nothing")
    soon = datetime.now(UTC) + timedelta(hours=1)
    one.store.fleet.report(
        "t1", [TunerDevice("d1", kit.target().key), TunerDevice("d2", kit.target().key, soon, "fails")], 1
    )
    found = numbers(client)
    assert found["tunewright_http_requests_total", "/v1/jobs/{job_id}", "200", "GET"] == 1
    assert found["tunewright_http_requests_total", "404", "GET", "unmatched"] == 1
    assert found["tunewright_http_request_seconds_count", "/v1/models/{sha256}", "PUT"] == 2
    assert (found["tunewright_uploads_total", "new"], found["tunewright_uploads_total", "known"]) == (1, 1)
    assert found["tunewright_upload_bytes_total",] == 6
    assert (found["tunewright_jobs", "queued"], found["tunewright_jobs", "failed"]) == (1, 0)
    assert found["tunewright_queue_oldest_seconds",] >= 0
    assert (found["tunewright_tuners", "busy"], found["tunewright_tuners", "idle"]) == (1, 0)
    assert (found["tunewright_devices",], found["tunewright_devices_quarantined",]) == (2, 1)
    assert found["tunewright_event_streams",] == 0
    assert found["tunewright_database_up",] == 1


def test_how_good_the_cost_model_is(one, client):
    figures = {"pairwise": 0.9, "peak_1": 0.95, "peak_5": None, "tasks": 4}
    metrics = {"held_out": figures, "below": {"pairwise": 0.8}}
    one.store.add_target(Target.of_gpu(KNOWN["sm_90a"]))
    one.store.snapshots.keep(NewSnapshot("cpu", "f", b"old", 10, 10, {}))
    one.store.snapshots.keep(NewSnapshot("cpu", "f", b"new", 10, 10, metrics))
    one.store.snapshots.keep(NewSnapshot("cuda", "f", b"of GPUs", 10, 10, {"held_out": {"pairwise": 0.7}}))
    found = {key: value for key, value in numbers(client).items() if key[0] == "tunewright_cost_model_quality"}
    assert found == {
        ("tunewright_cost_model_quality", "cpu", "pairwise", "snapshot"): 0.9,
        ("tunewright_cost_model_quality", "cpu", "peak_1", "snapshot"): 0.95,
        ("tunewright_cost_model_quality", "below", "cpu", "pairwise"): 0.8,
        ("tunewright_cost_model_quality", "cuda", "pairwise", "snapshot"): 0.7,
    }


def test_metrics_ask_the_database_seldom(one, client, monkeypatch):
    counts = Mock(side_effect=one.store.jobs.counts)
    monkeypatch.setattr(one.store.jobs, "counts", counts)
    for _ in range(5):
        numbers(client)
    assert counts.call_count == 1
    assert FRESH_S >= 10


@pytest.fixture
def add(url, kit):
    """A new database of each kind; `add(status, *ids)` stores trials in it under ids of their own."""
    with open_store(url) as store:
        store.add_task(kit.task())
        store.add_target(kit.target())

        def trials(status, *ids):
            with store.database.write() as session:
                for trial_id in ids:
                    schedule = Schedule("tiled", 1, (("n", trial_id),))
                    record = Record(kit.task().key, kit.target().key, schedule, Measurement(status))
                    session.add(TrialRow(id=trial_id, **measurement_values(record, datetime.now(UTC))))

        yield Mock(side_effect=trials, store=store)


def test_trials_are_counted_by_ranges_of_ids(add):
    assert (add.store.newest_trial(), add.store.statuses()) == (0, {})
    add(Status.CRASH, 1, 2, 3)
    add(Status.TIMEOUT, 4, 7)
    assert add.store.newest_trial() == 7
    assert add.store.statuses() == {Status.CRASH: 3, Status.TIMEOUT: 2}
    assert add.store.statuses(after=2) == {Status.CRASH: 1, Status.TIMEOUT: 2}
    assert add.store.statuses(after=2, through=4) == {Status.CRASH: 1, Status.TIMEOUT: 1}
    assert add.store.statuses(through=3) == {Status.CRASH: 3}
    assert add.store.statuses(after=7) == {}


def test_old_trials_are_counted_once(add, monkeypatch):
    monkeypatch.setattr("tunewright.api.http.metrics.UNSETTLED", 10)
    counts = TrialCounts(add.store)
    assert counts.read() == {}
    add(Status.CRASH, *range(1, 101))
    assert counts.read() == {Status.CRASH: 100}
    add(Status.TIMEOUT, 103)
    asked = Mock(side_effect=add.store.statuses)
    monkeypatch.setattr(add.store, "statuses", asked)
    assert counts.read() == {Status.CRASH: 100, Status.TIMEOUT: 1}
    assert [call.args for call in asked.call_args_list] == [(90, 93), (93,)]
    add(Status.CRASH, 101)  # of a transaction that commits after the one before it
    assert counts.read() == {Status.CRASH: 101, Status.TIMEOUT: 1}
    add(Status.CRASH, *range(200, 300))
    assert counts.read() == TrialCounts(add.store).read() == {Status.CRASH: 201, Status.TIMEOUT: 1}


def test_counts_follow_what_is_taken_back_and_what_gives_way(add, kit, monkeypatch):
    """All of that changes trials that were counted long ago."""
    monkeypatch.setattr("tunewright.api.http.metrics.UNSETTLED", 2)
    store, key = add.store, (kit.task().key, kit.target().key)
    imported = default_schedule(kit.task(), kit.target())
    record = Record(*key, imported, Measurement(Status.CRASH))
    line = exchange.to_json(kit.task().to_json(), kit.target().to_json(), record, datetime(2025, 3, 1, tzinfo=UTC))
    assert store.import_([json.dumps(line)]).added == 1
    add(Status.TIMEOUT, *range(11, 20))
    counts = TrialCounts(store)
    assert counts.read() == {Status.CRASH: 1, Status.TIMEOUT: 9}
    of_old = Schedule("tiled", 1, (("n", 12),)).key
    store.voids.void(*key, of_old, "noisy")
    assert counts.read() == {Status.CRASH: 1, Status.TIMEOUT: 8, Status.VOIDED: 1}
    store.voids.lift(*key, of_old)
    assert counts.read() == {Status.CRASH: 1, Status.TIMEOUT: 9}
    assert store.record(Record(*key, imported, Measurement(Status.WRONG_RESULT)))
    assert counts.read() == {Status.WRONG_RESULT: 1, Status.TIMEOUT: 9}
    later = line | {"created_at": datetime(2025, 3, 2, tzinfo=UTC).isoformat()}
    assert store.import_([json.dumps(later)]).added == 1  # beside the trial
    assert counts.read() == TrialCounts(store).read() == {Status.WRONG_RESULT: 1, Status.TIMEOUT: 9}


def test_counts_survive_a_database_that_is_away(add, monkeypatch):
    monkeypatch.setattr("tunewright.api.http.metrics.UNSETTLED", 10)
    counts = TrialCounts(add.store)
    add(Status.CRASH, *range(1, 101))
    with monkeypatch.context() as patch:
        patch.setattr(add.store, "statuses", Mock(side_effect=[{Status.CRASH: 90}, Unreachable("away")]))
        with pytest.raises(Unreachable):
            counts.read()
    assert counts.read() == {Status.CRASH: 100}


def test_labels_are_bounded(one, client):
    for number in range(30):
        client.get(f"/v1/nothing{number}")
        client.get(f"/v1/jobs/{10**6 + number}")
    routes = {key[-1] for key in numbers(client) if key[0] == "tunewright_http_requests_total"}
    assert len({key for key in numbers(client) if key[0] == "tunewright_http_requests_total"}) < 8, routes


def test_a_database_that_is_away(one, client, kit, monkeypatch):
    monkeypatch.setattr("tunewright.api.http.health.FRESH_S", 0.0)
    monkeypatch.setattr("tunewright.api.http.access.TRUST_S", 0.0)
    health = one.client(token="")
    assert health.get("/readyz").json()["status"] == "ready"
    engine = one.store.database.engine
    with monkeypatch.context() as patch:

        def refuse(*_, **__):
            raise Unreachable("postgresql://user@db.internal/tunewright: connection refused")

        patch.setattr(engine, "connect", refuse)
        patch.setattr(one.store.database, "read", refuse)
        patch.setattr(one.store.database, "write", refuse)
        answer = client.get("/v1/jobs")
        assert answer.headers["retry-after"] == "5"
        kit.problem(answer, "database-unavailable", 503)
        assert "db.internal" not in answer.text
        kit.problem(client.post("/v1/jobs/1:cancel"), "database-unavailable", 503)
        assert health.get("/readyz").status_code == 503
        assert health.get("/readyz").json() == {"status": "database unavailable", "tuners": None, "devices": None}
        assert health.get("/livez").status_code == 200
    assert client.get("/v1/jobs").status_code == 200
    assert health.get("/readyz").status_code == 200


def test_a_disk_that_is_full(one, client, kit, monkeypatch):
    monkeypatch.setattr("tunewright.api.http.health.FRESH_S", 0.0)
    health, engine = one.client(token=""), one.store.database.engine
    limit = 1

    @event.listens_for(engine, "begin")
    def bound(connection):  # SQLite takes no limit below what is there
        connection.exec_driver_sql(f"PRAGMA max_page_count={limit}")

    data = json.dumps([*range(8, 20_000)]).encode()
    answer = client.post("/v1/models", content=data)
    kit.problem(answer, "database-unwritable", 503)
    assert answer.json()["detail"] == "nothing was stored: disk full"
    assert "retry-after" in answer.headers
    assert (health.get("/readyz").status_code, health.get("/readyz").json()["status"]) == (503, "disk full")
    assert client.get("/v1/jobs").status_code == 200
    limit = 1 << 20
    assert health.get("/readyz").json()["status"] == "ready"
    assert client.post("/v1/models", content=data).status_code == 201


@pytest.mark.postgres
def test_a_server_that_is_cut_off_and_comes_back(serve, postgres_url, kit):
    """Connections that PostgreSQL ended are made anew, and nobody has to restart the service."""
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("CREATE SCHEMA IF NOT EXISTS cut")
        with serve(url=f"{postgres_url}&options=-csearch_path%3Dcut") as one:
            client = one.client()
            assert client.get("/v1/jobs").status_code == 200
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            wait_for(lambda: client.get("/v1/jobs").status_code == 200)
            assert one.client(token="").get("/readyz").status_code == 200
        server.execute("SET client_min_messages = warning; DROP SCHEMA cut CASCADE")


def test_a_schema_of_another_version(one, monkeypatch):
    monkeypatch.setattr("tunewright.api.http.health.FRESH_S", 0.0)
    monkeypatch.setattr("tunewright.db.store.HEAD", "9999")
    answer = one.client(token="").get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "other schema")


def test_readiness_tells_what_there_is_to_tune_on(one, kit, monkeypatch):
    """Without a device the process is ready still: it answers lookups and queues jobs."""
    monkeypatch.setattr("tunewright.api.http.health.FRESH_S", 0.0)
    health = one.client(token="")

    def told():
        answer = health.get("/readyz")
        assert answer.status_code == 200
        return tuple(answer.json().values())

    assert told() == ("ready", 1, 1)
    one.store.fleet.leave("t1")
    assert told() == ("ready, no devices", 0, 0)
    one.store.add_target(kit.target())
    one.store.fleet.enlist("t1", "host", 1, "0", "ray")
    one.store.fleet.report("t1", [])
    assert told() == ("ready, no devices", 1, 0)
    soon = datetime.now(UTC) + timedelta(hours=1)
    resting = TunerDevice("d2", kit.target().key, soon, "fails")
    one.store.fleet.report("t1", [resting])
    assert told() == ("ready, no devices", 1, 0)
    one.store.fleet.report("t1", [resting, TunerDevice("d1", kit.target().key)])
    assert told() == ("ready", 1, 1)
    one.store.fleet.report("t1", [TunerDevice("d1", kit.target().key)], draining=True)
    assert told() == ("ready, no devices", 1, 0)
    ended = subprocess.Popen(["true"])
    ended.wait()
    one.store.fleet.enlist("t2", platform.node(), ended.pid, "0", "ray")
    one.store.fleet.report("t2", [TunerDevice("d3", kit.target().key)])
    assert told() == ("ready, no devices", 1, 0)


def test_an_event_loop_that_is_held_up(serve, monkeypatch):
    monkeypatch.setattr("tunewright.api.http.health.LOOK_S", 600.0)  # it does not look again
    with serve() as one:
        client, health = one.client(token=""), one.service.health
        assert client.get("/livez").json() == {"status": "ok", "loop_lag_ms": 0.0}
        health.lag_s = 60.0
        answer = client.get("/livez")
        assert (answer.status_code, answer.json()) == (503, {"status": "late", "loop_lag_ms": 60_000.0})
        health.lag_s = 0.0
        assert not health.is_late
        health._looked_at_s -= 660.0
        assert health.is_late


def test_a_fault_of_the_service(one, client, kit, monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(one.store.jobs, "get", broken)
    answer = client.get("/v1/jobs/1", headers={"X-Request-ID": "the-request"})
    kit.problem(answer, "internal", 500)
    assert answer.json()["request_id"] == "the-request"
    assert "secret" not in answer.text
    assert client.get("/v1/jobs").status_code == 200


def test_other_errors_of_the_database(one, client, kit, monkeypatch):
    def locked(*_, **__):
        raise StoreError("sqlite:////home/me/tuning.db: database is locked")

    monkeypatch.setattr(one.store.jobs, "get", locked)
    answer = client.get("/v1/jobs/1")
    kit.problem(answer, "database-unavailable", 503)
    assert "/home/me" not in answer.text


def test_a_row_that_can_not_be_read(one, client, kit, caplog):
    kit.enlist(one.store, kit.target())
    job_id = client.post("/v1/jobs", json={"model": kit.send(client, 8)}).json()["id"]
    with one.store.database.write_core() as connection:
        connection.exec_driver_sql("UPDATE jobs SET settings = '{AAAA'")
    answer = client.get(f"/v1/jobs/{job_id}")
    kit.problem(answer, "database-unavailable", 503)
    assert "damaged" in answer.text and "JSON" not in answer.text


class Lines:
    """What was logged."""

    def __init__(self, file):
        self._file = file

    def text(self):
        return self._file.getvalue()

    def __call__(self):
        return [json.loads(line) for line in self.text().splitlines()]


@pytest.fixture
def lines(monkeypatch):
    """Log as the service does, and give what was logged."""
    root, named = logging.getLogger(), [logging.getLogger(name) for name in ("tunewright", "uvicorn")]
    handlers, levels = root.handlers[:], [logger.level for logger in (root, *named)]
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    configure()
    yield Lines(file)
    root.handlers[:] = handlers
    for logger, level in zip((root, *named), levels, strict=True):
        logger.setLevel(level)


def test_log_lines(lines, serve, kit):
    with serve() as one:
        client = one.client(headers={"X-Request-ID": "the-request"})
        client.get("/v1/jobs/7", params={"secret": one.token})
        client.get("/v1/x%1b[31m%0a%00%e2%80%ae" + one.token)
        client.get("/metrics")
    told = [line for line in lines() if line["event"] == "request"]
    first, second = told[0], told[1]
    assert (first["path"], first["status"], first["request_id"]) == ("/v1/jobs/7", 422, "the-request")
    assert first["key_id"] == one.token.split("_")[1]
    assert second["path"].startswith("/v1/x\x1b[31m\n\x00\u202etw_")
    assert len(told) == 2  # what Prometheus asks every few seconds is not worth a line
    assert one.token not in str(lines())
    assert all({"timestamp", "level", "logger"} <= set(line) for line in lines())


def test_logs_hide_secrets_and_control_characters(lines):
    secret = "A" * 43
    log = logging.getLogger("tunewright.api")
    key = f"tw_abcdefghijkl_{secret}"
    log.warning("key %s\x1b[2J\u2028", key, extra={"nested": {"keys": [key]}})
    try:
        raise ValueError(f"tw_abcdefghijkl_{secret}")
    except ValueError:
        log.exception("failed")
    raw = lines.text()
    assert secret not in raw
    assert raw.count("\n") == 2
    assert raw.isascii()
    assert not set(raw) & set(map(chr, range(32))) - {"\n"}
    assert "Traceback" in lines()[1]["exception"]


def test_health_answers_while_all_threads_wait(one, client, monkeypatch):
    """Health has no need of the threads that requests run in."""
    go, begun = threading.Event(), []

    def wait(job_id):
        begun.append(job_id)
        return go.wait(60)

    monkeypatch.setattr("tunewright.api.http.health.FRESH_S", 0.0)
    monkeypatch.setattr(one.store.jobs, "get", wait)
    threads = [threading.Thread(target=one.client().get, args=("/v1/jobs/1",)) for _ in range(45)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(begun) == 40)  # all the threads there are
    health = one.client(token="")
    started_s = time.monotonic()
    assert health.get("/livez").status_code == 200
    assert health.get("/readyz").status_code == 200
    assert time.monotonic() - started_s < 30
    go.set()
    for thread in threads:
        thread.join(60)
