"""Backups hold all that a database holds, wherever they come from and go to."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select

from tunewright.db.access import KeyScope
from tunewright.db.backup import TRANSIENT_TABLES, backup, interruptible, restore
from tunewright.db.digests import DIGESTS, store_digests
from tunewright.db.engine import make_engine, parse_url
from tunewright.db.errors import StoreError
from tunewright.db.job import EventKind, JobState, LeaseLost, NewEvent, SearchBudget
from tunewright.db.reader import NoDatabase
from tunewright.db.schema import HEAD, METADATA
from tunewright.db.snapshot import MAX_CONTENTS, NewSnapshot
from tunewright.db.store import open_store
from tunewright.db.webhooks import WEBHOOK_KINDS, DeliveryState
from tunewright.search_space.measurement import Measurement, Status

from .conftest import FROZEN, SHARED_DATABASES

FAILED = Measurement(Status.WRONG_RESULT, max_rel_err=float("inf"), error="off")


def fill(store, samples):
    """Something of everything; two jobs are being worked on, an attached one and another."""
    samples.fill(store)
    key, token = store.keys.create("farm '; --", (KeyScope.JOBS_READ,))
    _, link = store.keys.create("link", (KeyScope.LOGIN,), 60)
    spec = samples.spec()
    attached = store.jobs.open(spec, "here.onnx", SearchBudget(5), "shell")
    submitted = store.jobs.submit(samples.spec(1), "there.onnx", SearchBudget(10, 60.0), priority=3, owner=key.id)
    lease = store.jobs.lease([spec.target_key], "tuner")
    assert lease.job_id == submitted.job.id
    for number in range(5):
        store.record(
            samples.record(number), attached if number % 2 else lease, [NewEvent(EventKind.IMPROVED, {"n": 1})]
        )
    store.record(samples.record(7, FAILED))
    store.confirm(samples.record(2), lease)
    store.import_([json.dumps({**line, "created_at": "2025-01-01T00:00:00+00:00"}) for line in store.export()])
    data = b"\0\xff" * 600_000
    sha256 = hashlib.sha256(data).hexdigest()
    store.uploads.add(sha256, [data], label="m", with_weights=True, description={"inputs": []}, owner=key.id)
    store.fleet.enlist("t1", "host", 1, "0.1", "local")
    for number in range(MAX_CONTENTS + 1):
        content = b"\0\xff%d" % number
        store.snapshots.keep(NewSnapshot("cpu", "1", content, 5, number, {"pairwise": 0.9}, None, lease.job_id))
    return attached, lease, token, link


def rows(store, without=()):
    """Everything in every table, as the models read it."""
    rows_by_table = {}
    with store.database.read() as session:
        for table in METADATA.sorted_tables:
            if table not in TRANSIENT_TABLES and table.name not in without:
                query = select(table).order_by(*table.primary_key)
                rows_by_table[table.name] = [
                    tuple(row) for row in session.execute(query) if not getattr(row, "is_passing", False)
                ]
    return rows_by_table


@pytest.fixture(params=SHARED_DATABASES)
def kind(request):
    return request.param


def test_a_backup_restores_everything(kind, make_url, samples, tmp_path):
    with open_store(make_url(kind)) as store:
        attached, lease, token, link = fill(store, samples)
        contents = backup(str_url(store), tmp_path / "b.sqlite")
        assert contents.revision == HEAD
        assert contents.counts["keys"] == 1
        assert contents.counts["repeats"] > 0
        assert contents.counts["cost_models"] == MAX_CONTENTS + 1
        assert contents.size_bytes == (tmp_path / "b.sqlite").stat().st_size
        jobs = ("jobs", "job_events")
        for other in ("sqlite", kind):
            url = make_url(other)
            restored = restore(tmp_path / "b.sqlite", url)
            assert restored.counts == contents.counts
            with open_store(url) as copy:
                assert rows(copy, jobs) == rows(store, jobs)
                check_jobs(copy, store, attached, lease)
                assert copy.keys.check(token) is not None
                assert [key.name for key in copy.keys.list()] == ["farm '; --"]
                assert copy.keys.check(link) is None
                assert copy.fleet.tuners() == []
                assert copy.snapshots.newest("cpu", "1") == store.snapshots.newest("cpu", "1")


def test_what_waits_to_be_told_to_webhooks_is_given_up(kind, make_url, tmp_path):
    with open_store(make_url("sqlite")) as store:
        key, _ = store.keys.create("n", [KeyScope.JOBS_WRITE])
        webhook, _ = store.webhooks.create("https://hooks.example.org/", WEBHOOK_KINDS, key.id)
        for _ in range(3):
            store.webhooks.test(webhook.id, key.id)
        for answer in (200, 500):
            [attempt] = store.webhooks.take(1)
            store.webhooks.settle(attempt, answer, "" if answer == 200 else "it was answered with 500")
        backup(str_url(store), tmp_path / "b.sqlite")
        assert store.webhooks.take(1)
    url = make_url(kind)
    restore(tmp_path / "b.sqlite", url)
    with open_store(url) as copy:
        assert copy.webhooks.list(key.id) == [webhook]
        why = "it waited in a backup that was restored"
        assert [(told.state, told.error) for told in copy.webhooks.deliveries(webhook.id, key.id)] == [
            (DeliveryState.GIVEN_UP, why),
            (DeliveryState.GIVEN_UP, why),
            (DeliveryState.DELIVERED, ""),
        ]
        assert copy.webhooks.take(3) == []


def check_jobs(copy, store, attached, lease):
    assert copy.jobs.get(attached.job_id).state is JobState.PAUSED
    queued = copy.jobs.get(lease.job_id)
    assert (queued.state, queued.holder, queued.attempts, queued.priority) == (JobState.QUEUED, "", 0, 3)
    for old in (attached, lease):
        before = store.jobs.events(old.job_id)
        assert copy.jobs.events(old.job_id)[: len(before)] == before
        with pytest.raises(LeaseLost):
            copy.jobs.renew(old)
    assert copy.jobs.lease([queued.spec.target_key], "another").job_id == lease.job_id


def str_url(store):
    return store.database.engine.url.render_as_string(hide_password=False)


@pytest.mark.slow
def test_there_and_back_again(make_url, samples, tmp_path, kind):
    """SQLite to the other kind and back."""
    first, second, third = make_url("sqlite"), make_url(kind), make_url("sqlite")
    with open_store(first) as store:
        fill(store, samples)
        lines = list(store.export())
        key = samples.task().key, samples.target().key
        best = store.best(*key)
    for number, (source, target) in enumerate([(first, second), (second, third)]):
        backup(source, tmp_path / f"{number}.sqlite")
        restore(tmp_path / f"{number}.sqlite", target)
    with open_store(third) as store:
        assert list(store.export()) == lines
        assert store.best(*key) == best
        assert store.best_many([key[0]], key[1]) == {key[0]: best}


def test_new_rows_get_new_ids(kind, make_url, samples, tmp_path):
    with open_store(make_url("sqlite")) as store:
        fill(store, samples)
        backup(str_url(store), tmp_path / "b.sqlite")
        last = max(job.id for job in store.jobs.list())
    url = make_url(kind)
    restore(tmp_path / "b.sqlite", url)
    with open_store(url) as store:
        submitted = store.jobs.submit(samples.spec(2), "new", SearchBudget(1))
        assert submitted.job.id == last + 1
        before = len(list(store.export()))
        assert store.record(samples.record(50))
        store.confirm(samples.record(50))
        assert len(list(store.export())) == before + 2


def test_only_the_owner_may_read_it(make_url, samples, tmp_path):
    url = make_url("sqlite")
    open_store(url).close()
    before = os.umask(0)
    try:
        backup(url, tmp_path / "b.sqlite")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "b.sqlite").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.glob("*b.sqlite*")] == ["b.sqlite"]
    with closing(sqlite3.connect(tmp_path / "b.sqlite")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


CHANGES = {
    "trials": "UPDATE trials SET median_s = median_s * 2 WHERE id = 3",
    "confirmations": "DELETE FROM confirmations",
    "targets": "INSERT INTO targets SELECT 'k', kind, data FROM targets LIMIT 1",
    "jobs": "UPDATE jobs SET budget = CAST(budget AS BLOB)",  # the same bytes, of another type
    "upload_pieces": "UPDATE upload_pieces SET data = zeroblob(length(data))",
    "api_keys": "UPDATE api_keys SET scopes = '[\"records:void\"]'",
    "alembic_version": "UPDATE alembic_version SET version_num = '0005'",
    "voids": "DELETE FROM backup_digests WHERE name = 'voids'",
    "songs": "CREATE TABLE songs (name TEXT)",
}
"""Changes that SQLite's own check takes for good, by the table that is not what it was."""


