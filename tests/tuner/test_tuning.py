"""`tune` and `InferenceSession` from a Python program."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from tunewright.db.job import Job, JobState, SearchBudget
from tunewright.db.store import open_store
from tunewright.tuner import InferenceSession, tune
from tunewright.tuner.errors import Refused
from tunewright.tuner.models.model import open_model
from tunewright.tuner.search import tuning
from tunewright.tuner.search.lease_keeper import holder_name, is_gone
from tunewright.tuner.search.progress import Progress
from tunewright.tuner.search.stage import STAGES, JobStage
from tunewright.tuner.search.tuning import JobOpening
from tunewright.tuner.search.view import JobMoment
from tunewright.workers.pool import PoolError
from tunewright.workers.sandbox.process import ChildStartError

from ..commands import Command
from .conftest import small_model
from .fake_pool import FakePool, by_key, spec_of


def one_node(path: Path, op: str, kind: int = TensorProto.FLOAT, **attributes: Any) -> Path:
    """A model of one node over three elements."""
    values = [helper.make_tensor_value_info(name, kind, [3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attributes)], "one", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_what_is_found_is_used(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    data = small_model("n").SerializeToString()
    seen: list[Progress] = []
    report = tune(data, db=url, trials=6, threads=1, dims={"n": 5}, watch=seen.append)
    assert report.trials == 6
    assert [stage for stage, _ in groupby(progress.stage for progress in seen) if stage != "searching"] == [
        "reading",
        "learning",
        "confirming",
        "running",
        "done",
    ]
    assert [progress.trials for progress in seen if progress.last] == [1, 2, 3, 4, 5, 6]
    compared = sum(task.is_confirmed for task in report.tasks)
    confirmed = [progress.confirmed for progress in seen if progress.stage == "confirming"]
    assert confirmed == sorted(confirmed) and (confirmed[0], confirmed[-1]) == (0, compared)
    with InferenceSession(data, db=url, threads=1, dims={"n": 5}) as session:
        assert session.coverage().untuned == 0
        [argument] = session.get_inputs()
        assert (argument.name, argument.type, argument.shape) == ("x", "tensor(float)", [5, 8])
        [output] = session.run(None, {"x": np.ones((5, 8), np.float32)})
    np.testing.assert_allclose(output.sum(axis=1), 1, rtol=1e-5)


def test_who_waits_for_a_dead_process_is_told_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEWRIGHT_LEASE_S", "1")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone, here, elsewhere = f"{platform.node()}:{dead.pid}", holder_name(), "elsewhere:1"
    with open_store(f"sqlite:///{tmp_path / 'tuning.db'}") as store:
        spec = spec_of(open_model(small_model().SerializeToString()), store)
        store.jobs.open(spec, "small", SearchBudget(10), gone, 1.0)
        told: list[Job] = []
        lease = JobOpening(store.jobs, spec, "small", SearchBudget(10)).lease(told.append)
    assert lease is not None and {job.holder for job in told} == {gone}
    assert [is_gone(holder) for holder in (gone, here, elsewhere, "", "none")] == [True, False, False, False, False]
    seen = {
        holder: JobMoment.of(Progress(JobStage.WAITING, 0, SearchBudget(10), 0.0, (), holder=holder)).at
        for holder in (gone, here, "")
    }
    finds = "waiting for what it finds within its own limits (10 trials; those given here don't count)"
    assert seen == {
        gone: f"the process that had the same job, {gone}, is gone: its lease ends within 1 s, then this one goes on",
        here: f"another process is at work on the same job, {here}: {finds}, or 1 s from when it goes silent",
        "": f"another process is at work on the same job: {finds}, or 1 s from when it goes silent",
    }


@pytest.mark.slow
def test_who_waits_for_another_process_has_its_report_and_its_own_seconds(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "open_pool", lambda *_: FakePool(by_key))
    url, data = f"sqlite:///{tmp_path / 'tuning.db'}", small_model().SerializeToString()
    first = tune(data, db=url, trials=4, threads=1)
    waits: list[Progress] = []
    with open_store(url) as store:
        found = store.jobs.get(first.job_id)
        lease = store.jobs.open(found.spec, "small", SearchBudget(300), "elsewhere:1")
        assert lease is not None and found.result is not None
        result = found.result | {"trials": 300, "seconds": 1e6}

        def watch(progress: Progress) -> None:
            if progress.stage is JobStage.WAITING:
                waits.append(progress)
                store.jobs.finish(lease, JobState.SUCCEEDED, result=result)

        second = tune(data, db=url, trials=60, threads=1, watch=watch)
    assert (second.trials, second.seconds < 1e6) == (300, True)
    assert [(wait.budget, wait.holder) for wait in waits] == [(SearchBudget(300), "elsewhere:1")]


@pytest.mark.parametrize(("setting", "word"), [("strategy", "luck"), ("target", "moon"), ("pool", "swimming")])
def test_unknown_words_are_refused(setting: str, word: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    with pytest.raises(Refused, match=word):
        tune(small_model().SerializeToString(), db=url, **{setting: word})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("trials", 0),
        ("trials", -1),
        ("minutes", 0),
        ("minutes", -1.5),
        ("minutes", float("nan")),
        ("minutes", float("inf")),
        ("watch", 5),
        ("pool", "swimming"),
        ("pool", ["local"]),
        ("strategy", ["random"]),
        ("strategy", None),
        ("target", {}),
        ("ray_address", 8265),
        ("ray_address", "ray://head:10001"),  # which the local pool would not join
        ("db", 5),
        ("dims", {"n": 0}),
        ("until", 0),
        ("until", 1.0),
        ("until", float("nan")),
        ("until", "2%"),
        ("threads", 0),
        ("threads", 4097),
        ("threads", "2"),
        ("dims", {"n": "5"}),
        ("dims", {"n": True}),
        ("seed", -1),
        ("seed", 2**32),
        ("trials", "5"),
        ("trials", 2.5),
        ("trials", True),
        ("minutes", "1"),
        ("minutes", True),
        ("seed", 1.5),
        ("seed", "1"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(setting: str, value: object, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    with pytest.raises(Refused, match=setting):
        tune(small_model().SerializeToString(), **{"db": url, setting: value})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_model_without_tasks(tmp_path: Path, command: Command) -> None:
    path, url = one_node(tmp_path / "none.onnx", "Identity"), f"sqlite:///{tmp_path / 'tuning.db'}"
    report = command("tune", path, "--db", url, "--json").data
    assert report["tasks"] == []
    assert report["trials"] == 0
    assert report["tuned_ms"] > 0


def test_a_model_without_kernels_is_not_searched(tmp_path: Path, command: Command) -> None:
    path, url = tmp_path / "none.onnx", f"sqlite:///{tmp_path / 'tuning.db'}"
    body = "g (float[1,64,64] x) => (float[1] y) { y = Det(x) }"
    path.write_bytes(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> {body}').SerializeToString())
    answer = command("tune", path, "--db", url)
    assert "no op of the model has a native kernel: 1 Det" in answer.out
    begun = [line.partition(":")[0] for line in answer.err.splitlines()]
    stages = [STAGES[stage] for stage in (JobStage.SEARCHING, JobStage.LEARNING, JobStage.CONFIRMING)]
    assert STAGES[JobStage.RUNNING] in begun and not set(stages) & set(begun)
    shown = command("run", path, "--db", url).out
    assert "1 Det: more than 5 rows" in shown


def test_a_model_of_texts(tmp_path: Path, command: Command) -> None:
    path = one_node(tmp_path / "texts.onnx", "StringNormalizer", TensorProto.STRING, case_change_action="UPPER")
    np.save(tmp_path / "x.npy", np.array(["one", "two", "three"]))
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    command("db", "upgrade", "--db", url)
    given = ["--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path, "--db", url]
    data = command("run", path, *given, "--json").data
    assert data["outputs"][0]["dtype"] == "string"
    assert data["fallback"] == {"StringNormalizer": 1}
    assert np.load(tmp_path / "output_0.npy").tolist() == ["ONE", "TWO", "THREE"]


@pytest.mark.slow
def test_what_has_no_kernel_is_said_before_the_search(tmp_path: Path, command: Command) -> None:
    path, url = tmp_path / "mixed.onnx", f"sqlite:///{tmp_path / 'tuning.db'}"
    body = "g (float[1,1,64,64] x) => (float[1,1,64,64] y) { a = Relu(x) b = Det(a) y = Mul(x, b) }"
    path.write_bytes(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> {body}').SerializeToString())
    answer = command("tune", path, "--db", url, "--trials", 2, "--threads", 1, "--json")
    assert answer.data["fallback"] == {"Det": 1}
    assert 0 <= answer.data["fallback_share"] <= 1
    lines = answer.err.splitlines()
    said = next(k for k, line in enumerate(lines) if "without a kernel" in line and "1 Det" in line)
    assert said < next(k for k, line in enumerate(lines) if line.startswith("searching"))
    shown = command("bench", path, "--db", url, "--threads", 1, "--against", "onnxruntime")
    assert "% of the model's time is in 1 Det, which have no kernel" in " ".join(shown.out.split())


@pytest.mark.slow
def test_a_run_that_was_out_of_time_is_taken_up_with_any_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunewright.tuner.arguments.LEAST_MINUTES", 0)
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    data = small_model("n").SerializeToString()
    first = tune(data, db=url, trials=5, minutes=1e-9, threads=1, dims={"n": 5})
    told: list[Progress] = []
    second = tune(data, db=url, trials=4, threads=1, dims={"n": 5}, watch=told.append)
    with open_store(url) as store:
        job = store.jobs.get(first.job_id)
    assert job.progress is not None and job.progress["spent_s"] <= job.spent_s  # of both
    assert told[-1].spent_s == pytest.approx(job.spent_s) and job.budget.before_s > 0
    third = tune(data, db=url, trials=4, threads=1, dims={"n": 5})
    assert (first.trials, second.trials, third.trials) == (0, 4, 4)
    assert first.job_id == second.job_id != third.job_id


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ({}, SearchBudget(200)),
        ({"trials": 5}, SearchBudget(5)),
        ({"minutes": 2}, SearchBudget(None, 120.0)),
        ({"until": 0.02}, SearchBudget(None, until=0.02)),
        ({"trials": 5, "minutes": 2, "until": 0.02}, SearchBudget(5, 120.0, 0.02)),
    ],
)
def test_a_bound_that_is_not_given_does_not_bind(monkeypatch, tmp_path, bounds, wanted):
    monkeypatch.setattr(tuning, "open_pool", lambda *_: FakePool(by_key))
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    seen: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if progress.trials == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(small_model().SerializeToString(), db=url, threads=1, watch=watch, **bounds)
    assert {progress.budget for progress in seen} == {wanted}
    json.dumps(seen[-1].to_json(), allow_nan=False)
    with open_store(url) as store:
        stopped = store.jobs.get(1)
    assert (stopped.budget, stopped.state, stopped.trials) == (wanted, JobState.PAUSED, 2)
    assert stopped.progress is not None and stopped.progress["trials"] == 2 and stopped.spent_s > 0


@pytest.mark.parametrize("fault", [PoolError("nobody is there"), ChildStartError("it can't start:\nno room")])
def test_where_nothing_can_be_measured_the_job_is_free(monkeypatch, tmp_path, fault):
    class Broken(FakePool):
        def measure(self, candidates, best_s=None):
            raise fault

    monkeypatch.setattr(tuning, "open_pool", lambda *_: Broken(by_key))
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    with pytest.raises(Refused, match=f"{' '.join(str(fault).split())}; the same command goes on from there"):
        tune(small_model().SerializeToString(), db=url, trials=4, threads=1)
    with open_store(url) as store:
        assert not store.jobs.get(1).holder
