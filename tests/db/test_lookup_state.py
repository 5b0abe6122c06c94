"""The state of what lookups read: new with each row that may change an answer, and with nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tunewright.db.job import JobState, SearchBudget
from tunewright.db.lookup_state import lookup_state
from tunewright.db.snapshot import NewSnapshot
from tunewright.db.store import Store, open_store

from .conftest import Samples
from .test_trust import START, line


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tuning #1.db"


@pytest.fixture
def opened(file: Path, samples: Samples) -> Iterator[Store]:
    """A store that stays open meanwhile, as that of a server."""
    with open_store(f"sqlite:///{file}") as store:
        samples.fill(store)
        yield store


def test_processes_that_wait_change_nothing(file: Path, opened: Store, samples: Samples) -> None:
    opened.record(samples.record())
    state = lookup_state(file)
    assert state is not None
    opened.fleet.enlist("t1", "host", 1, "1.0", "local")
    for _ in range(3):
        opened.fleet.report("t1", [])
    opened.fleet.leave("t1")
    assert lookup_state(file) == state


def key(samples: Samples) -> tuple[str, str, str]:
    record = samples.record()
    return record.task_key, record.target_key, record.schedule.key


def finish_job(store: Store, samples: Samples) -> None:
    lease, file = (
        store.jobs.open(samples.spec(), "", SearchBudget(9), "h"),
        Path(str(store.database.engine.url.database)),
    )
    before = lookup_state(file)
    assert lease is not None
    store.jobs.finish(lease, JobState.SUCCEEDED, result={"outcome": "defaults_kept"})
    assert lookup_state(file) != before


CHANGES: dict[str, Callable[[Store, Samples], object]] = {
    "trial": lambda store, samples: store.record(samples.record(1)),
    "confirmation": lambda store, samples: store.confirm(samples.record(0)),
    "void": lambda store, samples: store.voids.void(*key(samples), "wrong"),
    "lifted": lambda store, samples: (store.voids.void(*key(samples), "wrong"), store.voids.lift(*key(samples))),
    "verdict": finish_job,
    "snapshot": lambda store, samples: store.snapshots.keep(NewSnapshot("cpu", "1", b"x", 1, 1, {})),
    "import": lambda store, samples: store.import_([line(samples, samples.record(3), START)]),
    "gives way": lambda store, samples: store.record(samples.record(2)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_lookups_may_find_is_seen_at_once(change: str, file: Path, opened: Store, samples: Samples) -> None:
    opened.record(samples.record())
    opened.import_([line(samples, samples.record(2), START)])  # "gives way" puts a trial in its place
    before = lookup_state(file)
    CHANGES[change](opened, samples)
    assert before is not None and lookup_state(file) not in (None, before)


def test_it_is_the_same_whether_others_have_it_open(file: Path, samples: Samples) -> None:
    with open_store(f"sqlite:///{file}") as store:
        samples.fill(store)
        store.record(samples.record())
        state = lookup_state(file)
    names = sorted(path.name for path in file.parent.iterdir())
    assert lookup_state(file) == state is not None
    assert sorted(path.name for path in file.parent.iterdir()) == names


KILLED = """
import os, sys
from tunewright.db.store import open_store
from tests.db.conftest import Samples
store = open_store(sys.argv[1])
store.record(Samples().record(7))
os._exit(9)
"""


def test_what_a_killed_process_wrote_last_counts(file: Path, samples: Samples) -> None:
    """It is in the journal alone."""
    with open_store(f"sqlite:///{file}") as store:
        samples.fill(store)
    before = lookup_state(file)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED, f"sqlite:///{file}"], env=environment, timeout=60, check=False)
    assert done.returncode == 9
    after = lookup_state(file)
    assert after not in (None, before)
    with open_store(f"sqlite:///{file}"):  # brings the journal into the file
        pass
    assert lookup_state(file) == after


def test_another_file_in_its_place(file: Path, tmp_path: Path, samples: Samples) -> None:
    other = tmp_path / "other.db"
    for path in (file, other):
        with open_store(f"sqlite:///{path}") as store:
            samples.fill(store)
            store.record(samples.record())
    before = lookup_state(file)
    content = file.stat().st_ino
    shutil.copyfile(other, file)  # the same inode
    assert file.stat().st_ino == content and lookup_state(file) not in (None, before)


def test_what_is_no_database(tmp_path: Path) -> None:
    for content in (b"", b"x" * 4096):
        (tmp_path / "x").write_bytes(content)
        assert lookup_state(tmp_path / "x") is None
    assert lookup_state(tmp_path / "none") is None and not (tmp_path / "none").exists()