@pytest.mark.parametrize("table", CHANGES)
def test_a_row_that_was_changed_is_seen(file_url, tmp_path, table):
    file, new = tmp_path / "b.sqlite", tmp_path / "new.db"
    backup(file_url, file)
    edit(file, CHANGES[table])
    said_of_it = said(lambda: restore(file, f"sqlite:///{new}"))
    assert said_of_it.startswith(f"{str(file)!r} is damaged: its table {table} is not what was backed up")
    assert said_of_it.endswith("; nothing was restored, so restore another copy of it")
    assert not new.exists()
    backup(f"sqlite:///{file}", tmp_path / "as it is.sqlite")  # with digests of its own
    if table != "alembic_version":
        assert restore(tmp_path / "as it is.sqlite", f"sqlite:///{new}").has_digests


def edit(path, statement):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_a_bit_that_rots_in_a_row_is_seen(file_url, tmp_path):
    file = tmp_path / "b.sqlite"
    backup(file_url, file)
    data = file.read_bytes()
    for rotten in (b"Relv", b"Rel\xff"):  # another letter, and what is no text
        file.write_bytes(data.replace(b"Relu", rotten))
        text = said(lambda: restore(file, f"sqlite:///{tmp_path}/new.db"))
        assert text.startswith(f"{str(file)!r} is damaged: its table tasks ")
        assert not (tmp_path / "new.db").exists()


