"""What there is to know of the queue and the fleet, found without a change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import update

from tunewright.db import inspection
from tunewright.db.fleet import TunerDevice
from tunewright.db.inspection import ServiceState
from tunewright.db.job import SearchBudget
from tunewright.db.store import open_store
from tunewright.db.tables import JobRow


def test_an_idle_database(shared_url, look):
    open_store(shared_url).close()
    work = look(shared_url).work
    assert work == ServiceState(work.clock_ahead_s)
    assert abs(work.clock_ahead_s) < 1


def test_queued_and_lost_jobs(shared_url, look, samples):
    with open_store(shared_url) as store:
        samples.fill(store)
        for number in range(3):
            store.jobs.submit(samples.spec(number), "m", SearchBudget(1))
        store.jobs.open(samples.spec(7), "m", SearchBudget(1), "h")
        store.jobs.lease([samples.target(2).key], "h", 60)
        work = look(shared_url).work
        assert (work.queued, work.lost, work.tuners) == (2, 0, 0)
        with store.database.write() as session:
            past = datetime.now(UTC) - timedelta(hours=1)
            session.execute(update(JobRow).where(JobRow.state == "running").values(leased_until=past))
        assert look(shared_url).work.lost == 2


def test_devices_in_quarantine(shared_url, look, samples):
    until = datetime.now(UTC) + timedelta(hours=1)
    bad = TunerDevice("m1: cpu", samples.target().key, until, "the canary failed")
    good = TunerDevice("m2: cpu", samples.target().key, datetime.now(UTC) - timedelta(hours=1), "earlier")
    with open_store(shared_url) as store:
        for name in ("t1", "t2"):
            store.fleet.enlist(name, "h", 1, "0.1", "local")
            store.fleet.report(name, [bad, good])
    work = look(shared_url).work
    assert work.tuners == 2
    assert work.quarantined == (bad,)


def test_an_older_schema_tells_nothing_of_it(shared_url, look):
    with open_store(shared_url) as store, store.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    assert look(shared_url).work is None


def test_a_large_database_is_checked_in_part(make_url, look, samples, monkeypatch):
    url = make_url("sqlite")
    with open_store(url) as store:
        samples.fill(store)
        for number in range(50):
            store.record(samples.record(number))
    assert look(url).is_checked
    monkeypatch.setattr(inspection, "LONGEST_CHECK_S", 0.0)
    monkeypatch.setattr(inspection, "STEPS_BETWEEN_LOOKS", 1)
    result = look(url)
    assert (result.is_checked, result.damage) == (False, "")
    assert result.counts["trials"] == 50
