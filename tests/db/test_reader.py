"""Reading makes nothing, and needs no right to write; nor is a database made to change one."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import URL, Connection, text

from tunewright.db.access import KeyScope
from tunewright.db.backup import backup
from tunewright.db.engine import make_engine, parse_url
from tunewright.db.errors import StoreError
from tunewright.db.inspection import inspect
from tunewright.db.reader import NoDatabase, open_existing, open_reader
from tunewright.db.schema import current_revision
from tunewright.db.store import Store, open_store

OLDEST = min((Path(__file__).parent / "frozen").glob("*.sqlite"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "50% of #1.db"
    with open_store(f"sqlite:///{file}") as store:
        assert store.counts()["trials"] == 0
    return file


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be written: for tests that may run as root, whom no file's mode keeps out."""
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and may(path, mode))


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(NoDatabase, match="there is no such database"):
        open_reader(f"sqlite:///{tmp_path / 'folder' / 'none.db'}")
    assert list(tmp_path.iterdir()) == []


def test_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(NoDatabase, match="nothing of tunewright"):
        open_reader(f"sqlite:///{tmp_path / 'empty.db'}")
    assert (tmp_path / "empty.db").stat().st_size == 0


def test_of_another_program(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    before = file.read_bytes()
    with pytest.raises(NoDatabase):
        open_reader(f"sqlite:///{file}")
    assert file.read_bytes() == before


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_reading_changes_nothing(path: Path, mode: str) -> None:
    set_journal(path, mode)
    before = path.read_bytes()
    with open_reader(f"sqlite:///{path}") as store:
        assert store.counts()["trials"] == 0
        assert list(store.export()) == []
    inspection = inspect(f"sqlite:///{path}")
    assert inspection is not None and inspection.journal_mode == mode
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_reader_refuses_to_write(shared_url: str) -> None:
    open_store(shared_url).close()
    with (
        open_reader(shared_url) as store,
        pytest.raises(StoreError, match=r"read-?only"),
        store.database.write() as session,
    ):
        session.execute(text("DELETE FROM alembic_version"))


def test_a_mode_that_is_unsafe_here_does_not_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_journal(path, "wal")
    monkeypatch.setattr("tunewright.db.engine.wal_is_safe", lambda version: False)
    with open_reader(f"sqlite:///{path}") as store:
        assert store.journal_mode() == "delete"


def set_journal(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={mode}")


@pytest.mark.usefixtures("locked")
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_read_only(path: Path, mode: str) -> None:
    set_journal(path, mode)
    before = path.read_bytes()
    with open_reader(f"sqlite:///{path}") as store:
        assert store.counts()["trials"] == 0
        assert list(store.export()) == []
        with pytest.raises(StoreError, match="readonly"), store.database.write() as session:
            session.execute(text("DELETE FROM alembic_version"))
    assert path.read_bytes() == before


@pytest.mark.usefixtures("locked")
def test_read_only_of_an_older_schema(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    with pytest.raises(StoreError, match="its schema is 0001"):
        open_reader(f"sqlite:///{path}")


def test_an_older_schema_is_not_migrated_to_be_read(shared_url: str) -> None:
    open_store(shared_url).close()
    for version, said in (("0001", "its schema is 0001, .* tunewright db upgrade"), ("9999", "9999 is newer")):
        with transaction(shared_url) as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
        with pytest.raises(StoreError, match=said):
            open_reader(shared_url)
        with transaction(shared_url) as connection:
            assert current_revision(connection) == version


@contextmanager
def transaction(url: str) -> Iterator[Connection]:
    """A transaction on a database of any schema."""
    engine = make_engine(parse_url(url), wait_s=10)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


@pytest.mark.usefixtures("locked")
def test_no_database_at_all(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all, and longer than a header " * 20)
    with pytest.raises(StoreError, match=r"text\.db"):
        open_reader(f"sqlite:///{tmp_path / 'text.db'}")


@pytest.mark.parametrize("name", ["none.db", "file:{}/none.db?uri=true", "file:{}/none.db?mode=rwc&uri=true"])
@pytest.mark.parametrize("opened", [open_reader, open_existing])
def test_none_is_made(tmp_path: Path, opened: Callable[[str], Store], name: str) -> None:
    with pytest.raises(NoDatabase, match="there is no such database"):
        opened(f"sqlite:///{name.format(tmp_path) if '{}' in name else tmp_path / name}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start", ["file:", "file://", "file://localhost"])
@pytest.mark.parametrize("opened", [open_reader, open_existing])
def test_a_uri_names_the_file(path: Path, opened: Callable[[str], Store], start: str) -> None:
    url = URL.create("sqlite", database=f"{start}{quote(str(path))}", query={"uri": "true"}).render_as_string()
    with opened(url) as store:
        assert store.counts()["trials"] == 0
    inspection = inspect(url)
    assert inspection is not None and inspection.file == path
    assert backup(url, path.with_name("a copy.db")).counts["trials"] == 0
    with opened(f"sqlite:///{start}{path.parent}/a%20copy.db?uri=true") as store:
        assert store.counts()["trials"] == 0


def test_one_that_is_there_may_be_changed(path: Path) -> None:
    with open_existing(f"sqlite:///{path}", patience_s=1.0) as store:
        key, _ = store.keys.create("n", {KeyScope.METRICS})
        assert store.keys.revoke(key.id).revoked_at is not None


def test_an_empty_one_stays_so(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(NoDatabase, match="nothing of tunewright"):
        open_existing(f"sqlite:///{tmp_path / 'empty.db'}")
    assert (tmp_path / "empty.db").stat().st_size == 0


def test_an_older_one_is_migrated(tmp_path: Path) -> None:
    copy = tmp_path / "old.db"
    shutil.copyfile(OLDEST, copy)
    with open_existing(f"sqlite:///{copy}") as store:
        assert store.is_current()
