"""How databases are opened, and what is said of one that can't be."""

import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text

from tunewright.db import engine, sqlite_library
from tunewright.db.errors import StoreError, Unreachable, Unwritable
from tunewright.db.inspection import inspect
from tunewright.db.schema import HEAD
from tunewright.db.store import open_store
from tunewright.search_space.measurement import Status


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 40, 1), False),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((3, 52, 0), False),
        ((3, 52, 1), True),
        ((3, 53, 4), True),
    ],
)
def test_wal_only_with_a_mended_sqlite(version, safe):
    assert sqlite_library.wal_is_safe(version) is safe


@pytest.fixture
def faulty_sqlite(monkeypatch):
    """Pretend that no mended SQLite is there."""
    monkeypatch.setattr(engine, "wal_is_safe", lambda version: False)


@pytest.fixture
def mended_sqlite():
    if not sqlite_library.wal_is_safe(sqlite_library.sqlite_module().sqlite_version_info):
        pytest.skip("no SQLite that may use WAL is installed")


def test_a_mended_sqlite_is_preferred(monkeypatch):
    bundled: Any = SimpleNamespace(sqlite_version_info=(3, 53, 4))
    monkeypatch.setitem(sys.modules, "pysqlite3", SimpleNamespace(dbapi2=bundled))
    monkeypatch.setitem(sys.modules, "pysqlite3.dbapi2", bundled)
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 40, 1))
    assert sqlite_library.sqlite_module() is bundled
    monkeypatch.setattr(bundled, "sqlite_version_info", (3, 51, 1))
    assert sqlite_library.sqlite_module() is sqlite3
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 54, 0))
    assert sqlite_library.sqlite_module() is sqlite3


def pragmas(store):
    return {name: store._pragma(name) for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")}


def test_a_sqlite_that_lacks_what_the_store_needs(monkeypatch):
    old = SimpleNamespace(sqlite_version_info=(3, 34, 9), sqlite_version="3.34.9")
    monkeypatch.setattr(engine, "sqlite_module", lambda: old)
    assert fails("sqlite://") == "SQLite 3.34.9 is too old, 3.35 is needed: pip install pysqlite3"


def test_settings_with_wal(make_url, mended_sqlite):
    url = make_url("sqlite")
    for _ in range(2):
        with open_store(url, wait_s=7) as store:
            assert pragmas(store) == {
                "journal_mode": "wal", "synchronous": "1", "foreign_keys": "1", "busy_timeout": "7000"
            }  # fmt: skip


def test_settings_without_wal(make_url, faulty_sqlite):
    with open_store(make_url("sqlite")) as store:
        assert pragmas(store) == {
            "journal_mode": "delete", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "60000"
        }  # fmt: skip


def test_a_faulty_sqlite_takes_a_database_out_of_wal(make_url, mended_sqlite, samples, monkeypatch):
    url, module = make_url("sqlite"), sqlite_library.sqlite_module()
    monkeypatch.setattr(engine, "sqlite_module", lambda: module)  # two libraries in one process see no locks
    with open_store(url) as store:
        samples.fill(store)
        monkeypatch.setattr(engine, "wal_is_safe", lambda version: False)
        with pytest.raises(StoreError, match=r"open in WAL mode, and .* could corrupt it"):
            open_store(url, wait_s=0.1)
    with open_store(url) as store:
        assert store.journal_mode() == "delete"
        assert store.counts()["tasks"] == 2


def test_inspection_of_sqlite(make_url, samples, mended_sqlite, look):
    url = make_url("sqlite")
    path = Path(url.removeprefix("sqlite:///"))
    with open_store(url) as store:
        samples.fill(store)
    before = path.read_bytes()
    inspection = look(url)
    assert (inspection.name, inspection.revision, inspection.journal_mode, inspection.damage) == (url, HEAD, "wal", "")
    assert inspection.counts == {"tasks": 2, "targets": 2, "jobs": 0, "trials": 0}
    assert inspection.library.startswith("SQLite 3.") and inspection.is_current and inspection.wal_is_safe
    assert path.read_bytes() == before


def test_inspection_makes_no_database_and_migrates_none(make_url, look):
    url = make_url("sqlite")
    path = Path(url.removeprefix("sqlite:///"))
    assert inspect(url) is None and inspect("sqlite://") is None
    assert not path.exists()
    path.touch()
    inspection = look(url)
    assert inspection.revision is None and not inspection.is_current and not inspection.counts
    assert path.read_bytes() == b""


def test_inspection_refuses_what_it_does_not_know(make_url, look):
    url = make_url("sqlite")
    with open_store(url) as store, store.database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="schema 9999 is newer"):
        look(url)


