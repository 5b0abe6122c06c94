"""Tuning for sessions of ONNX Runtime: what runs on our kernels there, before it runs and while it does."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto, helper, numpy_helper

onnxruntime = pytest.importorskip("onnxruntime", minversion="1.23")

import tunewright.integrations.onnxruntime as provider  # noqa: E402
from tunewright.db.store import open_store  # noqa: E402
from tunewright.integrations.onnxruntime import session_options, tune  # noqa: E402
from tunewright.integrations.onnxruntime.background_tuning import BackgroundTuning  # noqa: E402
from tunewright.integrations.onnxruntime.fused_group import FusedGroup  # noqa: E402
from tunewright.integrations.onnxruntime.registration import groups  # noqa: E402
from tunewright.tuner import InferenceSession, cli  # noqa: E402
from tunewright.tuner.errors import Refused  # noqa: E402
from tunewright.tuner.integration import Integration, find_integration  # noqa: E402

from ...commands import Command, commands  # noqa: E402
from ...waiting import gone, wait_for  # noqa: E402

ROOT = Path(__file__).parents[3]

RNG = np.random.default_rng(7)

PARTED = """g (float[batch, 64] x, string[1] s) => (float[batch, 32] y, float[batch, 32] z, string[1] t)
    { h = MatMul(x, w) y = Relu(h) t = Identity(s) o = MatMul(x, v) n = Foreign.Gap(o) e = MatMul(n, u) z = Exp(e) }"""
"""Of two products the second reads what a node makes that nobody knows."""

WHOLE = "g (float[batch, 64] x) => (float[batch, 32] y) { y = MatMul(x, w) }"


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "120")
    return commands(lambda words: cli.exit_code(lambda: cli.execute(words)), capfd)


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'tuning.db'}"


@pytest.fixture
def no_sessions() -> Iterator[None]:
    yield
    assert not groups()


def write(path: Path, text: str) -> Path:
    graph = onnx.parser.parse_graph(text)
    for name, shape in (("w", (64, 32)), ("v", (64, 256)), ("u", (256, 32))):
        graph.initializer.append(numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name))
    made: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    return path


def parted(path: Path, batch: str = "batch") -> Path:
    """Two groups of nodes, with a node between them that draws numbers, which are left to ONNX Runtime."""
    return write(path, PARTED.replace("Foreign.Gap", "Bernoulli").replace("batch", batch))


def test_the_module_is_an_integration() -> None:
    integration: Integration = provider
    assert find_integration("onnxruntime") is integration
    with pytest.raises(Refused, match="no runtime 'tensorflow' is known; there is onnxruntime"):
        find_integration("tensorflow")


@pytest.mark.slow
def test_groups_share_the_budget(tmp_path: Path, db: str, no_sessions: None) -> None:
    reports = tune(parted(tmp_path / "parted.onnx"), dims={"batch": 256}, db=db, trials=5, threads=1)
    assert [report.trials for report in reports] == [3, 2]
    with open_store(db) as store:
        assert sorted(job.label for job in store.jobs.list()) == ["parted.group1.onnx", "parted.group2.onnx"]
    session = onnxruntime.InferenceSession(
        parted(tmp_path / "parted.onnx", "256"), session_options(1, db=db, background=False)
    )
    for group in groups():
        assert isinstance(group, FusedGroup)
        assert group._session is not None
        assert group._session.coverage().untuned == 0
        del group
    del session


@pytest.mark.slow
def test_the_command_tunes_groups(tmp_path: Path, db: str, command: Command, no_sessions: None) -> None:
    path = parted(tmp_path / "parted.onnx")
    words = ("tune", path, "--for", "onnxruntime", "--dim", "batch=256", "--db", db, "--threads", 1, "--trials", 4)
    done = command(*words, "--json")
    assert [report["trials"] for report in done.data["groups"]] == [2, 2]
    assert "group 2 of 2" in done.err
    shown = command(*words)
    assert "parted.group2.onnx" in shown.out and "the other nodes of the model are not ours" in shown.out
    few = command(*words[:-1], 1)
    assert (few.code, "fewer than the 2 groups of nodes" in few.err) == (2, True)
    sizes = command("tune", path, "--for", "onnxruntime", "--sizes", "batch=4,8", "--db", db)
    assert (sizes.code, "--dim batch=SIZE" in sizes.err) == (2, True)


@pytest.mark.slow
def test_a_relative_name_will_do(
    tmp_path: Path, db: str, command: Command, monkeypatch: pytest.MonkeyPatch, no_sessions: None
) -> None:
    write(tmp_path / "whole.onnx", WHOLE.replace("batch", "4"))
    monkeypatch.chdir(tmp_path)
    done = command("tune", "whole.onnx", "--for", "onnxruntime", "--db", db, "--trials", 2, "--json")
    assert (done.data["model"], done.data["trials"]) == ("whole.onnx", 2)


def test_open_dimensions_are_told_before_anything_begins(tmp_path: Path, db: str, command: Command) -> None:
    done = command("tune", parted(tmp_path / "parted.onnx"), "--for", "onnxruntime", "--db", db)
    assert (done.code, "--dim batch=SIZE" in done.err, "group 1" in done.err) == (2, True, False), done.err


@pytest.mark.parametrize("settings", [{"vendor": True}, {"bind": {"x": 1}}])
def test_what_sessions_of_ours_do_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="is for sessions of ours"):
        tune(parted(tmp_path / "parted.onnx", "256"), **settings)


def test_dimensions_without_a_name_are_told(tmp_path: Path, db: str, command: Command) -> None:
    path = parted(tmp_path / "parted.onnx")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    onnx.save(model, path)
    done = command("tune", path, "--for", "onnxruntime", "--dim", "x:0=256", "--db", db)
    assert (done.code, "'x:0' has none: name it in the model" in done.err) == (2, True), done.err


@pytest.mark.slow
def test_a_model_that_is_ours_is_tuned_as_ever(tmp_path: Path, db: str, command: Command, no_sessions: None) -> None:
    path = write(tmp_path / "whole.onnx", WHOLE)
    done = command("tune", path, "--for", "onnxruntime", "--dim", "batch=4", "--db", db, "--trials", 2, "--json")
    assert (done.data["model"], done.data["trials"]) == ("whole.onnx", 2)
    at_sizes = ("tune", path, "--for", "onnxruntime", "--sizes", "batch=4,8", "--db", db, "--trials", 2, "--json")
    assert [one["dims"] for one in command(*at_sizes).data["sizes"]] == [{"batch": 4}, {"batch": 8}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--for", "tensorflow"), "no runtime 'tensorflow' is known"),
        (("--for", "onnxruntime", "--vendor"), "--vendor is for sessions of ours"),
        (("--for", "onnxruntime", "--bind", "n=3"), "--bind is for sessions of ours"),
        (("--for", "onnxruntime", "--dim", "width=3"), "width"),
    ],
)
def test_what_means_nothing_is_refused(
    words: tuple[str, ...], said: str, tmp_path: Path, db: str, command: Command
) -> None:
    done = command("tune", write(tmp_path / "whole.onnx", WHOLE), "--db", db, *words)
    assert (done.code, said in done.err) == (2, True), done.err


def test_what_onnx_runtime_refuses_is_told(tmp_path: Path, db: str, command: Command) -> None:
    path = write(tmp_path / "odd.onnx", PARTED.replace("Foreign.Gap", "NoSuchOp"))
    done = command("tune", path, "--for", "onnxruntime", "--db", db)
    assert (done.code, "ONNX Runtime refuses the model" in done.err) == (2, True), done.err


def test_nothing_of_ours_is_told(tmp_path: Path, db: str, command: Command) -> None:
    path = write(tmp_path / "texts.onnx", "g (string[1] s) => (string[1] t) { t = Identity(s) }")
    done = command("tune", path, "--for", "onnxruntime", "--db", db)
    assert (done.code, "no group of the model's nodes is ours and does enough work" in done.err) == (2, True), done.err


def opened(path: Path, db: str, minutes: float, **options: Any) -> tuple[Any, BackgroundTuning]:
    session = onnxruntime.InferenceSession(path, session_options(1, db=db, tune_minutes=minutes, **options))
    (group, *_) = groups()
    assert isinstance(group, FusedGroup)
    tuning: Any = group._on_run
    return session, tuning.__self__


def labels_and_dims(db: str) -> set[tuple[str, int | None]]:
    with open_store(db) as store:
        return {(job.label, job.spec.settings.get("dims", {}).get("batch")) for job in store.jobs.list()}


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["16", "batch"])
def test_a_session_is_tuned_while_it_runs(
    tmp_path: Path, db: str, batch: str, no_sessions: None, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "whole.onnx", WHOLE.replace("batch", batch))
    session, tuning = opened(path, db, 0.02)
    feeds = {"x": RNG.standard_normal((16, 64)).astype(np.float32)}
    expected = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    with caplog.at_level(logging.INFO, "tunewright.onnxruntime"):
        for _ in range(3):
            np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-4, atol=1e-4)
        assert tuning._thread is not None
        tuning._thread.join()
    assert caplog.text.count("whole.onnx was tuned") == (4 if batch == "batch" else 1)
    assert labels_and_dims(db) == {("whole.onnx", 16 if batch == "batch" else None)}
    with InferenceSession(path, db=db, threads=1, dims={"batch": 16} if batch == "batch" else None) as later:
        assert later.coverage().untuned == 0
    del session, tuning


@pytest.mark.slow
def test_a_session_is_tuned_in_its_precision(tmp_path: Path, db: str, no_sessions: None) -> None:
    path = write(tmp_path / "whole.onnx", WHOLE.replace("batch", "16"))
    session, tuning = opened(path, db, 0.02, precision="bf16")
    session.run(None, {"x": np.zeros((16, 64), np.float32)})
    assert tuning._thread is not None
    tuning._thread.join()
    with open_store(db) as store:
        assert {job.spec.precision for job in store.jobs.list()} == {"bf16"}
    del session, tuning


@pytest.mark.slow
def test_groups_are_tuned_one_after_the_other(tmp_path: Path, db: str, no_sessions: None) -> None:
    path = parted(tmp_path / "parted.onnx", "256")
    session, tuning = opened(path, db, 0.04)
    session.run(None, {"x": np.zeros((256, 64), np.float32), "s": np.array(["text"], object)})
    assert tuning._thread is not None
    tuning._thread.join()
    assert labels_and_dims(db) == {("parted.group1.onnx", None), ("parted.group2.onnx", None)}
    del session, tuning


@pytest.mark.slow
def test_a_session_that_is_closed_ends_its_tuning(tmp_path: Path, db: str, no_sessions: None) -> None:
    path = write(tmp_path / "whole.onnx", WHOLE.replace("batch", "16"))
    session, tuning = opened(path, db, 60)
    session.run(None, {"x": np.zeros((16, 64), np.float32)})
    with open_store(db) as store:
        wait_for(lambda: any(job.state == "running" for job in store.jobs.list()))
        del session
        assert tuning._thread is not None
        tuning._thread.join()
        assert tuning._process is not None and tuning._process.returncode is not None
        assert [job.state for job in store.jobs.list()] == ["paused"]


HARD_END = """
import os, sys
import numpy as np
import onnxruntime
from tests.waiting import wait_for
from tunewright.integrations.onnxruntime import session_options
from tunewright.integrations.onnxruntime.registration import groups

path, db = sys.argv[1:]
session = onnxruntime.InferenceSession(path, session_options(1, db=db, tune_minutes=60))
session.run(None, {"x": np.zeros((16, 64), np.float32)})
tuning = groups()[0]._on_run.__self__
wait_for(lambda: tuning._process)
print(tuning._process.pid, flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_a_program_that_ends_hard_leaves_no_tuning_behind(tmp_path: Path, db: str) -> None:
    path = write(tmp_path / "whole.onnx", WHOLE.replace("batch", "16"))
    words = [sys.executable, "-c", HARD_END, str(path), db]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert gone(int(done.stdout))
