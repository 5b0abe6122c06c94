"""`tunewright retime` and `db stale`: a real model, whose database is made to look as of an older compiler."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tunewright.codegen.host import machine
from tunewright.db.job import JobState
from tunewright.db.store import open_store
from tunewright.tuner import tune
from tunewright.tuner.search import local_retiming
from tunewright.tuner.search.retiming import Retiming

from ..commands import Command
from .test_cli_docs import promised

BEFORE = {"tunewright": machine()["tunewright"], "llvmlite": "0.1", "llvm": "3.4"}


AGE = "UPDATE {} SET provenance = json_set(provenance, '$.llvmlite', '0.1', '$.llvm', '3.4')"


def age(path: Path) -> None:
    """Have all that was measured come from an older compiler."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("trials", "confirmations", "bests"):
            connection.execute(AGE.format(table))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A database of a small job."""
    path = tmp_path_factory.mktemp("db") / "tuning.db"
    tune(model, db=f"sqlite:///{path}", trials=12, threads=1)
    return path


@pytest.fixture
def old(tuned: Path, tmp_path: Path) -> Path:
    """The same as an upgrade finds it."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(tuned)) as source, closing(sqlite3.connect(path)) as copy:
        source.backup(copy)
    age(path)
    return path


def options(path: Path) -> list[object]:
    return ["--db", f"sqlite:///{path}"]


@pytest.mark.slow
def test_nothing_is_stale_before_an_upgrade(tuned: Path, command: Command) -> None:
    assert command("db", "stale", *options(tuned), "--json").data["targets"] == []
    assert "nothing is stale" in command("db", "stale", *options(tuned)).out
    assert command("retime", *options(tuned), "--json").data == {"jobs": []}
    assert "nothing is stale" in command("retime", *options(tuned)).out


def test_what_is_stale_is_told(old: Path, command: Command) -> None:
    data = command("db", "stale", *options(old), "--json").data
    keys, entries = promised("db stale")
    assert data.keys() == keys and data["targets"][0].keys() == entries["targets"]
    [target] = data["targets"]
    assert (target["stale"], target["tasks"], target["before"]) == (2, 2, [BEFORE])
    assert target["versions"] == {name: machine()[name] for name in BEFORE}
    out = command("db", "stale", *options(old)).out
    assert "llvmlite 0.1" in out and "tunewright retime" in out


def test_doctor_names_the_command(old: Path, tuned: Path, command: Command) -> None:
    for path, expected in ((old, True), (tuned, False)):
        notes = {check["name"]: check for check in command("doctor", *options(path), "--json").data["checks"]}
        assert ("stale" in notes) == expected
        if expected:
            assert notes["stale"]["state"] == "note" and "2 tasks were tuned by other" in notes["stale"]["found"]
            assert f"tunewright retime --db sqlite:///{path}" in notes["stale"]["mend"]


def test_lookups_tell_what_is_stale(old: Path, tuned: Path, model: Path, command: Command) -> None:
    for path, expected in ((old, True), (tuned, False)):
        arguments = [model, *options(path), "--threads", 1]
        assert {task["stale"] for task in command("lookup", *arguments, "--json").data["tasks"]} == {expected}
        assert ("2 tasks were tuned by other versions" in command("lookup", *arguments).out) == expected


@pytest.mark.slow
def test_a_model_is_timed_again(old: Path, model: Path, command: Command) -> None:
    data = command("retime", model, *options(old), "--threads", 1, "--best", 3, "--json").data
    assert data.keys() == promised("tune")[0]
    assert data["tuned_ms"] and data["outcome"] != "untimed" and data["ended_by"] is None
    for task in data["tasks"]:
        assert task["retimed"]["versions"] == BEFORE and task["confirmed"]
        assert task["best_ms"] and task["default_ms"] and task["retimed"]["best_ms"]
    upgrade = data["upgrade"]
    assert upgrade["tasks"] == sum(upgrade["payoffs"].values()) == 2 and upgrade["schedules"] == 3
    assert upgrade["share"] == pytest.approx(upgrade["seconds"] / upgrade["tuning_seconds"])
    assert command("db", "stale", *options(old), "--json").data["targets"] == []


def test_all_that_is_stale_here_is_timed_again(old: Path, command: Command) -> None:
    result = command("retime", *options(old))
    assert "2 stale tasks of cpu" in result.err
    assert re.search(
        r"timing them again took \d+:\d\d, [\d.]+[%x] of the \d+:\d\d that their tuning had taken", result.out
    )
    assert "of 2 tasks that were stale" in result.out or "for 2 tasks that were stale" in result.out
    assert "it is a job of tasks, without a model" in result.out
    with open_store(f"sqlite:///{old}") as store:
        [job, _] = store.jobs.list()
    assert (job.state, job.spec.model_sha256, job.spec.retimed, job.trials) == (JobState.SUCCEEDED, "", 5, 0)


def test_only_the_target_that_is_named(old: Path, command: Command) -> None:
    assert command("retime", *options(old), "--threads", 2, "--json").data == {"jobs": []}


@pytest.mark.slow
def test_the_same_command_goes_on(old: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, judged = Retiming.judge, list[object]()

    def interrupt(retiming: Retiming, state: object, report: object) -> object:
        if len(judged) == 2:  # of the first task, when it is stored and when it is reported
            raise KeyboardInterrupt
        judged.append(state)
        return judge(retiming, state, report)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Retiming, "judge", interrupt)
        stopped = command("retime", *options(old))
    assert stopped.code == 130 and "the same command goes on from there" in stopped.err
    [job] = command("retime", *options(old), "--json").data["jobs"]
    assert job["job"] == 2 and [task["retimed"] is not None for task in job["tasks"]] == [True, True]
    with open_store(f"sqlite:///{old}") as store:
        events = [event for event in store.jobs.events(2) if event.kind == "confirmed"]
    assert len(events) == 2


@pytest.mark.parametrize("best", [0, 25])
def test_bounds(best: int, old: Path, command: Command) -> None:
    assert command("retime", *options(old), "--best", best).code == 2


def test_a_missing_database_is_not_made(tmp_path: Path, model: Path, command: Command) -> None:
    for arguments in (["retime"], ["retime", model], ["db", "stale"]):
        refused = command(*arguments, *options(tmp_path / "none.db"))
        assert refused.code == 2 and "there is no such database" in refused.err
    assert not (tmp_path / "none.db").exists()


def test_what_another_machine_tuned_is_left_alone(old: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_retiming, "is_here", lambda target: False)
    assert command("retime", *options(old), "--json").data == {"jobs": []}