def test_a_file_that_was_cut_is_seen(file_url, tmp_path):
    file = tmp_path / "b.sqlite"
    backup(file_url, file)
    os.truncate(file, file.stat().st_size // 2)
    text = said(lambda: restore(file, f"sqlite:///{tmp_path}/new.db"))
    assert text.startswith(f"{str(file)!r} is damaged: ") and text.endswith("restore another copy of it")


def test_it_is_told_from_damage_of_what_is_filled(file_url, make_url, tmp_path):
    backup(file_url, tmp_path / "b.sqlite")
    url = make_url("sqlite")
    backup(file_url, Path(url.removeprefix("sqlite:///")))
    os.truncate(url.removeprefix("sqlite:///"), 50_000)
    text = said(lambda: restore(tmp_path / "b.sqlite", url))
    assert text.startswith(f"{url} is damaged: ") and "another copy" not in text


def test_the_same_rows_in_other_pages_are_good(file_url, tmp_path):
    backup(file_url, tmp_path / "b.sqlite")
    for statement in ("DELETE FROM voids", "PRAGMA page_size = 8192", "VACUUM"):
        with closing(sqlite3.connect(tmp_path / "b.sqlite", isolation_level=None)) as connection:
            connection.execute(statement)
    assert restore(tmp_path / "b.sqlite", f"sqlite:///{tmp_path}/new.db").has_digests


def test_digests_of_later_versions_are_the_same(tmp_path):
    """Else no backup could be restored by another version."""
    engine = make_engine(parse_url(f"sqlite:///{tmp_path}/t.sqlite"), wait_s=1)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (a TEXT, b)")
        rows = [
            ("x\u00e4\U0001f600\u0378'\"\n\\", None),
            ("", b"\0\xff'"),
            ("1", 1),
            ("1", 1.0),
            ("1", -1e300),
            ("1", 0.1),
        ]
        connection.exec_driver_sql("INSERT INTO t VALUES (?, ?)", rows)
        store_digests(connection, "", lambda _: None)
        stored = connection.execute(select(DIGESTS)).all()
    engine.dispose()
    text = r"""['a', 'b']('x\xe4\U0001f600\u0378\'"\n\\', None)('', b"\x00\xff'")('1', 1)('1', 1.0)('1', -1e+300)"""
    assert stored == [("t", hashlib.sha256(f"{text}('1', 0.1)".encode()).hexdigest())]


def without_digests(url, path):
    """A backup as early versions made it."""
    backup(url, path)
    edit(path, "DROP TABLE backup_digests")


def test_a_backup_without_digests_is_restored(file_url, tmp_path):
    without_digests(file_url, tmp_path / "b.sqlite")
    restored = restore(tmp_path / "b.sqlite", f"sqlite:///{tmp_path}/new.db")
    assert not restored.has_digests and restored.counts["trials"] == 6


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE trials SET schedule = '{\"a'", "a row of its table trials can't be read: its schedule is not what"),
        ("UPDATE trials SET created_at = 'monday'", "a row of its table trials can't be read: its created_at is not"),
        ("UPDATE trials SET median_s = 'soon'", "its table trials can't be copied: "),
        ("UPDATE trials SET provenance = '{\"a\": Infinity}'", "its table trials can't be copied: "),
    ],
)
def test_rows_that_cannot_be_read_are_seen_without_digests(file_url, tmp_path, statement, fault):
    file = tmp_path / "b.sqlite"
    without_digests(file_url, file)
    edit(file, statement)
    text = said(lambda: restore(file, f"sqlite:///{tmp_path}/new.db"))
    assert text.startswith(f"{str(file)!r} is damaged: {fault}")
    with open_store(f"sqlite:///{tmp_path}/new.db") as store:
        assert set(store.counts().values()) == {0}


