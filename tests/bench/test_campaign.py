"""A campaign measures each case once, goes on where it ended, and keeps what failed apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tunewright.bench import campaign as campaigns
from tunewright.bench import models, ops
from tunewright.bench.campaign import Campaign, open_entries, panels, run
from tunewright.bench.entries import Entries, best_peer, gain
from tunewright.bench.files import ROOT
from tunewright.bench.plot import draw_shares, draw_speeds
from tunewright.bench.suite.network import Network
from tunewright.codegen.host import detect
from tunewright.db.store import open_store
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.cli import tune
from tunewright.tuner.models.model import open_model
from tunewright.tuner.session.session import InferenceSession
from tunewright.tuner.settings import settings
from tunewright.workers.lock import require_unlocked
from tunewright.workers.sandbox.process import Child, RequestFailed


def product() -> bytes:
    net = Network("product")
    return net.onnx(net.add("Relu", net.gemm(net.input("x", (4, 32)), 32, 16)))


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(campaigns, "FOLDER", tmp_path / "build")
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path / "build"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / ".types"))  # for the process that times, as in ./dev bench
    cases = {"conv 1x1 64-256 at 56x56": product}
    folder = tmp_path / "results"
    return Campaign("ops", folder, cases, list(cases), [1], ["onnxruntime"], trials=3, minutes=0.1, again=False)


@pytest.mark.slow
def test_a_case_is_measured_once(planned: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(quiet=True)
    beside_limits: Any = lambda *arguments: ops.limits_entry(planned, *arguments)  # noqa: E731
    entries = open_entries(planned)
    assert run(planned, entries, console, beside_limits) == 0, entries.get(planned.names[0], 1)
    [(case, entry)] = entries.of(1)
    assert case in planned.cases
    assert entry["tunewright_ms"] > 0
    assert entry["peers"]["onnxruntime"] > 0
    assert entry["max_rel_err"] < 1e-5
    assert 0 < entry["share"] < 2  # of a peak that was measured beside other tests
    assert entry["tuning"]["tasks"][0]["best_ms"] > 0
    assert entry["machine"]["llvm"]
    [(_, rows)] = panels(planned, entries).items()
    assert models.summary(rows)["cases"] == ops.summary(rows)["categories"]["conv 1x1"]["cases"] == 1
    console = Console(record=True, width=120)
    ops.show(console, panels(planned, entries))
    assert case in console.export_text()

    def fail(*arguments: Any) -> Any:
        raise AssertionError("measured again")

    with monkeypatch.context() as patch:
        patch.setattr(campaigns, "_entry", fail)
        assert run(planned, open_entries(planned), console) == 0
        with pytest.raises(AssertionError, match="measured again"):
            run(replace(planned, trials=4), open_entries(planned), console)


def test_the_direct_kernel_is_timed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And built before, so that nobody waits for longer than it is timed."""
    lock_states: dict[str, bool] = {}
    of, kernels_s = InferenceSession.of, InferenceSession.kernels_s

    def open_session(*arguments: Any) -> InferenceSession:
        lock_states["built"] = is_held(settings().objects)
        return of(*arguments)

    def time_session(session: InferenceSession, feeds: Mapping[str, Any]) -> float:
        lock_states["timed"] = is_held(settings().objects)
        return kernels_s(session, feeds)

    monkeypatch.setattr(InferenceSession, "of", open_session)
    monkeypatch.setattr(InferenceSession, "kernels_s", time_session)
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    model, target = open_model(product()), detect(1)
    [(task, _)] = model.tasks.values()
    good = Measurement(Status.OK, (1e-6,), 1e-6)
    with open_store(f"sqlite:///{tmp_path / 'ops.db'}") as store:
        store.add_target(target)
        store.add_task(task)
        store.record(Record(task.key, target.key, default_schedule(task, target), good))
        assert ops._direct_s(store, model, target)
    assert lock_states == {"built": False, "timed": True}


def is_held(folder: Path) -> bool:
    """Whether this thread holds the lock of the folder."""
    try:
        require_unlocked(folder)
    except RuntimeError:
        return True
    return False


def test_nothing_is_begun_when_the_time_is_over(planned: Campaign) -> None:
    console = Console(record=True, width=120)
    entries = open_entries(planned)
    assert run(replace(planned, within_minutes=-1.0), entries, console) == 0
    assert "1 are left for the next run" in console.export_text()
    assert entries.get(planned.names[0], 1) is None


