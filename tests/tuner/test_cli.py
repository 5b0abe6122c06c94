"""The commands, on a small model that was tuned for a few trials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from tunewright.codegen.host import detect
from tunewright.db.store import open_store
from tunewright.db.transfer import IMPORTED_NOISE
from tunewright.search_space.measurement import NOISE
from tunewright.search_space.sketches import spaces
from tunewright.tuner import cli
from tunewright.tuner.lookup.verdict import model_verdict
from tunewright.tuner.search import tuning
from tunewright.tuner.search.strategies.strategy import STRATEGIES
from tunewright.tuner.settings import DEBUG_LADDER
from tunewright.tuner.targets import TARGETS

from ..commands import Command
from .processes import PROGRAM, python_path

TRIALS = 12

COMMANDS = [
    "tune",
    "retime",
    "bench",
    "run",
    "compile",
    "lookup",
    "lock",
    "tasks",
    "show",
    "export",
    "import",
    "doctor",
    "db",
]

HEAVY = ("numpy", "onnx", "llvmlite", "sqlalchemy", "alembic", "xgboost", "ray", "onnxruntime", "openvino")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('db') / 'tuning.db'}"


@pytest.fixture(scope="module")
def report(database: str, model: Path) -> dict[str, Any]:
    """What `tune --json` said, in a process of its own."""
    done = program("tune", model, "--trials", TRIALS, "--db", database, "--threads", 1, "--json")
    assert done.returncode == 0, done.stderr
    assert "reading the model" in done.stderr
    assert f"{TRIALS} of {TRIALS} trials" in done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


@pytest.fixture
def tuned(report: dict[str, Any], database: str, model: Path) -> list[object]:
    """Arguments that name the tuned model, its database and its target."""
    assert report["tasks"]
    return [model, "--db", database, "--threads", 1]


@pytest.fixture
def is_kept(tuned: list[object], command: Command) -> bool:
    """Whether the model keeps its defaults: a machine that is busy may not see that it is faster."""
    with open_store(str(tuned[2])) as store:
        tasks = [task["key"] for task in command("tasks", *tuned, "--json").data["tasks"]]
        return model_verdict(store, tasks, detect(1).key).kept is not None


def program(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=os.environ | python_path() | environment
    )


def test_starts_light() -> None:
    code = f"""
import sys
import tunewright.tuner
from tunewright.tuner import cli
try:
    cli.execute(["--help"])
finally:
    print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | python_path() | {"COLUMNS": "120"},
    )
    assert done.stderr == "[]\n"
    for name in COMMANDS:
        assert f" {name} " in done.stdout


def test_public_names_come_when_asked_for() -> None:
    import tunewright.tuner

    assert tunewright.tuner.tune is tuning.tune
    assert tunewright.tuner.InferenceSession.__name__ == "InferenceSession"
    with pytest.raises(AttributeError, match="nothing"):
        tunewright.tuner.nothing  # noqa: B018


def test_version(command: Command) -> None:
    assert command("--version").out.startswith("tunewright ")


def test_no_command_is_help(command: Command) -> None:
    answer = command()
    assert answer.code == 2
    assert "Usage" in answer.out
    assert answer.err == ""


@pytest.mark.parametrize(("option", "offered"), [("strategy", STRATEGIES), ("pool", tuning.POOLS), ("target", TARGETS)])
def test_choices_are_what_there_is(option: str, offered: Any) -> None:
    literal = get_type_hints(cli.tune.tune)[option]
    assert get_origin(literal) is not None
    assert list(get_args(literal)) == list(offered)


