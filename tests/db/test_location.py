from pathlib import Path

import pytest

from tunewright.db.engine import is_missing, parse_url
from tunewright.db.location import is_absent, plain_file


@pytest.mark.parametrize("name", ["tuning.db", "a b#c.db", "a&b=c.db"])
@pytest.mark.parametrize("exists", [False, True])
def test_a_file_is_absent_where_sql_finds_none(tmp_path, name, exists):
    if exists:
        (tmp_path / name).touch()
    url = f"sqlite:///{tmp_path / name}"
    assert plain_file(url) == tmp_path / name
    assert is_absent(url) == is_missing(parse_url(url)) == (not exists)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///file:x.db?uri=true", "sqlite:///x.db?mode=ro",
            "sqlite:///%41.db",
            "sqlite+pysqlite:///x.db", "postgresql://host/x"],
)  # fmt: skip
def test_of_other_urls_only_a_connection_tells(url):
    assert plain_file(url) is None
    assert not is_absent(url)


def test_a_relative_path_is_one():
    assert plain_file("sqlite:///x.db") == Path("x.db")
