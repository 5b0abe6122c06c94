"""`tunewright key`: a key is shown once, and names are only text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunewright.db.access import KeyScope
from tunewright.db.store import open_store

from ..commands import Command
from .test_cli_bad_input import refused
from .test_cli_docs import promised

HOSTILE = "x\x1b[2J\r\n<script>alert(1)</script>'; DROP TABLE api_keys; --\u202e[bold]"


@pytest.fixture
def db(tmp_path: Path) -> list[str]:
    return ["--db", f"sqlite:///{tmp_path / 'tuning.db'}"]


def test_the_key_alone_is_on_standard_output(db: list[str], command: Command) -> None:
    answer = command("key", "create", "build farm", *db)
    assert answer.code == 0
    token = answer.out.removesuffix("\n")
    assert token.startswith("tw_") and token.isprintable() and " " not in token
    assert "build farm" in answer.err
    assert token[16:] not in answer.err
    with open_store(db[1]) as store:
        key = store.keys.check(token)
        assert key is not None
        assert key.scopes == {KeyScope.JOBS_READ, KeyScope.JOBS_WRITE, KeyScope.RECORDS_READ}
        assert key.expires_at is None


def test_scopes_and_expiry(db: list[str], command: Command) -> None:
    data = command(
        "key", "create", "ci", "--scope", "metrics", "--scope", "records:write", "--expires", "1.5", *db, "--json"
    ).data
    assert data["scopes"] == ["metrics", "records:write"]
    with open_store(db[1]) as store:
        key = store.keys.check(data["key"])
        assert key is not None and key.expires_at is not None
        assert (key.expires_at - key.created_at).total_seconds() == 1.5 * 24 * 3600


def test_a_key_of_a_day_is_listed(db: list[str], command: Command) -> None:
    made = command("key", "create", "short", "--expires", "0.001", *db, "--json").data
    (listed,) = command("key", "list", *db, "--json").data["keys"]
    assert listed == {name: value for name, value in made.items() if name not in ("key", "db")}


def test_keys_are_listed_without_secrets(db: list[str], command: Command) -> None:
    tokens = [command("key", "create", name, *db).out.strip() for name in ("first", "second")]
    answer = command("key", "list", *db)
    assert answer.out.index("second") < answer.out.index("first")
    for token in tokens:
        assert token[3:15] in answer.out
        assert token[16:] not in answer.out


def test_a_revoked_key_is_worthless(db: list[str], command: Command) -> None:
    token = command("key", "create", "leaked", *db).out.strip()
    key_id = token[3:15]
    assert command("key", "revoke", key_id, *db).out == f"revoked: {key_id}, leaked\n"
    with open_store(db[1]) as store:
        assert store.keys.check(token) is None
    again = command("key", "revoke", key_id, *db, "--json").data
    assert again["revoked_at"] == command("key", "list", *db, "--json").data["keys"][0]["revoked_at"]
    assert "revoked 20" in command("key", "list", *db).out
    refused(command("key", "revoke", "nobody", *db), "there is no key nobody")
    giver = command("key", "create", "giver", "--scope", "keys:write", *db).out[3:15]
    assert "giver\nkeys that it made stay in force" in command("key", "revoke", giver, *db).out


def test_names_are_only_text(db: list[str], command: Command) -> None:
    made = command("key", "create", HOSTILE, *db)
    listed = command("key", "list", *db)
    revoked = command("key", "revoke", made.out[3:15], *db)
    for text in (made.err, listed.out, revoked.out):
        assert all(line.isprintable() for line in text.splitlines())
        assert "script" in text
    assert command("key", "list", *db, "--json").data["keys"][0]["name"] == HOSTILE


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["n", "--scope", "root"], "'root' is none of jobs:read"),
        (["n", "--scope", "login"], "'login' is none of"),
        (["n", "--expires", "0"], "--expires 0"),
        (["n", "--expires", "nan"], "--expires nan"),
        (["n", "--expires", "1e9"], "--expires 1e+09"),
        (["  "], "1 to 200 letters"),
        (["n" * 201], "1 to 200 letters"),
    ],
)
def test_what_means_nothing_is_refused(arguments: list[str], word: str, db: list[str], command: Command) -> None:
    refused(command("key", "create", *arguments, *db), word)


def test_lists_of_no_keys(db: list[str], command: Command) -> None:
    refused(command("key", "list", *db), "there is no such database")
    open_store(db[1]).close()
    assert command("key", "list", *db).out == "no keys yet; tunewright key create NAME makes one\n"


def test_the_docs_have_every_key(db: list[str], command: Command) -> None:
    made = command("key", "create", "n", *db, "--json").data
    assert promised("key create")[0] == made.keys()
    keys, entries = promised("key list")
    data = command("key", "list", *db, "--json").data
    assert keys == data.keys()
    assert entries["keys"] == data["keys"][0].keys()
    assert promised("key revoke")[0] == command("key", "revoke", made["id"], *db, "--json").data.keys()


def test_none_is_revoked_where_there_is_no_database(db: list[str], command: Command, tmp_path: Path) -> None:
    refused(command("key", "revoke", "nobody", *db), "there is no such database")
    assert list(tmp_path.iterdir()) == []