def test_what_is_no_text_is_seen_without_digests(file_url, tmp_path):
    file = tmp_path / "b.sqlite"
    without_digests(file_url, file)
    edit(file, "UPDATE trials SET error = CAST(x'ff' AS TEXT)")
    text = said(lambda: restore(file, f"sqlite:///{tmp_path}/new.db"))
    assert text.startswith(f"{str(file)!r} is damaged: Could not decode") and text.endswith("another copy of it")


def test_what_no_server_keeps_is_seen_without_digests(file_url, make_url, tmp_path, request):
    request.getfixturevalue("postgres_url")
    without_digests(file_url, tmp_path / "b.sqlite")
    edit(tmp_path / "b.sqlite", "UPDATE trials SET error = 'a' || char(0) || 'b'")
    assert "its table trials can't be copied: " in said(lambda: restore(tmp_path / "b.sqlite", make_url("postgres")))


def test_a_backup_that_is_to_be_filled_stays_one(file_url, tmp_path):
    for name in ("b", "c"):
        backup(file_url, tmp_path / f"{name}.sqlite")
    before = (tmp_path / "c.sqlite").read_bytes()
    assert "in use: it holds" in said(lambda: restore(tmp_path / "b.sqlite", f"sqlite:///{tmp_path}/c.sqlite"))
    assert (tmp_path / "c.sqlite").read_bytes() == before
    assert restore(tmp_path / "c.sqlite", f"sqlite:///{tmp_path}/new.db").has_digests


