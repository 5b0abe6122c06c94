"""A vendor's runtime that is faster than our kernels runs the model; one that is slower, wrong or gone does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunewright.db.store import Store, open_store
from tunewright.graph.onnx_import.structure import strip
from tunewright.search_space.measurement import Status
from tunewright.tuner import InferenceSession, tune
from tunewright.tuner.errors import Refused
from tunewright.tuner.lookup.source import ScheduleSource
from tunewright.tuner.lookup.verdict import ModelVerdict, VendorTime, model_verdict
from tunewright.tuner.models.model import open_model
from tunewright.tuner.search import tuning, whole_model
from tunewright.tuner.search.report import JobOutcome, Report
from tunewright.tuner.search.whole_model import Variant, time_sessions
from tunewright.tuner.session import ort_session, vendor
from tunewright.tuner.session.stand_in import StandIn
from tunewright.tuner.session.vendor import VendorModel
from tunewright.tuner.settings import settings
from tunewright.workers.measure.call_latency import CallLatency

from ..commands import Command
from .conftest import small_model
from .control_models import model_of
from .fake_pool import TARGET, FakePool, by_key, job
from .timings import STOLEN, VENDOR_VERSION, takes

onnxruntime = pytest.importorskip("onnxruntime")

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
INSTALLED = f"ONNX Runtime {onnxruntime.__version__}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "small.onnx"
    file.write_bytes(small_model().SerializeToString())
    return file


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/vendor.db"


def tuned(
    path: Path, url: str, *, default: float, tuned: float, vendor: float, dims: Mapping[str, int] | None = None
) -> Report:
    """A job by which a run of the model takes so many seconds in each way."""
    timing = takes(default=default, tuned=tuned, vendor=vendor)
    with open_store(url) as store:
        return job(open_model(path, dims), store, FakePool(by_key), timing=timing, vendor=True)


@pytest.fixture
def is_marked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], bool]:
    """Whether a result is of ONNX Runtime, which says its own here."""
    run = StandIn.run

    def marked(self: StandIn, arrays: Sequence[Any]) -> list[Any] | None:
        results = run(self, arrays)
        return None if results is None else [result + 1 for result in results]

    monkeypatch.setattr(StandIn, "run", marked)
    return lambda result: bool(np.allclose(result.sum(axis=-1), 1 + result.shape[-1]))  # of a softmax


# The job


@pytest.mark.parametrize(
    ("times_s", "outcome", "own_outcome"),
    [
        ({"default": 4e-3, "tuned": 2e-3, "vendor": 1e-3}, JobOutcome.VENDOR, JobOutcome.FASTER),
        ({"default": 2e-3, "tuned": 2.1e-3, "vendor": 1e-3}, JobOutcome.VENDOR, JobOutcome.DEFAULTS_KEPT),
        ({"default": 4e-3, "tuned": 2e-3, "vendor": 3e-3}, JobOutcome.FASTER, None),
        ({"default": 4e-3, "tuned": 2e-3, "vendor": 2e-3}, JobOutcome.FASTER, None),
        ({"default": 2e-3, "tuned": 2.1e-3, "vendor": 2.05e-3}, JobOutcome.DEFAULTS_KEPT, None),
    ],
)
def test_the_faster_one_is_taken(
    path: Path, url: str, times_s: dict[str, float], outcome: JobOutcome, own_outcome: JobOutcome | None
) -> None:
    report = tuned(path, url, default=times_s["default"], tuned=times_s["tuned"], vendor=times_s["vendor"])
    own_s = min(times_s["default"], times_s["tuned"])
    assert (report.outcome, report.own_outcome) == (outcome, own_outcome)
    assert report.vendor is not None and report.vendor.version == VENDOR_VERSION and not report.vendor.fault
    assert report.vendor.time_s == pytest.approx(times_s["vendor"], rel=0.01)
    assert report.vendor.own_s == pytest.approx(own_s, rel=0.01) == report.tuned_s
    assert Report.from_json(report.to_json()).vendor is not None
    with open_store(url) as store:
        verdict = model_verdict(store, [task.key for task in report.tasks], TARGET.key)
    kept = JobOutcome.DEFAULTS_KEPT in (outcome, own_outcome)
    assert (verdict.vendor is not None) is (outcome is JobOutcome.VENDOR)
    assert (verdict.kept is not None) is kept
    assert ModelVerdict.read(verdict.to_json()) == verdict


def test_a_busy_machine_takes_none(path: Path, store: Store) -> None:
    timing = takes(STOLEN, default=4e-3, tuned=2e-3, vendor=1e-3)
    report = job(open_model(path), store, FakePool(by_key), timing=timing, vendor=True)
    assert report.outcome is JobOutcome.TOO_NOISY and report.vendor is not None
    words = report.vendor.conclusion(is_taken=False)
    assert (
        words.endswith("but the machine was too busy to tell, so our kernels run the model") and "takes ~1.0" in words
    )
    assert report.vendor.noise


def test_who_does_not_ask_is_told_nothing(path: Path, store: Store) -> None:
    report = job(open_model(path), store, FakePool(by_key), timing=takes(default=4e-3, tuned=2e-3))
    assert report.vendor is None and report.outcome is JobOutcome.FASTER
    data = report.to_json()
    del data["vendor"], data["own_outcome"]  # as an older version wrote it
    assert Report.from_json(data).outcome is JobOutcome.FASTER


def test_the_next_job_decides_anew(path: Path, url: str) -> None:
    keys = [task.key for task in tuned(path, url, default=4e-3, tuned=2e-3, vendor=1e-3).tasks]
    with open_store(url) as store:
        job(open_model(path), store, FakePool(by_key), timing=takes(default=4e-3, tuned=2e-3))
        assert model_verdict(store, keys, TARGET.key) == ModelVerdict()


def test_one_that_fails_by_default_still_has_a_rival(path: Path, store: Store) -> None:
    """Of ours only what was found is timed."""
    from .fake_pool import FAILED, is_default

    pool = FakePool(lambda candidate: FAILED if is_default(candidate) else by_key(candidate))
    report = job(open_model(path), store, pool, timing=takes(tuned=2e-3, vendor=1e-3), vendor=True)
    assert (report.outcome, report.own_outcome) == (JobOutcome.VENDOR, JobOutcome.UNTIMED)
    assert report.failed.get(Status.CRASH)


# The measurement


def variants() -> dict[str, Variant]:
    return {"default": Variant({}), "vendor": Variant({}, is_vendor=True)}


def test_both_are_timed_in_turn(path: Path) -> None:
    found = time_sessions(open_model(path), TARGET, settings().objects, variants(), vendor=VendorModel(path, {}))
    assert found.latencies.keys() == {"default", "vendor"} and found.ratio("default", "vendor") is not None
    assert (found.vendor_version, found.vendor_fault) == (onnxruntime.__version__, "")
    parsed = {name: Variant.from_json(variant.to_json()) for name, variant in variants().items()}
    assert parsed == variants()


def test_outputs_may_have_sizes_that_a_run_tells(tmp_path: Path) -> None:
    file = tmp_path / "chosen.onnx"
    text = "g (float[4, 8] x, bool[4] take) => (float[n, 8] y) { r = Compress<axis = 0>(x, take) y = Add(r, r) }"
    file.write_bytes(model_of(text).SerializeToString())
    found = time_sessions(open_model(file), TARGET, settings().objects, variants(), vendor=VendorModel(file, {}))
    assert found.latencies.keys() == {"default", "vendor"} and not found.vendor_fault


@pytest.mark.parametrize("fault", ["wrong", "fails", "absent", "refused", "bound"])
def test_one_that_is_none_for_this_model(path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {
        "wrong": "the largest error is",
        "fails": "it fails on made-up inputs",
        "absent": "it is not installed",
        "refused": "it does not take the model",
        "bound": "inputs that are bound",
    }
    if fault == "wrong":
        monkeypatch.setattr(StandIn, "run", lambda self, arrays: [np.zeros((4, 24), np.float32)])
    elif fault == "fails":
        monkeypatch.setattr(StandIn, "run", lambda self, arrays: None)
    elif fault == "absent":
        monkeypatch.setattr(vendor, "is_installed", lambda: False)
    elif fault == "refused":
        monkeypatch.setattr(StandIn, "of", lambda *arguments: None)
    file = VendorModel(path, {"x=": 1} if fault == "bound" else {})
    found = time_sessions(open_model(path), TARGET, settings().objects, variants(), vendor=file)
    assert found.latencies.keys() == {"default"} and words[fault] in found.vendor_fault


def test_a_structure_lacks_what_it_needs(path: Path) -> None:
    """Jobs of older services may ask for it."""
    structure = path.with_name("structure.onnx")
    structure.write_bytes(strip(path).data)
    file = VendorModel(structure, {})
    found = time_sessions(open_model(structure), TARGET, settings().objects, variants(), vendor=file)
    assert found.vendor_fault == "it needs the model with its weights"


def test_that_is_said_in_the_report(path: Path, url: str, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    monkeypatch.setattr(StandIn, "run", lambda self, arrays: [np.zeros((4, 24), np.float32)])
    answer = command("tune", path, "--db", url, "--trials", 2, "--threads", 1, "--vendor", "--json")
    assert answer.data["vendor"]["fault"].startswith("the largest error") and answer.data["outcome"] != "vendor"
    out = command("tune", path, "--db", url, "--trials", 2, "--threads", 1, "--vendor").out
    assert f"{INSTALLED} was not compared: the largest error is" in " ".join(out.split())


def plant(monkeypatch: pytest.MonkeyPatch, **times_s: float) -> None:
    """Whole models take so long where they are timed, and are opened as they are then."""

    def timed(open_calls: Any, names: Sequence[str], settle: Any = None) -> dict[str, CallLatency]:
        with ExitStack() as stack:
            for call in open_calls(stack, names).values():
                call()
        return {name: CallLatency(tuple(times_s[name] * (1 + 1e-3 * n) for n in range(9))) for name in names}

    monkeypatch.setattr(whole_model, "time_openings", timed)
    monkeypatch.setattr(whole_model.ModelTimes, "noise", lambda self, target, names=None: QUIET)


class Quiet:
    reason = ""


QUIET = Quiet()


def test_a_model_is_tuned_and_run_so(path: Path, url: str, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    plant(monkeypatch, default=4e-3, tuned=4e-3, vendor=1e-3)
    report = tune(path, db=url, trials=2, threads=1, vendor=True)
    assert report.outcome is JobOutcome.VENDOR and report.vendor is not None
    with InferenceSession(path, db=url, threads=1) as session:
        assert session.coverage().runtime == INSTALLED and session.coverage().share == 0.0
        assert session.notes == (report.vendor.note,) == session.vendor_notes
        assert session.kernels_s({"x": X}) > 0
    answer = command("run", path, "--db", url, "--threads", 1, "--json")
    assert answer.data["runtime"] == INSTALLED and report.vendor.note in answer.data["notes"]
    assert f"in {INSTALLED}" in command("run", path, "--db", url, "--threads", 1).out
    compared = command("bench", path, "--db", url, "--threads", 1, "--against", "onnxruntime")
    assert f"tunewright ran it in {INSTALLED}" in " ".join(compared.out.split())


def test_what_can_not_be_had_is_refused(path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "is_installed", lambda: False)
    with pytest.raises(Refused, match="pip install onnxruntime"):
        tune(path, db=url, trials=1, threads=1, vendor=True)
    with pytest.raises(Refused, match="vendor is 'no'"):
        tune(path, db=url, trials=1, threads=1, vendor="no")  # type: ignore[arg-type]


# Sessions


@pytest.fixture
def taken(path: Path, url: str) -> Iterator[Callable[..., InferenceSession]]:
    """Opens sessions of a model whose last job took the vendor's runtime."""
    tuned(path, url, default=4e-3, tuned=2e-3, vendor=1e-3)
    with ExitStack() as stack:

        def opened(**how: Any) -> InferenceSession:
            arguments: dict[str, Any] = {"db": url, "threads": 1} | how
            return stack.enter_context(InferenceSession(path, **arguments))

        yield opened