class TestTune:
    def test_report(self, report: dict[str, Any], model: Path) -> None:
        assert report["model"] == model.name
        assert report["target"].startswith("cpu:")
        assert report["trials"] == TRIALS
        assert report["seconds"] > 0
        assert report["failed"] == {}
        assert report["fallback"] == {}
        assert report["default_ms"] > 0
        assert report["tuned_ms"] > 0
        assert report["peak_gflops"] > 0
        assert sum(task["trials"] for task in report["tasks"]) == TRIALS
        for task in report["tasks"]:
            assert task["occurrences"] == 1
            assert task["best_ms"] <= task["default_ms"]
            assert task["gflops"] > 0
            assert 0 < task["fraction_of_peak"] < 1.5
            assert {"key", "op", "schedule"} <= task.keys()

    @pytest.mark.slow
    def test_table(self, tuned: list[object], command: Command) -> None:
        answer = command("tune", *tuned, "--trials", 2)
        assert answer.code == 0
        assert "GFLOP/s" in answer.out
        assert "the whole model: " in answer.out
        assert answer.err.splitlines()[-1] == f"every result is kept in {tuned[2]}"
        assert f"{TRIALS} trials of these tasks are known from earlier jobs" in answer.err

    @pytest.mark.slow
    def test_more_trials_are_others(self, tuned: list[object], database: str, command: Command) -> None:
        before = trials(command, database)
        again = command("tune", *tuned, "--trials", 5, "--seed", 3, "--strategy", "random", "--json").data
        after = trials(command, database)
        assert again["trials"] == 5
        assert after[: len(before)] == before
        assert len(set(after)) == len(after) == len(before) + 5

    @pytest.mark.slow
    def test_debug_tells_the_trials(self, tuned: list[object], command: Command, monkeypatch) -> None:
        monkeypatch.setenv("DEBUG", "2")
        try:
            answer = command("tune", *tuned, "--trials", 3, "--seed", 4)
        finally:
            silence()
        assert answer.err.count("timing: task ") == 3
        assert "schedule: " in answer.err


def silence() -> None:
    """Switch the loggers off that DEBUG switched on."""
    import logging

    for name in DEBUG_LADDER[1:]:
        logger = logging.getLogger(f"tunewright.{name}")
        logger.setLevel(logging.NOTSET)
        logger.handlers.clear()
        logger.propagate = True


def trials(command: Command, database: str) -> list[tuple[str, str]]:
    """Task and schedule of each, in order of storing."""
    entries = map(json.loads, command("export", "--db", database).out.splitlines())
    return [(data["task_key"], json.dumps(data["schedule"])) for data in entries if data["kind"] == "trial"]


