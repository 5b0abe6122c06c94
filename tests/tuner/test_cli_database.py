"""`tunewright backup` and `restore`, and records that travel."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import stat
from contextlib import closing
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy import update

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, op
from tunewright.codegen.target import Target
from tunewright.db.errors import Damaged
from tunewright.db.job import EventKind, JobSpec, JobState, NewEvent, SearchBudget, SpecTask
from tunewright.db.pruning import trials
from tunewright.db.pruning.policy import RetentionPolicy
from tunewright.db.store import open_store
from tunewright.db.tables import JobRow
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.cli import database
from tunewright.tuner.settings import settings

from ..commands import Command
from ..waiting import wait_for
from .test_cli_bad_input import refused
from .test_cli_docs import promised

TARGET = Target("cpu", "x86_64-unknown-linux-gnu", "znver5", "+avx512f", 512, 32, 2, 49152, 1 << 20, 1 << 25)
MEASUREMENT = Measurement(Status.OK, (1e-3,), 1e-3, provenance={"llvm": "22.1.0"})


def relu() -> Task:
    x, y = Tensor("t0", (8,), DType.F32), Tensor("t1", (8,), DType.F32)
    return Task(
        "Relu", (x,), (y,), (), (Stage("t1", (Axis("a0", 8),), op("max", Load("t0", (Var("a0"),), DType.F32), 0.0)),)
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database of three trials and a confirmation."""
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    with open_store(url) as store:
        store.add_task(relu())
        store.add_target(TARGET)
        for number in range(3):
            time_s = 1e-3 * (number + 1)
            measurement = dataclasses.replace(MEASUREMENT, samples_s=(time_s,), median_s=time_s)
            store.record(Record(relu().key, TARGET.key, Schedule("tiled", 1, (("a", number),)), measurement))
        store.confirm(Record(relu().key, TARGET.key, default_schedule(relu(), TARGET), MEASUREMENT))
    return url


def test_backup_and_restore(url: str, command: Command, tmp_path: Path) -> None:
    file, other = tmp_path / "b.sqlite", f"sqlite:///{tmp_path / 'other.db'}"
    data = command("backup", file, "--db", url, "--json").data
    assert promised("backup")[0] == data.keys()
    assert (data["file"], data["counts"]["trials"], data["counts"]["confirmations"]) == (str(file), 3, 1)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    restored = command("restore", file, "--db", other, "--json").data
    assert promised("restore")[0] == restored.keys()
    assert restored["counts"] == data["counts"]
    assert command("export", "--db", other).out == command("export", "--db", url).out
    refused(command("restore", file, "--db", other), "other.db is in use", "restore fills an empty database")
    refused(command("backup", file, "--db", url), "is there already")


def test_a_backup_says_that_keys_are_in_it(url: str, command: Command, tmp_path: Path) -> None:
    assert "API keys" not in command("backup", tmp_path / "a.sqlite", "--db", url).out
    command("key", "create", "n", "--db", url)
    said = command("backup", tmp_path / "b.sqlite", "--db", url).out
    assert ", 1 key" in said and "1 keys" not in said
    assert "API keys are in it, as digests" in said