def test_inspection_of_a_faulty_sqlite(make_url, faulty_sqlite, monkeypatch, look):
    monkeypatch.setattr("tunewright.db.inspection.wal_is_safe", lambda version: False)
    url = make_url("sqlite")
    open_store(url).close()
    inspection = look(url)
    assert (inspection.wal_is_safe, inspection.journal_mode) == (False, "delete")


def test_inspection_of_a_damaged_file(make_url, samples, look):
    url = make_url("sqlite")
    path = Path(url.removeprefix("sqlite:///"))
    with open_store(url) as store:
        samples.fill(store)
        for number in range(200):
            store.record(samples.record(number))
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 4096)
    try:
        damage = look(url).damage
    except StoreError as error:
        damage = str(error)
    assert damage


def test_inspection_of_texts_that_say_nothing(make_url, samples, look):
    """SQLite's own check knows nothing of them."""
    url = make_url("sqlite")
    with open_store(url) as store:
        samples.fill(store)
        store.record(samples.record(1))
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE trials SET samples_s = '[0.001, AAAA'")
    assert look(url).damage == "a row of its table trials can't be read: its samples_s is not what was stored"


@pytest.mark.postgres
def test_inspection_of_postgres(make_url, look):
    url = make_url("postgres")
    assert look(url).revision is None
    with open_store(url) as store:
        assert store.journal_mode() == ""
    inspection = look(url)
    assert inspection.library.startswith("PostgreSQL 1") and inspection.is_current and not inspection.journal_mode


@pytest.mark.postgres
@pytest.mark.parametrize("scheme", ["postgres://", "postgresql://", "postgresql+psycopg://", "postgresql+psycopg2://"])
def test_every_spelling_of_postgres_means_the_same_driver(make_url, scheme):
    url = make_url("postgres").replace("postgresql://", scheme)
    with open_store(url) as store:
        assert store.counts()["tasks"] == 0


@pytest.mark.postgres
def test_postgres_connections_time_out_instead_of_holding_locks(make_url):
    with open_store(make_url("postgres"), wait_s=7) as store, store.database.read() as session:
        for name, value in (("lock_timeout", "7s"), ("idle_in_transaction_session_timeout", "1min")):
            assert session.connection().exec_driver_sql(f"SHOW {name}").scalar() == value


@pytest.mark.postgres
def test_a_store_outlives_its_connections(make_url, postgres_url, samples):
    with open_store(make_url("postgres")) as store:
        samples.fill(store)
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'tunewright' AND pid <> pg_backend_pid()"
            )
        assert store.record(samples.record(1))


@pytest.mark.postgres
def test_a_connection_in_use_is_closed_after_its_store(make_url):
    store = open_store(make_url("postgres"))
    with store.database.engine.connect() as connection:
        used: Any = connection.connection.driver_connection
        store.close()
        assert not used.closed
    assert used.closed