def test_long_work_says_what_it_does(kind, make_url, samples, tmp_path):
    said_of_it: list[str] = []
    with open_store(make_url(kind)) as store:
        fill(store, samples)
        backup(str_url(store), tmp_path / "b.sqlite", watch=said_of_it.append)
    assert said_of_it[0].startswith("copying") and "checking trials, row 0" in said_of_it
    said_of_it.clear()
    restore(tmp_path / "b.sqlite", make_url(kind), watch=said_of_it.append)
    assert said_of_it[0] == "checking" and said_of_it[-1].startswith("copying")
    assert said_of_it.index("checking trials, row 0") < said_of_it.index("copying trials, row 0")


def test_an_interrupt_ends_a_statement_without_end(tmp_path):
    """Between two steps of SQLite's machine; nothing else would end it."""
    engine = make_engine(parse_url(f"sqlite:///{tmp_path}/t.sqlite"), wait_s=1)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    try:
        with engine.connect() as connection, pytest.raises(KeyboardInterrupt), interruptible(connection):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            connection.exec_driver_sql(endless)
    finally:
        signal.signal(signal.SIGALRM, before)
        engine.dispose()


def test_links_are_nowhere_in_the_file(kind, make_url, tmp_path):
    with open_store(make_url(kind)) as store:
        store.keys.create("open sesame", (KeyScope.LOGIN,), 60)
        backup(str_url(store), tmp_path / "b.sqlite")
    assert b"open sesame" not in (tmp_path / "b.sqlite").read_bytes()


def test_nothing_is_overwritten(kind, make_url, samples, tmp_path):
    url = make_url(kind)
    with open_store(url) as store:
        fill(store, samples)
        before = rows(store)
        (tmp_path / "b.sqlite").write_text("mine")
        with pytest.raises(StoreError, match="is there already"):
            backup(url, tmp_path / "b.sqlite")
        assert (tmp_path / "b.sqlite").read_text() == "mine"
        backup(url, tmp_path / "c.sqlite")
        with pytest.raises(StoreError, match=r"is in use: it holds API keys; restore fills"):
            restore(tmp_path / "c.sqlite", url)
        assert rows(store) == before


def test_a_database_with_nothing_but_a_key_is_in_use(make_url, tmp_path):
    url = make_url("sqlite")
    with open_store(url) as store:
        backup(url, tmp_path / "b.sqlite")
        store.keys.create("n", ())
    with pytest.raises(StoreError, match="it holds API keys; restore"):
        restore(tmp_path / "b.sqlite", url)


def test_a_database_of_an_older_schema_is_neither_migrated_nor_filled(tmp_path, make_url):
    url = make_url("sqlite")
    open_store(url).close()
    backup(url, tmp_path / "b.sqlite")
    shutil.copy(FROZEN[0], tmp_path / "old.sqlite")
    before = (tmp_path / "old.sqlite").read_bytes()
    with pytest.raises(StoreError, match="in use, with the schema 0001"):
        restore(tmp_path / "b.sqlite", f"sqlite:///{tmp_path}/old.sqlite")
    assert (tmp_path / "old.sqlite").read_bytes() == before


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem)
def test_backups_of_every_schema_are_restored(path, kind, make_url, tmp_path):
    shutil.copy(path, tmp_path / "old.sqlite")
    contents = backup(f"sqlite:///{tmp_path}/old.sqlite", tmp_path / "b.sqlite")
    assert contents.revision == path.stem
    before = (tmp_path / "b.sqlite").read_bytes()
    url = make_url(kind)
    assert restore(tmp_path / "b.sqlite", url).counts["trials"] == 3
    assert (tmp_path / "b.sqlite").read_bytes() == before
    with open_store(url) as store:
        assert store.schema_before == HEAD
        (job,) = store.jobs.list([JobState.SUCCEEDED])
        assert len(store.jobs.trials(job.id)) == 3