def test_a_backup_without_digests_is_told_of(url: str, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "b.sqlite"
    command("backup", file, "--db", url)
    assert command("restore", file, "--db", f"sqlite:///{tmp_path}/a.db", "--json").data["notes"] == []
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DROP TABLE backup_digests")
    restored = command("restore", file, "--db", f"sqlite:///{tmp_path}/b.db")
    assert restored.code == 0 and restored.err.startswith(f"note: {str(file)!r} was made by an older version")


def test_a_backup_that_was_changed_is_refused(url: str, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "b.sqlite"
    command("backup", file, "--db", url)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE trials SET median_s = median_s / 2")
    answer = command("restore", file, "--db", f"sqlite:///{tmp_path}/new.db")
    refused(answer, "b.sqlite' is damaged: its table trials", "restore another copy")
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    ("column", "statement", "value"),
    [
        ("samples_s", "UPDATE trials SET samples_s = ? WHERE id = 2", "[0.001, AAAA"),
        ("samples_s", "UPDATE trials SET samples_s = ? WHERE id = 2", "[0.001\0\0\0"),
        ("schedule", "UPDATE trials SET schedule = ? WHERE id = 2", '{"skAAAA": 1}'),
        ("created_at", "UPDATE trials SET created_at = ? WHERE id = 2", "AAAA-01-01"),
        ("status", "UPDATE trials SET status = ? WHERE id = 2", "AAAA"),
    ],
)
def test_a_row_that_can_not_be_read_is_told_of(
    url: str, command: Command, column: str, statement: str, value: str
) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute(statement, (value,))
    fault = f"{url} is damaged: a row of its table trials can't be read: its {column} is not what was stored"
    answer = command("export", "--db", url)  # of the rows before it there are lines
    assert (answer.code, answer.err) == (2, f"error: {fault}\n")
    with open_store(url) as store, pytest.raises(Damaged) as caught:
        store.records(relu().key, TARGET.key)
    assert str(caught.value) == fault


def test_what_takes_long_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    monkeypatch.setattr(database, "messages", lambda: Console(file=screen, force_terminal=True))
    monkeypatch.setattr(database, "SHOWN_AFTER_S", 3600.0)
    with database._show_progress() as watch:
        watch("soon done")
    assert screen.getvalue() == ""
    monkeypatch.setattr(database, "SHOWN_AFTER_S", 0.0)
    with database._show_progress() as watch:
        watch("copying trials")
        wait_for(lambda: "copying trials" in screen.getvalue())


def test_files_that_cannot_be(url: str, command: Command, tmp_path: Path) -> None:
    refused(command("backup", tmp_path / "folder" / "b.sqlite", "--db", url), "No such file or directory")
    refused(command("restore", tmp_path / "typo.sqlite", "--db", url), "typo.sqlite", "No such file or directory")
    (tmp_path / "text").write_text("hello")
    refused(command("restore", tmp_path / "text", "--db", f"sqlite:///{tmp_path}/new.db"), "is no backup")
    refused(command("backup", tmp_path / "b.sqlite", "--db", f"sqlite:///{tmp_path}/typo.db"), "no such database")
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix in (".sqlite", ".partial")) == []


def test_confirmations_travel(url: str, command: Command, tmp_path: Path) -> None:
    lines = command("export", "--db", url, "--json").out.splitlines(keepends=True)
    assert json.loads(lines[-1]) == {"exported": 4}
    assert [json.loads(line)["kind"] for line in lines[:-1]] == ["trial"] * 3 + ["confirmation"]
    (tmp_path / "records.jsonl").write_text("".join(lines))
    other = f"sqlite:///{tmp_path / 'other.db'}"
    data = command("import", tmp_path / "records.jsonl", "--db", other, "--json").data
    assert data == {"added": 4, "known": 0}
    assert promised("import")[0] == data.keys()
    with open_store(url) as here, open_store(other) as there:
        best = there.best(relu().key, TARGET.key)
        assert best is not None and best.schedule == default_schedule(relu(), TARGET)
        assert best == here.best(relu().key, TARGET.key)


def test_void_takes_back_and_undo_lifts_that(url: str, command: Command) -> None:
    where = ("--target", TARGET.key[:12], "--db", url)
    data = command("void", relu().key[:9], "--reason", "it lies", *where, "--json").data
    assert promised("void")[0] == data.keys()
    assert (data["records"], data["voided"]) == (1, True)
    with open_store(url) as store:
        assert store.best(relu().key, TARGET.key) == store.records(relu().key, TARGET.key)[0]
    lines = [json.loads(line) for line in command("export", "--db", url).out.splitlines()]
    assert [line["void_reason"] for line in lines] == ["", "", "", "it lies"]
    refused(command("void", relu().key, "--undo", *where), "--schedule KEY")
    refused(command("void", relu().key, *where), "--reason TEXT")
    for reason in ("bad\x1b[31m\nresult", "a\x07b"):
        refused(command("void", relu().key, "--reason", reason, *where), "--reason is ", "one line of printable char")
    refused(command("void", relu().key, "--reason", " ", *where), "--reason is blank; say why")
    refused(command("void", relu().key, "--reason", "x", "--schedule", "00ff00", *where), "there is none")
    refused(command("void", "fff000", "--reason", "x", *where), "key of one task", "there is none")
    said = command("void", relu().key, "--schedule", data["schedule_key"][:10], "--reason", "x", *where).out
    assert "taken back, and offered no more; clients of a server ask anew within an hour" in said
    said = command("void", relu().key, "--undo", "--schedule", data["schedule_key"][:10], *where).out
    assert "counts again" in said
    with open_store(url) as store:
        best = store.best(relu().key, TARGET.key)
        assert best is not None and best.schedule == default_schedule(relu(), TARGET)


