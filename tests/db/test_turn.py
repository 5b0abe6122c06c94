"""Of several processes one has its turn."""

import pytest
from sqlalchemy import text

from tunewright.db.store import open_store
from tunewright.db.turn import Turn


def test_alone_it_is_always_ours(store):
    turn = Turn(store.database, 1)
    assert [turn.is_ours() for _ in range(3)] == [True] * 3
    turn.close()
    assert turn.is_ours()
    turn.close()


@pytest.mark.postgres
def test_one_of_two_has_it_until_it_ends_or_loses_its_connection(make_url):
    url = make_url("postgres")
    with open_store(url) as one, open_store(url) as two:
        first, second, other = Turn(one.database, 1), Turn(two.database, 1), Turn(two.database, 2)
        assert first.is_ours() and not second.is_ours() and other.is_ours() and first.is_ours()
        first.close()
        assert second.is_ours() and not first.is_ours()
        with one.database.engine.connect() as connection:
            key = connection.execute(text("SELECT hashtext(current_schema() || ' 1')")).scalar_one() & 0xFFFFFFFF
            holders = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1953854062 AND objid = :key"
            for pid in connection.execute(text(holders), {"key": key}).scalars():
                connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        assert first.is_ours()
        assert not second.is_ours()
        for turn in (first, second, other):
            turn.close()


@pytest.mark.postgres
def test_installations_in_two_schemas_of_a_database_have_a_turn_each(make_url):
    with open_store(make_url("postgres")) as one, open_store(make_url("postgres")) as two:
        first, second = Turn(one.database, 1), Turn(two.database, 1)
        assert first.is_ours() and second.is_ours()
        first.close()
        second.close()
