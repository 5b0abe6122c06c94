"""Lock files: what was found is pinned, and nothing else is run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tunewright.api.client import breaker, tiers
from tunewright.codegen.host import detect
from tunewright.search_space.measurement import Measurement, Status
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.errors import Refused
from tunewright.tuner.lookup.lockfile import read_lock, write_lock
from tunewright.tuner.lookup.result import LookupResult, Match
from tunewright.tuner.lookup.source import KEPT_NOTE
from tunewright.tuner.models.model import open_model
from tunewright.tuner.session.session import InferenceSession

from ..commands import Command
from .conftest import small_model

TARGET = detect(1)


def pinned(path: Path) -> dict[str, LookupResult]:
    """A lock file of the small model with one schedule that is not the default; what it says."""
    model = open_model(small_model().SerializeToString())
    found = {}
    for key, (task, _) in model.tasks.items():
        [space, *_] = spaces(task, TARGET)
        found[key] = LookupResult(task, Match.DEFAULT, space.schedule(space.points[-1]), None)
    write_lock(path, model, TARGET, {}, found)
    return found


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "small.lock.json"
    pinned(path)
    return path


def test_a_session_runs_what_is_pinned(tmp_path: Path) -> None:
    path = tmp_path / "x.lock.json"
    found = pinned(path)
    data = small_model().SerializeToString()
    with InferenceSession(data, lock=path) as session:
        assert session.schedules == {key: one.schedule for key, one in found.items()}
        assert session.notes == ("2 of 2 tasks run untuned; tuning for these dims and threads may make them faster",)
        with InferenceSession.of(open_model(data), TARGET, {}) as other:
            feed = {"x": np.ones((4, 8), np.float32)}
            np.testing.assert_allclose(session.run(None, feed)[0], other.run(None, feed)[0], rtol=1e-5)


def test_the_file_is_plain_data(lock: Path) -> None:
    data = json.loads(lock.read_text())
    assert (data["schema"], data["target"], data["dims"]) == (1, TARGET.to_json(), {})
    assert {"key", "op", "occurrences", "match", "schedule", "expected_ms", "provenance"} <= data["tasks"][0].keys()
    assert [path.name for path in lock.parent.iterdir()] == [lock.name]


def changed(lock: Path, **changes: Any) -> Path:
    lock.write_text(json.dumps(json.loads(lock.read_text()) | changes))
    return lock


def test_another_file_of_the_same_tasks_is_noted(lock: Path) -> None:
    with InferenceSession(small_model(names=("in", "out")).SerializeToString(), lock=lock) as session:
        assert session.notes[0] == f"'{lock}' was made from another file of the same tasks"


def test_other_tasks_are_refused(lock: Path) -> None:
    with pytest.raises(Refused, match="is of other tasks: it lacks 2 of the model's, and has 2 that"):
        InferenceSession(small_model(rows=5).SerializeToString(), lock=lock)


def test_another_target_is_noted_where_all_schedules_hold(lock: Path) -> None:
    changed(lock, target=TARGET.to_json() | {"cpu": "another", "threads": 1})
    with InferenceSession(small_model().SerializeToString(), lock=lock) as session:
        note = session.notes[0]
        assert "was made for cpu:another:1x" in note and "hold for" in note


def test_and_refused_where_one_does_not(lock: Path) -> None:
    data = json.loads(lock.read_text())
    data["tasks"][0]["schedule"]["values"] = dict.fromkeys(data["tasks"][0]["schedule"]["values"], 1 << 20)
    changed(lock, tasks=data["tasks"], target=TARGET.to_json() | {"cpu": "another"})
    with pytest.raises(Refused, match="its schedule is not legal for the task; it was made for cpu:another:1x"):
        InferenceSession(small_model().SerializeToString(), lock=lock)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is no lock file, or is cut short; tunewright lock makes one"),
        ("{}", "is no lock file; tunewright lock makes one"),
        ("[]", "is no lock file; tunewright lock makes one"),
        ('{"schema": 2}', "is of schema 2; this version reads 1"),
        ('{"schema": 1}', "no lock file that can be read: 'target' is missing"),
        ('{"schema": 1, "target": {"kind": "cpu"}}', "no lock file that can be read: 'triple', 'cpu'"),
        ("[" * 100_000, "is no lock file, or is cut short"),
        ("\N{SNOWMAN}", "is no lock file, or is cut short"),
    ],
)
def test_other_files_are_refused(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(content)
    with pytest.raises(Refused, match=said):
        read_lock(tmp_path / "f")


@pytest.mark.slow
def test_the_file_says_dimensions_and_threads(tmp_path: Path, command: Command) -> None:
    model = tmp_path / "open.onnx"
    onnx.save(small_model(rows="n"), model)
    database = ["--db", f"sqlite:///{tmp_path / 'tuning.db'}"]
    assert command("tune", model, *database, "--dim", "n=3", "--threads", 1, "--trials", 4, "--json").code == 0
    lock = tmp_path / "pinned.json"
    data = command("lock", model, *database, "--dim", "n=3", "--threads", 1, "-o", lock, "--json").data
    is_kept = data["notes"] == [KEPT_NOTE]  # as it may be where the machine is busy
    assert (data["file"], data["tasks"], data["matches"]) == (str(lock), 2, {"default" if is_kept else "exact": 2})
    assert is_kept or data["notes"] == []
    run = command("run", model, "--lock", lock, "--json")
    assert run.code == 0, run.err
    assert run.data["tasks"] == {
        "tuned": 0 if is_kept else 2,
        "transferred": 0,
        **dict.fromkeys(("default", "kept"), 2 if is_kept else 0),
    }
    assert run.data["outputs"][0]["shape"] == [3, 24] and run.data["target"].startswith("cpu:")
    assert ":1x" in run.data["target"]
    other = command("run", model, "--lock", lock, "--dim", "n=4")
    assert other.code == 2 and "is of other tasks" in other.err
    both = command("run", model, "--lock", lock, *database)
    assert both.code == 2 and "give one of db and lock" in both.err


def test_lock_names_its_file_and_prints(model: Path, tmp_path: Path, command: Command) -> None:
    copy = tmp_path / "m.onnx"
    copy.write_bytes(model.read_bytes())
    answer = command("lock", copy, "--threads", 1)
    assert answer.code == 0, answer.err
    assert (tmp_path / "m.onnx.lock.json").exists()
    assert "m.onnx.lock.json pins 2 tasks for cpu:" in answer.out and "2 default" in answer.out


def test_a_file_that_can_not_be_written_is_named(model: Path, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "missing" / "m.json"
    answer = command("lock", model, "--threads", 1, "-o", path)
    assert answer.code == 2
    said = f"No such file or directory; check the name: there is no folder {str(path.parent)!r}"
    assert answer.err == f"error: {str(path)!r}: {said}\n"


def test_nothing_is_pinned_that_must_not_run(tmp_path: Path) -> None:
    model = open_model(small_model().SerializeToString())
    found = {
        key: LookupResult(task, Match.NONE, spaces(task, TARGET)[0].default, None)
        for key, (task, _) in model.tasks.items()
    }
    with pytest.raises(Refused, match="has no schedule that works on"):
        write_lock(tmp_path / "f", model, TARGET, {}, found)
    assert list(tmp_path.iterdir()) == []


AWAY = "http://127.0.0.1:1"


class TestServerThatIsAway:
    """What a lock pins holds for all rebuilds, so a default that nobody chose is not pinned."""

    @pytest.fixture(autouse=True)
    def _new_process(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(breaker, "_breakers", {})
        for name, value in (("_shared", {}), ("_logged_notes", set())):
            monkeypatch.setattr(tiers, name, value)

    @staticmethod
    def keep(model: Path, count: int) -> None:
        """Answers for the first tasks are kept from long ago, when the server was there."""
        lookups = tiers.lookups(AWAY)
        for task, _ in list(open_model(model).tasks.values())[:count]:
            found = LookupResult(
                task, Match.EXACT, default_schedule(task, TARGET), Measurement(Status.OK, median_s=1e-3)
            )
            lookups._write(task.key, TARGET, found.to_json(), 0.0)

    @pytest.mark.parametrize("kept", [0, 1])
    def test_defaults_are_not_pinned(self, kept: int, command: Command, model: Path, tmp_path: Path) -> None:
        self.keep(model, kept)
        answer = command("lock", model, "--server", AWAY, "--threads", 1, "-o", tmp_path / "x.lock.json")
        assert (answer.code, answer.out) == (2, "")
        [line] = answer.err.splitlines()
        assert f"{AWAY} could not be asked for {2 - kept} of 2 tasks" in line and "nothing was written" in line
        assert not (tmp_path / "x.lock.json").exists()

    def test_kept_answers_are(self, command: Command, model: Path, tmp_path: Path) -> None:
        self.keep(model, 2)
        answer = command("lock", model, "--server", AWAY, "--threads", 1, "-o", tmp_path / "x.lock.json", "--json")
        assert answer.code == 0, answer.err
        assert answer.data["matches"] == {"exact": 2}
        assert [line.startswith(f"note: {AWAY}: ") for line in answer.err.splitlines()] == [True]

    def test_a_lookup_tells_it_once(self, model: Path) -> None:
        program = "from tunewright.api.cli import main; main()"
        arguments = [sys.executable, "-c", program, "lookup", str(model), "--server", AWAY]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
        [line] = done.stderr.splitlines()
        assert line.startswith("note: ") and line.endswith("; kept answers and defaults are used")