def test_what_is_no_backup_is_refused(make_url, tmp_path):
    url = make_url("sqlite")
    file = tmp_path / "b.sqlite"
    with pytest.raises(FileNotFoundError):
        restore(file, url)
    for content in (b"", b"hello", b"SQLite format 3\0", b"SQLite format 3\0" + b"\1" * 200):
        file.write_bytes(content)
        with pytest.raises(StoreError):
            restore(file, url)
    file.unlink()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    with pytest.raises(NoDatabase):
        restore(file, url)
    assert not Path(url.removeprefix("sqlite:///")).exists()


def test_a_newer_backup_is_refused(make_url, tmp_path):
    url = make_url("sqlite")
    open_store(url).close()
    backup(url, tmp_path / "b.sqlite")
    with closing(sqlite3.connect(tmp_path / "b.sqlite")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    with pytest.raises(StoreError, match="9999 is newer"):
        restore(tmp_path / "b.sqlite", make_url("sqlite"))


def test_a_damaged_backup_is_refused(make_url, samples, tmp_path):
    url = make_url("sqlite")
    with open_store(url) as store:
        fill(store, samples)
        backup(url, tmp_path / "b.sqlite")
    spoil(tmp_path / "b.sqlite")
    with pytest.raises(StoreError):
        restore(tmp_path / "b.sqlite", make_url("sqlite"))


def spoil(path):
    """Make the middle of a file zeros."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 20_000] = bytes(20_000)
    path.write_bytes(data)


def said(work):
    """What an attempt is refused with, which names no file that nobody gave."""
    with pytest.raises((StoreError, OSError)) as error:
        work()
    text = str(error.value)
    assert ".partial" not in text and "migrated.sqlite" not in text and "immutable" not in text, text
    return text


@pytest.fixture
def file_url(make_url, samples):
    """A database in one file, which no process has open."""
    url = make_url("sqlite")
    with open_store(url) as store:
        fill(store, samples)
    return url


def test_a_damaged_database_is_named(file_url, tmp_path):
    spoil(Path(file_url.removeprefix("sqlite:///")))
    assert said(lambda: backup(file_url, tmp_path / "b.sqlite")).startswith(f"{file_url} is damaged: ")
    assert not [path for path in tmp_path.iterdir() if "b.sqlite" in path.name]


def test_what_is_no_database_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("hello " * 100)
    url = f"sqlite:///{tmp_path}/notes.txt"
    assert said(lambda: backup(url, tmp_path / "b.sqlite")) == f"{url}: file is not a database"


def test_files_that_can_not_be_are_named(file_url, tmp_path):
    for file, reason in (
        (tmp_path / "nowhere" / "b.sqlite", "No such file or directory"),
        (Path(file_url.removeprefix("sqlite:///")) / "b.sqlite", "Not a directory"),
        (tmp_path / ("b" * 300), "File name too long"),
        (tmp_path, "is a folder; name a file in it"),
    ):
        text = said(lambda file=file: backup(file_url, file))
        assert reason in text and repr(str(file)) in text, text
        assert repr(str(file)) in said(lambda file=file: restore(file, "sqlite:///unused.db"))


def test_no_room_for_a_backup(file_url, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tunewright.db.backup.sync", full)
    file = tmp_path / "b.sqlite"
    assert said(lambda: backup(file_url, file)) == f"[Errno 28] No space left on device: {str(file)!r}"
    assert not [path for path in tmp_path.iterdir() if "b.sqlite" in path.name]


def test_a_database_that_is_damaged_beyond_a_check_is_named(file_url, tmp_path):
    """Pages that the check itself stumbles over."""
    path = Path(file_url.removeprefix("sqlite:///"))
    content = bytearray(path.read_bytes())
    content[20_000:60_000] = random.Random(1).randbytes(len(content[20_000:60_000]))
    path.write_bytes(content)
    new = tmp_path / "b.sqlite"
    text = said(lambda: backup(file_url, new))
    assert text.startswith(file_url) and str(new) not in text and not new.exists()


def test_a_damaged_backup_is_named(file_url, tmp_path):
    file = tmp_path / "b.sqlite"
    backup(file_url, file)
    spoil(file)
    assert repr(str(file)) in said(lambda: restore(file, f"sqlite:///{tmp_path}/new.db"))


def test_an_old_backup_that_cannot_be_migrated_is_named(tmp_path, monkeypatch):
    file = tmp_path / "b.sqlite"
    shutil.copy(FROZEN[0], file)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x/migrated.sqlite")

    monkeypatch.setattr("tunewright.db.backup.shutil.copyfile", full)
    text = said(lambda: restore(file, f"sqlite:///{tmp_path}/new.db"))
    assert text.startswith(f"{str(file)!r}, copied to ") and text.endswith(": No space left on device")


def test_a_database_is_not_restored_from_itself(file_url):
    path = Path(file_url.removeprefix("sqlite:///"))
    assert said(lambda: restore(path, file_url)).startswith(f"{str(path)!r} is the database itself")


def test_a_database_in_use_is_no_backup(make_url, tmp_path):
    url = make_url("sqlite")
    path = Path(url.removeprefix("sqlite:///"))
    with open_store(url) as store:
        if store.journal_mode() != "wal":
            pytest.skip("this SQLite must not use WAL mode")
        with pytest.raises(StoreError, match="a database in use, not a backup; tunewright backup FILE"):
            restore(path, make_url("sqlite"))


def test_a_database_that_is_missing_is_not_made(tmp_path):
    with pytest.raises(NoDatabase):
        backup(f"sqlite:///{tmp_path}/typo.db", tmp_path / "b.sqlite")
    for url in ("sqlite://", "sqlite:///:memory:"):
        with pytest.raises(NoDatabase):
            backup(url, tmp_path / "b.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_what_fails_leaves_no_file(make_url, tmp_path, monkeypatch):
    url = make_url("sqlite")
    open_store(url).close()
    monkeypatch.setattr("tunewright.db.backup._check", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        backup(url, tmp_path / "b.sqlite")
    assert not [path.name for path in tmp_path.iterdir() if "b.sqlite" in path.name]


def test_a_restore_that_fails_leaves_the_database_empty(kind, make_url, samples, tmp_path, monkeypatch):
    with open_store(make_url("sqlite")) as store:
        fill(store, samples)
        backup(str_url(store), tmp_path / "b.sqlite")
    url = make_url(kind)
    monkeypatch.setattr("tunewright.db.backup.row_counts", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        restore(tmp_path / "b.sqlite", url)
    monkeypatch.undo()
    assert restore(tmp_path / "b.sqlite", url).counts["jobs"] == 2


def test_it_is_one_moment_while_others_write(kind, make_url, samples, tmp_path, monkeypatch):
    """A confirmation comes right after its trial, in one thread: no copy has one without the other."""
    monkeypatch.setattr("tunewright.db.backup.PAGES_AT_ONCE", 1)
    url = make_url(kind)
    stop = threading.Event()
    with open_store(url) as store:
        samples.fill(store)

        def write():
            number = 0
            while not stop.is_set():
                store.record(samples.record(number))
                store.confirm(samples.record(number))
                number += 1

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for number in range(4):
                backup(url, tmp_path / f"{number}.sqlite")
        finally:
            stop.set()
            thread.join()
    for number in range(4):
        with closing(sqlite3.connect(tmp_path / f"{number}.sqlite")) as connection:
            ((trials,),) = connection.execute("SELECT count(*) FROM trials").fetchall()
            ((confirmations,),) = connection.execute("SELECT count(*) FROM confirmations").fetchall()
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert 0 <= trials - confirmations <= 1


def test_odd_file_names(make_url, tmp_path):
    url = make_url("sqlite")
    open_store(url).close()
    file = tmp_path / "100% of what? #1 'x'; --.sqlite"
    backup(url, file)
    restore(file, make_url("sqlite"))