def test_what_fails_is_kept_as_such_and_tried_again(planned: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: Child, call: str, timeout_s: float, **arguments: Any) -> Any:
        raise RequestFailed(Status.CRASH, f"{call}: SIGSEGV")

    monkeypatch.setattr(Child, "request", crash)
    monkeypatch.setattr(tune, "tune", lambda *given, **options: REPORT)
    entries = open_entries(planned)
    assert run(planned, entries, Console(quiet=True)) == 1
    assert entries.get(planned.names[0], 1)["error"] == "time_beside_peers: SIGSEGV"  # type: ignore[index]
    assert list(entries.of(1)) == []
    assert list(campaigns._pending_cases(planned, entries)) == [(planned.names[0], 1)]


REPORT = {"tasks": [], "trials": 0, "seconds": 0.0, "peak_gflops": 1.0, "failed": {}}

ENTRY = {
    "tunewright_ms": 2.0,
    "peers": {"onnxruntime": 3.0, "openvino": 2.5, "torch": 9.0},
    "max_rel_err": 1e-6,
    "mismatch": None,
}


def test_best_peer() -> None:
    assert best_peer(ENTRY) == ("openvino", 2.5)
    assert gain(ENTRY) == 1.25
    assert gain(ENTRY | {"peers": {}}) is None


def test_entries_are_kept_in_order_with_a_summary(tmp_path: Path) -> None:
    path = tmp_path / "results" / "models.json"
    entries = Entries(path, ["a", "b"])
    for case in ("b", "a"):
        for threads in (2, 1):
            entries.put(case, threads, ENTRY)
    entries.write({"threads: 1": models.summary(list(entries.of(1)))})
    results = json.loads(path.read_text())
    assert [(case, list(entries_by_threads)) for case, entries_by_threads in results["cases"].items()] == [
        ("a", ["1", "2"]),
        ("b", ["1", "2"]),
    ]
    assert results["summary"]["threads: 1"]["geometric_mean"] == pytest.approx(1.25)
    assert [case for case, _ in Entries(path, ["b", "a"]).of(2)] == ["b", "a"]


def test_an_entry_is_what_was_asked_for_under_the_same_settings(tmp_path: Path) -> None:
    entries = Entries(tmp_path / "models.json", ["a"])
    entries.put("a", 1, ENTRY | {"trials": 3})
    entries.put("a", 2, {"error": "it died", "trials": 3})
    assert entries.has("a", 1, {"trials": 3})
    assert not entries.has("a", 1, {"trials": 4}) and not entries.has("a", 2, {"trials": 3})
    assert not entries.has("b", 1, {})


def test_entries_are_of_one_state_of_code_and_base_model(planned: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    before = planned.settings
    for name in ("code_sha256", "base_model_sha256"):
        with monkeypatch.context() as patch:
            patch.setattr(campaigns, name, lambda: "another")
            assert planned.settings == before | {name: "another"} != before


def test_models_table() -> None:
    console = Console(record=True, width=120)
    models.show_speeds(console, {"threads: 2": [("resnet18", ENTRY), ("mlp", ENTRY | {"peers": {"onnxruntime": 1.0}})]})
    text = console.export_text()
    assert "threads: 2" in text
    assert "1.25x" in text
    assert "over 2 models: 0.79x as fast as the best peer (geometric mean)" in text


def test_only_categories_that_were_compared_are_named() -> None:
    shares = dict.fromkeys(("share", "direct_share", "bandwidth_share"), 0.5)
    rest = {"kernels_ms": 1.0, "limit": "L2", "winograd_rel_err": None, **shares}
    console = Console(record=True, width=160)
    norm, product = (ENTRY | rest | {"category": name} for name in ("layer norm", "gemm"))
    ops.show(console, {"threads: 2": [("layer norm 197", norm), ("gemm 64", product)]})
    assert "over layer norm: 1.25x as fast as the best peer (geometric mean)" in console.export_text()
    alone = norm | {"category": "softmax", "peers": {}}
    ops.show(console, {"threads: 2": [("gemm 64", product), ("softmax 8", alone)]})
    assert "geometric mean" not in console.export_text()


def test_plots_name_every_case_and_are_the_same_each_time(tmp_path: Path) -> None:
    rows = {"threads: 1": [("resnet18", ENTRY), ("vgg16", ENTRY)], "threads: 2": [("resnet18", ENTRY)]}
    paths = [tmp_path / name for name in ("a.svg", "b.svg")]
    for path in paths:
        draw_speeds(path, rows)
    text, again = (path.read_text() for path in paths)
    assert text == again
    assert all(word in text for word in ("resnet18", "vgg16", "threads: 2", "onnxruntime", "tunewright"))
    draw_shares(paths[0], {"threads: 1": [("softmax", 0.9)]})
    assert "softmax" in paths[0].read_text()