def fails(url, **options):
    """What opening says: one line."""
    with pytest.raises(StoreError) as error:
        open_store(url, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("url", ["", "tuning.db", "sqlite:tuning.db", "://", "postgresql://host:port/x"])
def test_what_is_no_url(url):
    assert fails(url) == f"a database URL is sqlite:///FILE or postgresql://USER@HOST/NAME, not {url!r}"


def test_a_database_that_is_not_supported():
    assert "mysql is not supported" in fails("mysql://root:secret@localhost/x")


def test_no_password_is_shown():
    for url in ("postgresql://me:secret@127.0.0.1:1/x", "postgres//me:secret@host/x", "oracle://me:secret@host/x"):
        assert "secret" not in fails(url)


def test_a_server_that_is_not_there_is_awaited():
    started_s = time.monotonic()
    with pytest.raises(Unreachable, match="refused"):
        open_store("postgresql://me@127.0.0.1:1/x", patience_s=0.3)
    assert time.monotonic() - started_s > 0.1


@pytest.mark.postgres
def test_a_database_that_is_not_there_is_not_awaited(postgres_url):
    started_s = time.monotonic()
    missing = postgres_url.replace("/postgres?", "/missing?")
    assert 'database "missing" does not exist' in fails(missing, patience_s=20)
    assert 'role "nobody" does not exist' in fails(postgres_url.replace("//postgres:", "//nobody:"), patience_s=20)
    assert time.monotonic() - started_s < 10


def test_no_driver(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "pip install 'tunewright[postgres]'" in fails("postgresql://host/x")


@pytest.mark.parametrize("folder", ["a/b", "file", "file/b"])
def test_no_folder_is_made(tmp_path, folder):
    (tmp_path / "file").touch()
    message = fails(f"sqlite:///{tmp_path}/{folder}/c.db")
    assert f"there is no folder '{tmp_path}/{folder}'; make it first" in message
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_path_that_is_a_folder(tmp_path):
    assert "unable to open database file" in fails(f"sqlite:///{tmp_path}")


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "x.db").write_bytes(b"ONNX" * 1000)
    assert "file is not a database" in fails(f"sqlite:///{tmp_path}/x.db")


def test_a_file_that_another_process_holds(make_url):
    url = make_url("sqlite")
    other = sqlite_library.sqlite_module().connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        assert "database is locked: another process is writing to it" in fails(url, wait_s=0.1)
    finally:
        other.close()


def test_a_store_that_another_process_holds(make_url, samples):
    url = make_url("sqlite")
    with open_store(url, wait_s=0.1) as store, open_store(url) as other:
        samples.fill(store)
        with other.database.write() as session:
            session.connection()
            with pytest.raises(StoreError, match="another process is writing"):
                store.record(samples.record(1))
        assert store.record(samples.record(1))


def test_a_full_disk_is_one_line_and_loses_nothing(make_url, samples, look):
    url = make_url("sqlite")
    with open_store(url) as store:
        samples.fill(store)
        assert store.record(samples.record(0))
        pages = int(store._pragma("page_count")) + 2
        store._pragma(f"max_page_count={pages}")
        with pytest.raises(StoreError, match="full"):
            for number in range(1, 100):
                store.record(samples.record(number))
        stored = number
    with open_store(url) as store:
        assert store.counts()["trials"] == stored
    assert look(url).damage == ""


def test_a_full_disk_is_remembered_until_there_is_space(make_url, samples):
    with open_store(make_url("sqlite"), wait_s=5) as store:
        samples.fill(store)
        assert store.unwritable() is None
        limit = int(store._pragma("page_count")) + 2

        @event.listens_for(store.database.engine, "begin")
        def bound(connection):  # of every connection of its own: the limit is that of a connection
            connection.exec_driver_sql(f"PRAGMA max_page_count={limit}")

        with pytest.raises(Unwritable, match="disk is full; nothing is stored until") as error:
            for number in range(100):
                store.record(samples.record(number))
        assert error.value.reason == "disk full"
        assert store.unwritable() == "disk full" == store.unwritable()
        stored = store.counts()["trials"]
        limit += 1000
        assert store.unwritable() is None
        store.record(samples.record(200))
        assert store.counts()["trials"] == stored + 1
        with store.database.read() as session:
            assert session.scalar(text("SELECT count(*) FROM tuners")) == 0


def test_a_read_only_file_says_so(make_url, samples):
    url = make_url("sqlite")
    with open_store(url) as store:
        samples.fill(store)
        with store.database.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA query_only=ON")
        event.listen(store.database.engine, "checkout", lambda driver, *_: driver.execute("PRAGMA query_only=ON"))
        with pytest.raises(Unwritable) as error:
            store.record(samples.record(1))
        assert error.value.reason == store.unwritable() == "database read-only"
        event.listen(store.database.engine, "checkout", lambda driver, *_: driver.execute("PRAGMA query_only=OFF"))
        assert store.unwritable() is None


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("state", "reason"), [("53100", "disk full"), ("58030", "disk fails"), ("25006", "database read-only")]
)
def test_a_server_that_takes_nothing(make_url, samples, state, reason):
    with open_store(make_url("postgres")) as store:
        samples.fill(store)
        with store.database.engine.begin() as connection:
            connection.exec_driver_sql(REFUSE % state)
            for table in ("trials", "tuners"):
                connection.exec_driver_sql(f"CREATE TRIGGER refuse BEFORE INSERT ON {table} EXECUTE FUNCTION refuse()")
        with pytest.raises(Unwritable) as error:
            store.record(samples.record(1))
        assert error.value.reason == store.unwritable() == reason
        with store.database.engine.begin() as connection:
            connection.exec_driver_sql("DROP FUNCTION refuse CASCADE")
        assert store.unwritable() is None


REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '%s'; END $$
"""


def test_a_read_only_file_can_be_read(make_url, samples):
    url = make_url("sqlite")
    with open_store(url) as store:
        samples.fill(store)
        store.record(samples.record(1))
    path = url.removeprefix("sqlite:///")
    connection = sqlite_library.sqlite_module().connect(path)
    connection.execute("PRAGMA journal_mode=delete")
    connection.close()
    with open_store(f"sqlite:///file:{path}?mode=ro&uri=true") as store:
        assert store.best(samples.task().key, samples.target().key) == samples.record(1)
        with pytest.raises(StoreError, match="readonly"):
            store.record(samples.record(2))
    with open_store(url) as store:
        assert store.records(samples.task().key, samples.target().key, [Status.OK]) == [samples.record(1)]


def test_a_read_only_file_cannot_be_migrated(tmp_path):
    sqlite3.connect(tmp_path / "x.db").execute("CREATE TABLE other (x)").connection.close()
    assert "readonly" in fails(f"sqlite:///file:{tmp_path}/x.db?mode=ro&uri=true")


OPEN = """
import sys
from tunewright.db.store import open_store
open_store(sys.argv[1]).close()
print("alembic" in sys.modules)
"""


@pytest.mark.slow
def test_alembic_is_loaded_for_migrations_alone(tmp_path):
    shutil.copy(Path(__file__).parent / "frozen/0001.sqlite", tmp_path / "old.db")
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("new", "new", "old", "old")]
    runs = [
        subprocess.run([sys.executable, "-c", OPEN, url], check=True, capture_output=True, text=True) for url in urls
    ]
    assert [run.stdout for run in runs] == ["False\n", "False\n", "True\n", "False\n"]


def test_a_copy_of_the_file_is_the_whole_database(make_url, samples, tmp_path):
    url = make_url("sqlite")
    with open_store(url) as store:
        samples.fill(store)
    shutil.copy(url.removeprefix("sqlite:///"), tmp_path / "copy.db")  # closing leaves no journal behind
    with open_store(f"sqlite:///{tmp_path}/copy.db") as store:
        assert store.counts()["tasks"] == 2


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such modes")
class TestModes:
    """Who may read a SQLite file: keys' digests and models are in it."""

    def test_only_the_owner_reads_a_new_file(self, tmp_path):
        with open_store(f"sqlite:///{tmp_path / 'tuning.db'}") as store:
            store.keys.create("n", ())
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        assert "tuning.db" in modes and set(modes.values()) == {0o600}, modes

    def test_a_file_that_is_there_keeps_its_mode(self, tmp_path):
        path = tmp_path / "tuning.db"
        path.touch(0o640)
        path.chmod(0o640)
        open_store(f"sqlite:///{path}").close()
        assert path.stat().st_mode & 0o777 == 0o640

    def test_a_link_to_a_new_file(self, tmp_path):
        (tmp_path / "link.db").symlink_to(tmp_path / "tuning.db")
        open_store(f"sqlite:///{tmp_path / 'link.db'}").close()
        assert (tmp_path / "tuning.db").stat().st_mode & 0o777 == 0o600
