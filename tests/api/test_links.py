"""`tunewright key link`: a link that opens the dashboard once, made without a service."""

import json
import re
from pathlib import Path

import pytest

from tunewright.api import program
from tunewright.db.access import KeyScope
from tunewright.db.store import open_store

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


@pytest.fixture
def link(url, capfd):
    """`link("--json")` runs it on a new database of each kind: exit code, standard output, standard error."""

    def run(*arguments):
        capfd.readouterr()
        return program.execute(["key", "link", "--db", url, *arguments]), *capfd.readouterr()

    return run


@pytest.mark.parametrize(
    ("given", "variable", "start"),
    [
        ([], "", "/login?code=tw_"),
        ([], "http://10.0.0.7:8433", "http://10.0.0.7:8433/login?code=tw_"),
        (["--server", "https://tune.example.org/"], "http://no:1", "https://tune.example.org/login?code=tw_"),
        (["--server", ""], "http://no:1", "/login?code=tw_"),
    ],
)
def test_it_is_alone_on_standard_output(given, variable, start, url, link, monkeypatch):
    monkeypatch.setenv("TUNEWRIGHT_SERVER", variable)
    code, out, err = link(*given)
    assert code == 0
    assert out.startswith(start) and out.count("\n") == 1
    assert "within 15 minutes" in err
    assert ("put the address" in err) == start.startswith("/")
    token = out.strip().rpartition("=")[2]
    assert token not in err
    with open_store(url) as store:
        assert store.keys.list() == []
        key = store.keys.use_once(token)
        assert key is not None and key.expires_at is not None
        assert key.scopes == {KeyScope.LOGIN}
        assert (key.expires_at - key.created_at).total_seconds() == 15 * 60
        assert store.keys.use_once(token) is None


def test_the_docs_have_every_key_of_its_json(link):
    code, out, _ = link("--json")
    section = DOCS.read_text().split("\n## key link\n")[1].split("\n## ")[0]
    assert code == 0
    assert json.loads(out).keys() == set(re.findall(r"`(\w+)`", section.split("\nJSON: ")[1]))


def test_no_server_has_such_an_address(link):
    code, out, err = link("--server", "tune.example.org")
    assert (code, out) == (2, "")
    assert "a server is http://HOST:PORT" in err


def test_it_opens_the_dashboard_once(url, serve, link):
    with serve(url=url) as one:
        address = link("--server", one.url)[1].strip()
        browser = one.client(token="")
        assert browser.get("/").status_code == 401
        assert browser.get(address).status_code == 200
        browser.headers["Origin"] = one.url
        assert browser.get("/").status_code == 200
        assert "tunewright key link" in browser.post("/logout").text
        assert "tunewright key link" in one.client(token="").get(address).text
