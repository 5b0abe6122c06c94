"""Records from elsewhere, as JSON lines."""

import json

import pytest

from tunewright.api.http.service import Options
from tunewright.db.access import KeyScope
from tunewright.db.store import open_store
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule


@pytest.fixture
def exported(kit, tmp_path):
    """The lines of a database with three trials."""
    with open_store(f"sqlite:///{tmp_path}/other.db") as store:
        store.add_task(kit.task(8))
        store.add_target(kit.target())
        for number in range(3):
            measurement = Measurement(Status.OK, (1e-3,), 1e-3, 1e-3, 1e-3, 0.0)
            store.record(Record(kit.task(8).key, kit.target().key, Schedule("tiled", 1, (("m", number),)), measurement))
        return [json.dumps(line) for line in store.export()]


def test_records_are_imported_once(one, client, exported):
    text = "\n".join(exported) + "\n"
    assert client.post("/v1/records", content=text).json() == {"added": 3, "known": 0}
    assert client.post("/v1/records", content=text).json() == {"added": 0, "known": 3}
    assert client.post("/v1/records", content=b"").json() == {"added": 0, "known": 0}
    assert one.store.counts()["trials"] == 3


def test_the_summary_of_an_export_must_be_right(one, client, kit, exported):
    def sent(count):
        return client.post("/v1/records", content="\n".join([*exported, f'{{"exported": {count}}}']) + "\n")

    said = kit.problem(sent(4), "bad-records", 422)["detail"]
    assert said == 'line 4: it says {"exported": 4}, but 3 records precede it; 3 records before it are stored'
    assert sent(3).json() == {"added": 0, "known": 3}


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", "null", "\x00", '{"schema": 99}', "[" * 9000, '"' + "x" * 5_000_000 + '"', "\udc80"]
)
def test_lines_that_are_no_records(one, client, kit, exported, line):
    text = "\n".join([exported[0], line, exported[1]]).encode(errors="surrogateescape")
    said = kit.problem(client.post("/v1/records", content=text), "bad-records", 422)["detail"]
    assert said.startswith("line 2: ")
    assert len(said) < 500
    assert client.post("/v1/records", content="\n".join(exported)).json()["added"] >= 2


def test_importing_needs_its_scope_and_has_a_limit(serve, kit, exported):
    with serve(Options(import_bytes=100)) as one:
        reader = one.client(one.key(KeyScope.RECORDS_READ, KeyScope.JOBS_WRITE))
        kit.problem(reader.post("/v1/records", content=b""), "missing-scope", 403)
        kit.problem(one.client().post("/v1/records", content="\n".join(exported)), "too-large", 413)
        kit.problem(one.client().post("/v1/records", content=iter([b"x" * 60, b"x" * 60])), "too-large", 413)


def test_an_export_has_no_empty_lines(one, client, kit, exported, monkeypatch):
    """Also of what nothing meets, a piece after the other: each line is JSON."""
    monkeypatch.setattr("tunewright.api.http.routes.records.LOOKED_AT", 1)
    client.post("/v1/records", content="\n".join(exported))
    for query in ("op=nothing", f"op={json.loads(exported[0])['task']['op']}", ""):
        text = client.get(f"/v1/records?{query}").text
        lines = [json.loads(line) for line in text.splitlines()]
        assert lines[-1] == {"exported": len(lines) - 1}
        assert client.post("/v1/records", content=text).json()["added"] == 0