def test_lines_of_the_first_version_are_read(url: str, command: Command, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in command("export", "--db", url).out.splitlines()]
    old = [{name: line[name] for name in line if name != "kind"} | {"schema": 1} for line in lines[:3]]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    assert command("import", tmp_path / "records.jsonl", "--db", url, "--json").data == {"added": 0, "known": 3}


def test_lines_without_an_end_are_refused(
    url: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunewright.tuner.cli.database.LINE_BYTES", 1 << 20)
    (tmp_path / "records.jsonl").write_bytes(b"[" * (3 << 20))
    refused(command("import", tmp_path / "records.jsonl", "--db", url), "line 1: it is longer than 1 MiB")


@pytest.fixture
def long_url(url: str) -> str:
    """The same database with a job that has ended, of 30 trials and 600 moments of progress."""
    with open_store(url) as store:
        spec = JobSpec("", TARGET.key, (SpecTask(relu().key, 1),))
        store.jobs.submit(spec, "net.onnx", SearchBudget(30))
        lease = store.jobs.lease([TARGET.key], "holder")
        assert lease is not None
        for number in range(100, 130):
            measurement = dataclasses.replace(MEASUREMENT, median_s=1e-3 * number)
            store.record(Record(relu().key, TARGET.key, Schedule("tiled", 1, (("a", number),)), measurement), lease)
        store.jobs.renew(lease, events=[NewEvent(EventKind.PROGRESS)] * 600)
        store.jobs.finish(lease, JobState.SUCCEEDED, result={})
    return url


def test_prune(long_url: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "LEARNED_TRIALS", 5)
    assert command("db", "prune", "--db", long_url).out.endswith(": nothing removed\n")
    options = ("--events-days", 0, "--best", 8, "--trials-days", 0, "--db", long_url)
    would = command("db", "prune", *options, "--dry-run", "--json").data
    assert would.keys() == promised("db prune")[0] and would["dry_run"]
    assert (would["events"] > 400, would["trials"]) == (True, 17)
    said = command("db", "prune", *options, "--dry-run").out
    assert said.endswith(f": {would['events']} events, 17 trials would be removed\n")
    assert command("db", "prune", *options, "--json").data == would | {"dry_run": False}
    assert command("db", "prune", *options).out.endswith(": nothing removed\n")


def test_prune_by_the_settings(long_url: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--trials-days needs --best" in command("db", "prune", "--trials-days", 0, "--db", long_url).err
    for name, value in (("EVENTS_DAYS", "forever"), ("TRIALS", "8"), ("MODELS_DAYS", "0.5")):
        monkeypatch.setenv(f"TUNEWRIGHT_KEEP_{name}", value)
    assert settings().retention == RetentionPolicy(None, 30.0, 0.5, 8, 90.0)
    assert command("db", "prune", "--trials-days", 0, "--db", long_url, "--json").data["events"] == 0
    monkeypatch.setenv("TUNEWRIGHT_KEEP_TRIALS", "1000000")
    assert settings().retention.best == 1_000_000
    for value in ("7", "8.5", "many", "-1", "nan", "1000001", "9" * 5000):
        monkeypatch.setenv("TUNEWRIGHT_KEEP_TRIALS", value)
        refused_settings = command("db", "prune", "--db", long_url)
        assert refused_settings.code != 0 and "TUNEWRIGHT_KEEP_TRIALS=" in refused_settings.err


@pytest.mark.slow
def test_trials_are_kept_for_ever_where_the_settings_say_so(
    long_url: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "LEARNED_TRIALS", 5)
    monkeypatch.setenv("TUNEWRIGHT_KEEP_TRIALS_DAYS", "forever")
    with open_store(long_url) as store, store.database.write() as session:  # its job finished long ago
        session.execute(update(JobRow).values(updated_at=datetime(2020, 1, 2, tzinfo=UTC)))
    prune = ("db", "prune", "--best", 8, "--db", long_url, "--json")
    assert command(*prune).data["trials"] == 0
    monkeypatch.delenv("TUNEWRIGHT_KEEP_TRIALS_DAYS")
    assert command(*prune).data["trials"] == 17