def test_debug_ladder(command: Command, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signs = ("", "", "by default", " = ", "define ", ".text", "nodes")
    for level in range(len(DEBUG_LADDER)):
        monkeypatch.setenv("DEBUG", str(level))
        try:
            err = command("run", model).err
        finally:
            silence()
        for step, name in enumerate(DEBUG_LADDER[2:], 2):
            assert (f"{name}: " in err) == (step <= level), (level, name)
            assert step > level or signs[step] in err


class TestTasks:
    def test_json(self, tuned: list[object], report: dict[str, Any], command: Command) -> None:
        data = command("tasks", *tuned, "--json").data
        assert [task["key"] for task in data["tasks"]] == [task["key"] for task in report["tasks"]]
        product, softmax = data["tasks"]
        assert [tensor["shape"] for tensor in product["inputs"]] == [[4, 8], [8, 24], [24]]
        assert [tensor["constant"] for tensor in product["inputs"]] == [False, True, True]
        assert product["flops"] >= 2 * 4 * 8 * 24
        assert softmax["outputs"] == [{"shape": [4, 24], "dtype": "float32", "constant": False}]
        assert all(task["best_ms"] > 0 for task in data["tasks"])
        assert data["coverage"]["fallback"] == {}
        assert data["coverage"]["native"] > 0

    def test_table(self, tuned: list[object], report: dict[str, Any], command: Command) -> None:
        out = command("tasks", *tuned).out
        assert "4x8, 8x24, 24 -> 4x24" in out
        assert report["tasks"][0]["key"][:12] in out


class TestLookup:
    def test_of_the_tuned_target(self, tuned: list[object], command: Command, is_kept: bool) -> None:
        data = command("lookup", *tuned, "--json").data
        for task in data["tasks"]:
            assert (task["match"], task["basis"]) == ("default" if is_kept else "exact", "measured")
            low, high = task["interval_ms"]
            assert low <= task["expected_ms"] <= high
            assert task["schedule"]["values"]
            assert is_kept or task["provenance"]["llvm"]

    def test_of_another_target(self, model: Path, database: str, command: Command) -> None:
        data = command("lookup", model, "--db", database, "--threads", 2, "--json").data
        for task in data["tasks"]:
            assert (task["match"], task["basis"]) == ("sibling", "sibling")
            assert task["expected_ms"] > 0
            assert ":1x" in task["source"]["target_name"]

    def test_of_nothing_known(self, model: Path, tmp_path: Path, command: Command) -> None:
        with open_store(f"sqlite:///{tmp_path / 'empty.db'}"):
            pass
        data = command("lookup", model, "--db", f"sqlite:///{tmp_path / 'empty.db'}", "--json").data
        for task in data["tasks"]:
            assert (task["match"], task["basis"]) == ("default", "none")
            assert task["expected_ms"] is task["source"] is None

    def test_table(self, tuned: list[object], command: Command, is_kept: bool) -> None:
        out = command("lookup", *tuned).out
        assert ("0 of 2 tasks are tuned for" if is_kept else "2 of 2 tasks are tuned for") in out
        assert ("2 on the default, as the model keeps its defaults" in out) == is_kept


class TestShow:
    def test_of_the_database(self, report: dict[str, Any], database: str, command: Command) -> None:
        key = report["tasks"][0]["key"]
        arguments = [key[:8], "--db", database, "--threads", 1]
        data = command("show", *arguments, "--json").data
        assert data["key"] == key
        assert data["match"] == "exact"
        assert data["spaces"][0]["combinations"] >= data["spaces"][0]["legal"] > 1
        assert data["schedule"]["values"].keys() == data["spaces"][0]["knobs"].keys()
        assert "param t0: float32[4, 8]" in data["ir"]
        assert "define void @k" in data["llvm"]
        assert ".text" in data["assembly"]

        out = command("show", *arguments).out
        for part in ("combinations", "schedule (exact", "--- ir", "--- llvm", "--- assembly"):
            assert part in out
        only = command("show", *arguments, "--llvm")
        assert only.out == data["llvm"].replace("\t", "    ") + "\n"
        assert "schedule (exact" in only.err
        both = command("show", *arguments, "--llvm", "--ir").out
        assert "--- llvm" in both
        assert "--- assembly" not in both

    def test_what_was_measured_comes_first(self, report: dict[str, Any], database: str, command: Command) -> None:
        task = report["tasks"][0]
        arguments = ["show", task["key"], "--db", database, "--threads", 1]
        for schedule in (json.dumps(task["schedule"]), "best"):
            measured = command(*arguments, "--schedule", schedule, "--json").data["measured"]
            assert measured["status"] == "ok" and measured["low_ms"] <= measured["median_ms"] <= measured["high_ms"]
        out = command(*arguments).out.splitlines()
        place = next(number for number, line in enumerate(out) if line.startswith("measured "))
        assert out[place - 1].startswith("schedule (exact)") and out[place + 1].startswith("the cost model")
        with open_store(database) as store:
            known = {record.schedule for record in store.records(task["key"], detect(1).key)}
            [space, *_] = spaces(store.task(task["key"]), detect(1))
        untried = next(s for s in map(space.schedule, space.points) if s not in known)
        answer = command(*arguments, "--schedule", json.dumps(untried.to_json()), "--json")
        assert (answer.data["measured"], answer.data["match"]) == (None, "given")

    def test_what_is_expected_alone(self, report: dict[str, Any], database: str, command: Command) -> None:
        arguments = ["show", report["tasks"][0]["key"], "--db", database, "--threads", 1, "--prediction"]
        alone = command(*arguments)
        assert alone.out == "the cost model knows nothing of this schedule\n"  # of so few trials, and no base model
        assert "schedule (exact" in alone.err
        data = command(*arguments, "--json").data
        assert data["prediction"] is None and not data.keys() & {"ir", "llvm", "assembly"}
        beside = command(*arguments, "--ir").out
        assert "--- ir" in beside and "the cost model" in beside and "--- llvm" not in beside

    def test_of_a_point(self, report: dict[str, Any], model: Path, command: Command) -> None:
        key = report["tasks"][0]["key"]
        schedule = json.dumps(report["tasks"][0]["schedule"])
        arguments = ["show", key, "--model", model, "--threads", 1, "--ir", "--json"]
        data = command(*arguments, "--schedule", schedule).data
        assert data["schedule"] == json.loads(schedule)
        assert "llvm" not in data
        assert command(*arguments, "--schedule", "default").data["match"] == "default"

    def test_of_a_gpu_that_is_not_here(self, report: dict[str, Any], model: Path, command: Command) -> None:
        arguments = ["show", report["tasks"][0]["key"], "--model", model, "--target", "cuda:sm_90a"]
        data = command(*arguments, "--ir", "--cuda", "--json").data
        assert data["target"] == "cuda:sm_90a:132x128"
        assert "block block < " in data["ir"] and "__global__" in data["cuda"] and "ptx" not in data
        assert data["prediction"] is data["measured"] is None
        refused = command(*arguments, "--llvm")
        assert refused.code == 2 and "there is no llvm, but ir, cuda, ptx" in refused.err
        unknown = command(*arguments[:-1], "cuda:sm_1")
        assert unknown.code == 2 and "is no GPU that is known; there are cuda:sm_80" in unknown.err

    @pytest.mark.parametrize("schedule", ["{", "[]", "1", "{}", '{"sketch": "none", "version": 1, "values": {}}'])
    def test_of_no_point(self, schedule: str, report: dict[str, Any], model: Path, command: Command) -> None:
        answer = command("show", report["tasks"][0]["key"], "--model", model, "--schedule", schedule)
        assert answer.code == 2
        assert answer.err.startswith("error: --schedule")

    def test_of_no_single_task(self, database: str, report: dict[str, Any], model: Path, command: Command) -> None:
        others = {task["key"][0] for task in report["tasks"]}
        absent = next(letter for letter in "0123456789abcdef" if letter not in others)
        assert "--model" in command("show", absent, "--db", database).err
        assert "the model has no task" in command("show", absent, "--model", model).err


class TestRun:
    def test_outputs(self, tuned: list[object], tmp_path: Path, command: Command, is_kept: bool) -> None:
        onnxruntime = pytest.importorskip("onnxruntime")
        array = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
        np.save(tmp_path / "in.npy", array)
        given = ["--input", f"x={tmp_path / 'in.npy'}", "--output", tmp_path / "out"]
        data = command("run", *tuned, *given, "--json").data
        assert data["tasks"] == {
            "tuned": 0 if is_kept else 2,
            "transferred": 0,
            **dict.fromkeys(("default", "kept"), 2 if is_kept else 0),
        }
        assert (data["folder"], data["outputs"][0]["file"]) == (str(tmp_path / "out"), "output_0.npy")
        [right] = onnxruntime.InferenceSession(str(tuned[0])).run(None, {"x": array})
        np.testing.assert_allclose(np.load(tmp_path / "out" / "output_0.npy"), right, rtol=1e-4, atol=1e-6)
        manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
        assert manifest["outputs"][0]["name"] == "y"

    def test_missing_inputs_are_made_up(self, tuned: list[object], command: Command) -> None:
        assert "input x: float32 4x8, made up" in command("run", *tuned).out


def test_more_threads_than_processors(model: Path, command: Command) -> None:
    answer = command("tasks", model, "--threads", 4096)
    assert answer.code == 0
    [line] = answer.err.splitlines()
    assert line.startswith("warning: --threads 4096 is more than the ")


class TestBench:
    def test_against_a_peer(self, tuned: list[object], command: Command) -> None:
        pytest.importorskip("onnxruntime")
        data = command("bench", *tuned, "--against", "onnxruntime", "--default", "--json").data
        assert data["threads"] == 1
        assert data["tunewright_ms"] > 0
        assert data["default_ms"] > 0
        assert data["peers"]["onnxruntime"] > 0
        assert data["max_rel_err"] < 1e-5
        assert data["reference"] == "onnxruntime"
        assert data["samples"] >= 9
        assert data["versions"]["onnxruntime"]
        assert data["machine"]["llvm"]
        for name in ("tunewright", "onnxruntime"):
            assert 5 < data["libraries_mb"][name] < data["peak_mb"][name]
        for low, high in data["intervals_ms"].values():
            assert 0 < low <= high

    @pytest.mark.slow
    def test_table(self, tuned: list[object], command: Command) -> None:
        pytest.importorskip("openvino")
        answer = command("bench", *tuned, "--against", "openvino")
        assert "openvino" in answer.out
        assert "95% interval" in answer.out
        told = [line.partition(":")[0] for line in answer.err.splitlines()]
        assert [line for line in told if line != "note"] == [  # on a busy machine it may have kept its defaults
            "opening openvino",
            "opening tunewright",
            "timing in turn",
            "measuring peak memory",
        ]

    def test_peers_that_are_not_installed(self, tuned: list[object], command: Command, monkeypatch) -> None:
        monkeypatch.setattr("tunewright.tuner.peers.runtimes.is_installed", lambda name: False)
        answer = command("bench", *tuned)
        assert answer.code == 0
        assert answer.err.startswith("not installed, so not measured: onnxruntime, openvino")
        assert "tunewright" in answer.out
        named = command("bench", *tuned, "--against", "openvino")
        assert named.code == 2
        assert "pip install 'tunewright[bench]'" in named.err


class TestDatabase:
    def test_export_and_import(self, report: dict[str, Any], database: str, tmp_path: Path, command: Command) -> None:
        assert report["trials"] == TRIALS
        fresh = f"sqlite:///{tmp_path / 'fresh.db'}"
        plain = command("export", "--db", database)
        count = len(plain.out.splitlines())
        assert plain.err == f"{count} records\n"
        summed = command("export", "--db", database, "--json").out
        assert json.loads(summed.splitlines()[-1]) == {"exported": count}
        (tmp_path / "records.jsonl").write_text(summed)
        assert command("import", tmp_path / "records.jsonl", "--db", fresh, "--json").data == {
            "added": count,
            "known": 0,
        }
        assert command("import", tmp_path / "records.jsonl", "--db", fresh).out == (
            f"0 records added, {count} were known\n"
        )
        lines = [json.loads(line) for line in plain.out.splitlines()]
        for provenance in (line["provenance"] for line in lines):
            provenance |= {NOISE: IMPORTED_NOISE} if provenance.get(NOISE) else {}  # in own words

        def ordered(lines: list[Any]) -> list[str]:
            return sorted(json.dumps(line, sort_keys=True) for line in lines)

        copied = [json.loads(line) for line in command("export", "--db", fresh).out.splitlines()]
        assert ordered(copied) == ordered(lines)

    def test_import_notices_what_is_cut_off(self, database: str, tmp_path: Path, command: Command) -> None:
        lines = command("export", "--db", database, "--json").out.splitlines(keepends=True)
        (tmp_path / "records.jsonl").write_text("".join(lines[1:]))
        assert command("import", tmp_path / "records.jsonl", "--db", f"sqlite:///{tmp_path / 'x.db'}").code == 2

    def test_import_tells_what_was_stored(
        self, report: dict[str, Any], database: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert report["trials"]
        lines = command("export", "--db", database).out.splitlines(keepends=True)[:3]
        (tmp_path / "records.jsonl").write_text("".join([*lines[:2], "\n", "{}\n", lines[2]]))
        url = f"sqlite:///{tmp_path / 'new.db'}"
        said = command("import", tmp_path / "records.jsonl", "--db", url).err
        assert "records.jsonl', line 4: " in said
        assert said.endswith("; the 2 records before it are stored\n")
        with (tmp_path / "records.jsonl").open("w+") as file:
            file.write("".join(lines))
            file.seek(0)
            monkeypatch.setattr("sys.stdin", file)
            assert command("import", "-", "--db", url, "--json").data == {"added": 1, "known": 2}

    def test_upgrade(self, tmp_path: Path, command: Command) -> None:
        url = f"sqlite:///{tmp_path / 'new.db'}"
        assert command("db", "upgrade", "--db", url, "--json").data["before"] is None
        again = command("db", "upgrade", "--db", url, "--json").data
        assert again["before"] == again["revision"]
        assert "already" in command("db", "upgrade", "--db", url).out


class TestDoctor:
    def test_all_is_well(self, database: str, report: dict[str, Any], command: Command) -> None:
        assert report["trials"]
        data = command("doctor", "--db", database, "--json").data
        assert data["ok"]
        found = {check["name"]: check["found"] for check in data["checks"]}
        names = {"python", "llvm", "target", "caches", "kernels", "database", "object cache", "onnxruntime", "ray"}
        assert names <= found.keys()
        out = command("doctor", "--db", database).out
        assert "journal mode" in out
        assert "everything that is needed works" in out

    def test_makes_no_database(self, tmp_path: Path, command: Command) -> None:
        assert "not there yet" in command("doctor", "--db", f"sqlite:///{tmp_path / 'none.db'}").out
        assert not (tmp_path / "none.db").exists()

    def test_changes_no_database(self, tmp_path: Path, command: Command) -> None:
        (tmp_path / "empty.db").touch()
        data = command("doctor", "--db", f"sqlite:///{tmp_path / 'empty.db'}", "--json").data
        first, *_ = (check for check in data["checks"] if check["name"] == "database")
        assert first["state"] == "note" and "tunewright db upgrade" in first["mend"]
        assert (tmp_path / "empty.db").stat().st_size == 0

    def test_a_fault_is_named_with_its_remedy(self, tmp_path: Path, command: Command) -> None:
        (tmp_path / "broken.db").write_text("no database at all, though longer than a header " * 20)
        answer = command("doctor", "--db", f"sqlite:///{tmp_path / 'broken.db'}")
        assert answer.code == 1
        assert "FAULT database" in answer.out
        assert "to mend it" in answer.out


@pytest.mark.slow
def test_a_reader_that_has_seen_enough(report: dict[str, Any], database: str) -> None:
    assert report["trials"]
    command = [*PROGRAM, "export", "--db", database]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | python_path()
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert "Traceback" not in child.stderr.read()
