"""Commands that only read leave a database as it is, to the last byte, and so a backup remains one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from tunewright.api import program
from tunewright.db.backup import backup, restore
from tunewright.db.schema import HEAD
from tunewright.db.store import open_store
from tunewright.tuner.search.tuning import tune

from ..commands import Command, commands
from ..db.conftest import FROZEN
from ..tuner.conftest import small_model

READING = {
    "bench": ["MODEL", "--threads", "1"],
    "run": ["MODEL", "--threads", "1"],
    "lookup": ["MODEL", "--threads", "1"],
    "lock": ["MODEL", "--threads", "1", "--output", "FOLDER/model.lock"],
    "compile": ["MODEL", "--threads", "1", "--output", "FOLDER/libmodel.so"],
    "tasks": ["MODEL", "--threads", "1"],
    "show": ["TASK"],
    "report": ["1", "--output", "FOLDER/report"],
    "export": [],
    "backup": ["FOLDER/another.sqlite"],
    "key list": [],
    "db stale": [],
    "audit": [],
    "doctor": [],
}
"""Arguments of each command that reads a database."""

WRITING = {
    "tune", "work", "serve", "import", "void", "restore", "db upgrade", "key create", "key link", "key revoke",
    "retime", "db prune",
}  # fmt: skip


def with_database(group: TyperGroup, before: str = "") -> Iterator[str]:
    """The commands that take a database."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from with_database(command, f"{before}{name} ")
        elif any("--db" in parameter.opts for parameter in command.params):
            assert isinstance(command, TyperCommand)
            yield before + name


def test_each_command_reads_or_writes() -> None:
    group = typer.main.get_command(program.app)
    assert isinstance(group, TyperGroup)
    assert set(with_database(group)) == set(READING) | WRITING


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    return commands(program.execute, capfd)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(small_model(), path)
    return path


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of the database of a job."""
    folder = tmp_path_factory.mktemp("made")
    tune(model, db=f"sqlite:///{folder}/tuning.db", trials=2, threads=1)
    backup(f"sqlite:///{folder}/tuning.db", folder / "b.sqlite")
    return folder / "b.sqlite"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", READING)
def test_a_backup_remains_one(name: str, made: Path, model: Path, command: Command, tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    file = tmp_path / "backups" / "b.sqlite"
    shutil.copyfile(made, file)
    url = f"sqlite:///{file}"
    with open_store(f"sqlite:///{made.with_name('tuning.db')}") as store:
        values = {"MODEL": str(model), "TASK": store.task_keys()[0]}
    before = contents(file.parent)
    arguments = [values.get(text, text).replace("FOLDER", str(tmp_path)) for text in READING[name]]
    answer = command(*name.split(), *arguments, "--db", url)
    assert answer.code == 0, answer
    assert contents(file.parent) == before
    assert restore(file, f"sqlite:///{tmp_path}/restored.db").counts["trials"] == 2


@pytest.mark.parametrize("name", sorted(set(READING) - {"doctor", "backup"}))
def test_an_older_schema_stays(name: str, model: Path, command: Command, tmp_path: Path) -> None:
    """The error says which it is, and what to do; `doctor` and `backup` can do with any."""
    (tmp_path / "old").mkdir()
    file = tmp_path / "old" / "old.sqlite"
    shutil.copyfile(FROZEN[-2], file)
    before = contents(file.parent)
    values = {"MODEL": str(model), "TASK": "0"}
    arguments = [values.get(text, text).replace("FOLDER", str(tmp_path)) for text in READING[name]]
    answer = command(*name.split(), *arguments, "--db", f"sqlite:///{file}")
    [line] = answer.err.splitlines()
    assert answer.code == 2 and line.startswith(f"error: sqlite:///{file}: its schema is {FROZEN[-2].stem}, ")
    assert HEAD in line and "tunewright db upgrade" in line and "tunewright restore" in line
    assert contents(file.parent) == before
