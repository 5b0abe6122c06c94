"""Reading makes nothing, and needs no right to write."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from tunewright.db.errors import StoreError
from tunewright.db.reading import NoDatabase, open_reader
from tunewright.db.sql_store import open_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "50% of #1.db"
    with open_store(f"sqlite:///{made}") as store:
        assert store.counts()["trials"] == 0
    return made


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


def test_writable(path: Path) -> None:
    with open_reader(f"sqlite:///{path}") as store:
        assert store.counts()["trials"] == 0


@pytest.mark.usefixtures("locked")
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_read_only(path: Path, mode: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA journal_mode={mode}")
    connection.close()
    before = path.read_bytes()
    with open_reader(f"sqlite:///{path}") as store:
        assert store.counts()["trials"] == 0
        assert list(store.export()) == []
        with pytest.raises(StoreError, match="readonly"), store.database.write() as session:
            session.execute(text("DELETE FROM alembic_version"))
    assert path.read_bytes() == before


@pytest.mark.usefixtures("locked")
def test_read_only_of_an_older_schema(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
    connection.close()
    with pytest.raises(StoreError, match="its schema is 0000"):
        open_reader(f"sqlite:///{path}")


@pytest.mark.usefixtures("locked")
def test_no_database_at_all(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all, and longer than a header " * 20)
    with pytest.raises(StoreError, match=r"text\.db"):
        open_reader(f"sqlite:///{tmp_path / 'text.db'}")