@pytest.mark.parametrize("background", [False, True])
def test_a_session_runs_in_it(
    taken: Callable[..., InferenceSession], is_marked: Callable[[Any], bool], background: bool
) -> None:
    for _ in range(2):
        session = taken(background=background)
        session.wait()
        assert is_marked(session.run(None, {"x": X})[0]) and is_marked(session.run(["y"], {"x": X})[0])
        assert session.coverage().runtime == INSTALLED and session.coverage().tuned
        [note] = session.notes
        assert note.startswith("by the last tuning job ONNX Runtime 1.2.3 takes") and "so it runs the model" in note


def test_where_it_fails_the_kernels_answer(
    taken: Callable[..., InferenceSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = taken()
    monkeypatch.setattr(StandIn, "run", lambda self, arrays: None)
    assert np.allclose(session.run(None, {"x": X})[0].sum(axis=-1), 1)


@pytest.mark.parametrize("fault", ["it is not installed", "only 1.1.9 is installed", "it does not take the model"])
def test_where_it_is_not_the_kernels_run(
    taken: Callable[..., InferenceSession],
    is_marked: Callable[[Any], bool],
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault == "it is not installed":
        monkeypatch.setattr(vendor, "is_installed", lambda: False)
    elif fault == "it does not take the model":
        monkeypatch.setattr(StandIn, "of", lambda *arguments: None)
    else:
        monkeypatch.setattr(ort_session.OrtSession, "version", "1.1.9")
    session = taken()
    assert not is_marked(session.run(None, {"x": X})[0]) and not session.coverage().runtime
    assert session.notes[0].endswith(f"but {fault}, so our kernels run the model")


def test_a_lock_file_pins_it(
    taken: Callable[..., InferenceSession],
    path: Path,
    url: str,
    tmp_path: Path,
    is_marked: Callable[[Any], bool],
    command: Command,
) -> None:
    lock = tmp_path / "small.lock"
    answer = command("lock", path, "--db", url, "--threads", 1, "-o", lock, "--json").data
    assert answer["vendor"]["version"] == VENDOR_VERSION
    session = taken(db=None, lock=lock)
    assert is_marked(session.run(None, {"x": X})[0]) and session.coverage().runtime


def test_of_an_open_model_each_size_has_its_own(tmp_path: Path, url: str, is_marked: Callable[[Any], bool]) -> None:
    path = tmp_path / "open.onnx"
    path.write_bytes(small_model("rows").SerializeToString())
    tuned(path, url, default=4e-3, tuned=2e-3, vendor=1e-3, dims={"rows": 4})
    with InferenceSession(path, db=url, threads=1) as session:
        for rows in (4, 2):
            feeds = {"x": np.resize(X, (rows, 8))}
            session.run(None, feeds)
            session.wait()
            assert is_marked(session.run(None, feeds)[0]) is (rows == 4)
            assert bool(session.coverage().runtime) is (rows == 4)


def test_what_others_say_of_it_is_checked(path: Path, url: str) -> None:
    tuned(path, url, default=4e-3, tuned=2e-3, vendor=1e-3)
    told = ScheduleSource(url).prepare(path, threads=1).vendor
    assert told is not None and VendorTime.read(told.to_json()) == told
    for change in (
        {"time_ms": float("nan")},
        {"time_ms": None},
        {"version": "1" * 2000},
        {"runtime": "x"},
        {"own_ms": -1},
    ):
        with pytest.raises(ValueError):
            VendorTime.read(told.to_json() | change)
    with pytest.raises(ValueError):
        ModelVerdict.read({"kept": None, "vendor": "yes"})
