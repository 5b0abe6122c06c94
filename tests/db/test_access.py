"""The contract of Keys, checked on every database."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, text

from tunewright.db.access import LOCAL, MADE_DAYS, KeyScope, new_token
from tunewright.db.errors import NotFound
from tunewright.db.keys import Keys, NotGranted
from tunewright.db.store import open_store

from .conftest import in_threads

READ = (KeyScope.JOBS_READ, KeyScope.RECORDS_READ)


@pytest.fixture
def keys(store):
    return store.keys


@pytest.fixture
def writes(store):
    """The statements that changed the keys."""
    statements = []

    @event.listens_for(store.database.engine, "before_cursor_execute")
    def see(_connection, _cursor, statement, *_):
        if "api_keys" in statement and not statement.lstrip().startswith("SELECT"):
            statements.append(statement)

    return statements


def test_a_key_is_known_by_its_token(keys, clock):
    key, token = keys.create("build farm", READ, 60)
    name, secret = token.removeprefix("tw_").split("_", 1)
    assert (len(name), len(secret)) == (12, 43)
    assert (key.id, key.name, key.scopes) == (name, "build farm", frozenset(READ))
    assert (key.created_at, key.expires_at) == (clock.now, clock.now + timedelta(seconds=60))
    assert (key.revoked_at, key.last_used_at) == (None, None)
    assert keys.check(token) == key
    assert keys.check(new_token()) is None


def test_owners_have_names_but_no_folders(keys):
    ids = [keys.create(name, READ)[0].id for name in ("ci", f"{LOCAL}/home/someone", "<b>")]
    names = dict(zip(ids, ("ci", "local key", "<b>"), strict=True))
    assert keys.owner_names([*ids, ids[0], "gone", ""]) == names
    assert keys.owner_names([]) == {}
    keys.revoke(ids[0])
    assert keys.owner_names(ids[:1]) == {ids[0]: "ci"}


def test_the_secret_is_nowhere_in_the_database(keys, store):
    _, token = keys.create("n", READ)
    with store.database.engine.connect() as connection:
        rows = connection.execute(text("SELECT * FROM api_keys")).all()
    assert token[16:] not in str(rows)
    assert token[:15].removeprefix("tw_") in str(rows)


def test_no_other_token_is_taken(keys):
    _, token = keys.create("n", READ)
    _, other = keys.create("n", READ)
    tokens = [
        *("", "tw_", "tw__", token[:-1], token + "A", token[3:], token.upper(), " " + token, token + "\n"),
        token[:16] + other[16:],
        token[:-1] + ("A" if token[-1] != "A" else "B"),
        token[:5] + "\0" + token[6:],
        "tw_" + "\ud800" * 12 + token[15:],
        "tw_" + "%" * 12 + token[15:],
        "tw_' OR 1=1 --" + token[15:],
    ]
    assert [keys.check(candidate) for candidate in tokens] == [None] * len(tokens)
    assert [keys.use_once(candidate) for candidate in tokens] == [None] * len(tokens)
    assert keys.check(token)


def test_an_expired_or_revoked_key_is_none(keys, clock):
    key, token = keys.create("n", READ, 60)
    lasting, lasting_token = keys.create("m", READ)
    clock.advance(59)
    assert keys.check(token)
    clock.advance(1)
    assert keys.check(token) is None
    assert keys.use_once(token) is None
    assert keys.revoke(lasting.id).revoked_at == clock.now
    revoked_at = clock.now
    clock.advance(1)
    assert keys.revoke(lasting.id).revoked_at == revoked_at
    assert keys.check(lasting_token) is None
    with pytest.raises(NotFound, match="no key nobody"):
        keys.revoke("nobody")
    assert {listed.id for listed in keys.list()} == {key.id, lasting.id}


def test_the_clock_is_that_of_the_database(store):
    before = datetime.now(UTC)
    key, _ = store.keys.create("n", READ)
    assert before <= key.created_at <= datetime.now(UTC)


def test_the_last_use_is_noted_once_a_minute(keys, store, clock, writes):
    key, token = keys.create("n", READ)
    writes.clear()
    for _ in range(20):
        assert keys.check(token)
        clock.advance(1)
    assert len(writes) == 1
    assert keys.list()[0].last_used_at == key.created_at
    other = Keys(store.database)  # of another process, say
    assert other.check(token)
    assert len(writes) == 1
    clock.advance(60)
    assert other.check(token)
    assert len(writes) == 2
    assert keys.list()[0].last_used_at == clock.now


def test_a_key_is_good_where_its_use_cannot_be_noted(shared_url):
    with open_store(shared_url) as store, open_store(shared_url, wait_s=0.1) as other:
        _, token = store.keys.create("n", READ)
        with store.database.write() as session:
            session.execute(text("UPDATE api_keys SET name = 'held'"))  # and the lock with it
            assert other.keys.check(token)


def test_a_token_made_before_is_known_once(keys, clock):
    token = new_token()
    key, same = keys.create("local", READ, token=token)
    assert same == token
    clock.advance(5)
    assert keys.create("another name", (KeyScope.METRICS,), 5, token=token) == (key, token)
    assert keys.list() == [key]
    keys.revoke(key.id)
    assert keys.create("local", READ, token=token)[0].revoked_at == clock.now
    with pytest.raises(ValueError, match=f"there is a key {key.id} with another secret"):
        keys.create("local", READ, token=token[:16] + new_token()[16:])
    with pytest.raises(ValueError, match="tw_ID_SECRET"):
        keys.create("local", READ, token="hunter2")


@pytest.mark.parametrize("life_s", [0, -1, float("nan"), float("inf"), 1e30, 1e12])
def test_a_life_that_is_none_is_refused(keys, life_s):
    with pytest.raises(ValueError, match="no life of a key"):
        keys.create("n", READ, life_s)
    assert keys.list() == []


def test_a_link_is_used_once(keys, clock):
    _, token = keys.create("link", (KeyScope.LOGIN,), 60)
    assert keys.check(token)
    used = keys.use_once(token)
    assert used.scopes == {KeyScope.LOGIN}
    assert used.revoked_at == clock.now
    assert keys.use_once(token) is None
    assert keys.check(token) is None


def test_passing_keys_are_forgotten_when_they_are_over(keys, clock):
    assert not keys.any()
    _, link = keys.create("link", (KeyScope.LOGIN,), 60)
    _, session = keys.create("session", READ, 120, passing=True)
    assert not keys.any()
    assert keys.list() == []
    assert keys.remove_expired() == 0
    keys.use_once(link)
    assert keys.remove_expired() == 1
    clock.advance(119)
    assert keys.check(session)
    clock.advance(1)
    assert keys.remove_expired() == 1
    for scopes, passing in (((KeyScope.LOGIN,), False), (READ, True)):
        with pytest.raises(ValueError, match="must expire"):
            keys.create("n", scopes, passing=passing)


def test_local_keys_let_nobody_else_in(keys):
    key, _ = keys.create("local key in /home/a", READ)
    assert key.is_local
    assert not keys.any()
    other, _ = keys.create("Local key in the office", READ)
    assert not other.is_local
    assert keys.any()


def test_a_session_acts_for_its_key_and_ends_with_it(keys, clock):
    key, token = keys.create("n", READ, 60)
    session, session_token = keys.begin_session(token, (*READ, KeyScope.METRICS), 3600)
    assert (session.owner, session.scopes, session.expires_at) == (key.id, frozenset(READ), key.expires_at)
    assert key.owner == key.id
    assert keys.begin_session(token, READ, 5)[0].expires_at == clock.now + timedelta(seconds=5)
    assert keys.check(session_token) is not None
    assert [listed.id for listed in keys.list()] == [key.id]
    other, other_token = keys.begin_session(keys.create("m", READ)[1], READ, 60)
    keys.revoke(session.id)  # as who logs out: the key goes on
    assert keys.check(session_token) is None and keys.check(token) is not None
    _, again = keys.begin_session(token, READ, 60)
    keys.revoke(key.id)
    assert keys.check(again) is None and keys.check(other_token) == other
    assert keys.begin_session(token, READ, 60) is None
    assert keys.begin_session(new_token(), READ, 60) is None


def test_lasting_keys_are_never_forgotten(keys, clock):
    key, _ = keys.create("n", READ, 1)
    assert keys.any()
    clock.advance(1)
    assert not keys.any()
    assert keys.remove_expired() == 0
    revoked, _ = keys.create("m", READ)
    assert keys.any()
    keys.revoke(revoked.id)
    assert not keys.any()
    assert [listed.id for listed in keys.list()] == [revoked.id, key.id]


def test_hostile_names_are_only_text(keys):
    name = "'; DROP TABLE api_keys; --\n<script>\x1b[2J"
    keys.create(name, READ)
    assert [key.name for key in keys.list()] == [name]
    assert keys.create("a\0\ud800", READ)[0].name == "a\N{REPLACEMENT CHARACTER}?"


def test_of_many_threads_that_use_a_link_one_gets_it(shared_url):
    def let_in(store):
        _, token = store.keys.create("link", (KeyScope.LOGIN,), 60)
        return [key for key in in_threads(lambda _: store.keys.use_once(token), 8) if key is not None]

    with open_store(shared_url) as store:
        assert [len(let_in(store)) for _ in range(5)] == [1] * 5


@pytest.mark.slow
def test_of_many_processes_that_use_a_link_one_gets_it(shared_url):
    code = (
        "import sys; from tunewright.db.store import open_store\n"
        "with open_store(sys.argv[1]) as store:\n"
        "    print('ready', flush=True); sys.stdin.readline()\n"
        "    print(store.keys.use_once(sys.argv[2]) is not None)"
    )
    with open_store(shared_url) as store:
        _, token = store.keys.create("link", (KeyScope.LOGIN,), 60)
    command = [sys.executable, "-P", "-c", code, shared_url, token]
    runs = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [run.stdout and run.stdout.readline() for run in runs] == ["ready\n"] * 3
    for run in runs:
        print(file=run.stdin, flush=True)
    assert sorted(run.communicate()[0] for run in runs) == ["False\n", "False\n", "True\n"]


def test_of_many_threads_that_bring_one_token_all_get_its_key(shared_url):
    token = new_token()
    with open_store(shared_url) as store:
        created = in_threads(lambda _: store.keys.create("local", READ, token=token)[0], 6)
        assert len({key.id for key in created}) == len(store.keys.list()) == 1


def test_a_key_that_is_used_while_it_is_revoked_ends_revoked(shared_url):
    with open_store(shared_url) as store:
        key, token = store.keys.create("n", READ)
        in_threads(lambda n: store.keys.check(token) if n else store.keys.revoke(key.id), 6)
        assert store.keys.check(token) is None
        assert store.keys.list()[0].revoked_at is not None


class TestGrants:
    """Keys that keys make."""

    @pytest.fixture
    def giver(self, keys):
        return keys.create("admin", {*READ, KeyScope.KEYS_WRITE}, 3600)[0]

    def test_a_key_gives_what_it_has(self, keys, giver, clock):
        key, token = keys.grant(giver.id, "farm", {KeyScope.JOBS_READ}, 60)
        assert (key.name, key.scopes) == ("farm", frozenset({KeyScope.JOBS_READ}))
        assert key.expires_at == clock.now + timedelta(seconds=60)
        assert keys.check(token) == key
        assert {one.id for one in keys.list()} == {key.id, giver.id}

    @pytest.mark.parametrize("life_s", [None, 7200.0])
    def test_it_ends_with_its_maker(self, keys, giver, life_s):
        assert keys.grant(giver.id, "farm", {KeyScope.JOBS_READ}, life_s)[0].expires_at == giver.expires_at

    @pytest.mark.parametrize("life_s", [None, 1e9, 60.0])
    def test_what_a_session_or_a_local_key_makes_ends(self, keys, clock, life_s):
        _, token = keys.create("admin", {KeyScope.KEYS_WRITE})
        session, _ = keys.begin_session(token, {KeyScope.KEYS_WRITE}, 60)
        local, _ = keys.create(f"{LOCAL}/home", {KeyScope.KEYS_WRITE})
        until = clock.now + min(timedelta(days=MADE_DAYS), timedelta(seconds=life_s or 1e9))
        for giver_id in (session.id, local.id):
            assert keys.grant(giver_id, "farm", {KeyScope.KEYS_WRITE}, life_s)[0].expires_at == until
        asked = None if life_s is None else clock.now + timedelta(seconds=life_s)
        assert keys.grant(session.owner, "farm", {KeyScope.KEYS_WRITE}, life_s)[0].expires_at == asked

    @pytest.mark.parametrize("scope", [KeyScope.WORK, KeyScope.JOBS_WRITE, KeyScope.LOGIN])
    def test_it_gives_nothing_that_it_lacks(self, keys, giver, scope):
        with pytest.raises(NotGranted, match=str(scope)):
            keys.grant(giver.id, "farm", {KeyScope.JOBS_READ, scope})
        assert [one.id for one in keys.list()] == [giver.id]

    def test_only_a_lasting_key_in_force_makes_others(self, keys, giver, clock):
        session, _ = keys.create("browser session", {KeyScope.KEYS_WRITE}, 60, passing=True)
        for giver_id in (session.id, "unknown", "x\0"):
            with pytest.raises(NotGranted, match="only a lasting key"):
                keys.grant(giver_id, "farm", {KeyScope.KEYS_WRITE})
        keys.revoke(giver.id)
        with pytest.raises(NotGranted, match="only a lasting key"):
            keys.grant(giver.id, "farm", {KeyScope.JOBS_READ})

    def test_a_key_revokes_itself_and_what_may_do_no_more(self, keys, giver):
        token = keys.create("n", {KeyScope.KEYS_WRITE})[1]
        peer = keys.create("peer", giver.scopes)[0]
        more = keys.create("more", {*giver.scopes, KeyScope.WORK})[0]
        session, _ = keys.begin_session(token, {KeyScope.KEYS_WRITE}, 60)
        for asks, refused in ((giver, more), (session, peer), (session, giver)):
            with pytest.raises(NotGranted, match="may do more"):
                keys.revoke(refused.id, asks.id)
        assert [one.revoked_at for one in keys.list()] == [None] * 4
        for revoked in (peer.id, session.owner, giver.id):
            assert keys.revoke(revoked, giver.id).revoked_at is not None
        with pytest.raises(NotGranted, match="in force"):
            keys.revoke(more.id, giver.id)
        assert keys.revoke(more.id).revoked_at is not None

    @pytest.mark.parametrize(
        ("own", "others", "may"),
        [
            (["team"], None, False),
            (["team"], ["team.x", "other"], False),
            (["team"], ["team.x", "team"], True),
            (["team"], [], True),
            (None, ["team"], True),
            (None, None, True),
        ],
    )
    def test_it_revokes_within_its_namespaces(self, keys, own, others, may):
        giver, _ = keys.create("team", {KeyScope.KEYS_WRITE, KeyScope.LOGS_READ}, namespaces=own)
        other, _ = keys.create("other", {KeyScope.LOGS_READ}, namespaces=others)
        if may:
            assert keys.revoke(other.id, giver.id).revoked_at is not None
        else:
            with pytest.raises(NotGranted, match="may do more"):
                keys.revoke(other.id, giver.id)

    def test_keys_that_revoke_each_other_all_end(self, shared_url):
        with open_store(shared_url) as store:
            for _ in range(5):
                ids = [store.keys.create(name, {KeyScope.KEYS_WRITE})[0].id for name in "ab"]

                def revoke(number, ids=ids):
                    with suppress(NotGranted):  # the other one was before
                        store.keys.revoke(ids[number % 2], ids[1 - number % 2])

                in_threads(revoke, 4)
                assert any(key.revoked_at for key in store.keys.list() if key.id in ids)

    def test_namespaces_are_those_of_the_maker_or_below(self, keys):
        giver, _ = keys.create("team", {KeyScope.LOGS_READ}, namespaces=["team"])
        assert keys.grant(giver.id, "a", {KeyScope.LOGS_READ})[0].namespaces == {"team"}
        assert keys.grant(giver.id, "b", {KeyScope.LOGS_READ}, namespaces=["team.x"])[0].namespaces == {"team.x"}
        with pytest.raises(NotGranted, match="other"):
            keys.grant(giver.id, "c", {KeyScope.LOGS_READ}, namespaces=["other"])
