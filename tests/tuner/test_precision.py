"""Precision: what products are computed in, the same wherever a model is opened, and never mixed up."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunewright.codegen.host import detect
from tunewright.codegen.target import CUDA
from tunewright.db.store import open_store
from tunewright.graph.numerics import Precision
from tunewright.graph.onnx_import.structure import strip
from tunewright.tuner.errors import Refused
from tunewright.tuner.explain.gain import ModelGain
from tunewright.tuner.lookup.lockfile import read_lock, write_lock
from tunewright.tuner.lookup.source import PreparedModel, ScheduleSource, _apply_verdict
from tunewright.tuner.lookup.verdict import ModelVerdict, VendorTime
from tunewright.tuner.models.model import example_feeds, open_for
from tunewright.tuner.search import tuning
from tunewright.tuner.search.report import Report
from tunewright.tuner.search.whole_model import _check_errors
from tunewright.tuner.session import executable
from tunewright.tuner.session.agreement import float_errors
from tunewright.tuner.session.session import InferenceSession

from ..commands import Command
from .fake_pool import FakePool, by_key
from .wide_model import WEIGHT, X, is_close, recounted, rounded, wide_model

BF16 = "bf16"


def run(session: InferenceSession, x: Any = X, **weights: Any) -> Any:
    [y] = session.run(None, {"x": x} | weights)
    return y


@pytest.fixture
def wide(home: Path) -> Path:
    """The file of the model, in a home of its own."""
    path = home / "wide.onnx"
    path.write_bytes(wide_model())
    return path


def test_bf16_rounds_large_weights(wide: Path) -> None:
    with InferenceSession(wide, threads=1) as given, InferenceSession(wide, threads=1, precision=BF16) as narrow:
        plain, ours = run(given), run(narrow)
    assert is_close(plain, recounted("as given")) and is_close(ours, recounted(BF16))
    error = np.abs(ours - plain).max() / np.abs(plain).max()
    assert 2**-12 < error < 2**-7  # of terms up to 2^-8, which add up at random


def test_activations_as_bytes_change_no_model_without_bytes(wide: Path) -> None:
    with InferenceSession(wide, threads=1, precision="int8 activations") as session:
        assert is_close(run(session), recounted("as given"))


@pytest.mark.parametrize("wrong", ["fp16", "BF16", "", None, 16])
def test_another_value_is_refused_in_one_line(wrong: Any, wide: Path) -> None:
    with pytest.raises(Refused, match=r"^no precision is called .*; there are as given, bf16, int8 activations$"):
        InferenceSession(wide, precision=wrong)


def test_no_session_starts_from_an_image_of_another_precision(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for precision in Precision:
        InferenceSession(wide, threads=1, precision=precision).close()
    assert len(list((wide.parent / "images").glob("*.image"))) == 3  # also of those with the same tasks
    monkeypatch.setattr(executable, "open_executable", None)  # now they start from these alone
    for precision in Precision:
        with InferenceSession(wide, threads=1, precision=precision) as session:
            assert is_close(run(session), recounted(precision))


def test_a_gpu_takes_it(wide: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("gpu")
    with InferenceSession(wide, target=CUDA, precision=BF16) as session:
        expected = np.maximum(rounded(X) @ rounded(WEIGHT), 0)  # it multiplies such numbers
        assert np.abs(run(session) - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.slow
def test_a_process_in_the_background_compiles_it(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(executable, "open_executable", None)  # nothing is compiled in this process
    with InferenceSession(wide, threads=1, precision=BF16, background=True) as session:
        early, was_ready = run(session), session.ready
        assert was_ready or is_close(early, recounted("as given"))  # by the stand-in
        assert session.wait(inf)
        assert is_close(run(session), recounted(BF16))


@pytest.mark.slow
def test_sizes_that_stay_open_have_it(home: Path) -> None:
    with InferenceSession(wide_model("n"), threads=1, precision=BF16) as session:
        for rows in (1, 3):
            session.compile_at({"n": rows})
            assert is_close(run(session, X[:rows]), recounted(BF16, X[:rows]))


def test_weights_that_a_run_is_given_stay_as_they_are(home: Path) -> None:
    with InferenceSession(wide_model(is_overridable=True), threads=1, precision=BF16) as session:
        assert is_close(run(session), recounted(BF16))
        assert is_close(run(session, w=2 * WEIGHT), 2 * recounted("as given"))


def vendor_time() -> VendorTime:
    return VendorTime("1.0", 1e-6, own_s=2e-6)


@pytest.mark.parametrize("precision", Precision)
def test_a_vendors_runtime_runs_a_model_as_given_alone(precision: Precision, home: Path) -> None:
    model = open_for(detect(1), wide_model(), precision=precision)
    prepared = _apply_verdict(PreparedModel(model, detect(1), {}, {}), ModelVerdict(vendor=vendor_time()))
    assert (prepared.vendor is not None) == (precision is Precision.AS_GIVEN)


def lock_of(path: Path, precision: Precision, vendor: VendorTime | None = None) -> Path:
    prepared = ScheduleSource().prepare(wide_model(), threads=1, precision=precision)
    write_lock(path, prepared.model, prepared.target, {}, prepared.results, vendor)
    return path


def test_a_lock_file_is_of_one_precision(home: Path) -> None:
    lock = lock_of(home / "wide.lock.json", Precision.BF16)
    assert json.loads(lock.read_text())["precision"] == BF16
    with InferenceSession(wide_model(), lock=lock, precision=BF16) as session:
        assert is_close(run(session), recounted(BF16))
    with pytest.raises(Refused, match=r"wide.lock.json' was made for precision 'bf16', and 'as given' is asked for"):
        InferenceSession(wide_model(), lock=lock)
    with pytest.raises(Refused, match="was made for precision 'as given', and 'bf16' is asked for"):
        InferenceSession(wide_model(), lock=lock_of(lock, Precision.AS_GIVEN), precision=BF16)


def test_a_lock_file_of_before_there_was_one_is_of_the_model_as_given(home: Path) -> None:
    lock = lock_of(home / "wide.lock.json", Precision.AS_GIVEN)
    data = json.loads(lock.read_text())
    lock.write_text(json.dumps({name: value for name, value in data.items() if name != "precision"}))
    assert read_lock(lock).precision is Precision.AS_GIVEN
    lock.write_text(json.dumps(data | {"precision": "fp8"}))
    with pytest.raises(Refused, match="no precision is called 'fp8'"):
        read_lock(lock)


def test_a_vendor_in_a_lock_file_of_another_precision_is_passed_over(home: Path) -> None:
    lock = lock_of(home / "wide.lock.json", Precision.BF16, vendor_time())
    prepared = ScheduleSource(lock=lock).prepare(wide_model(), threads=1, precision=Precision.BF16)
    assert prepared.vendor is None


def test_weights_are_rounded_with_overrides_under_a_lock(home: Path) -> None:
    model = wide_model(is_overridable=True)
    prepared = ScheduleSource().prepare(model, threads=1, precision=Precision.BF16)
    write_lock(home / "m.lock.json", prepared.model, prepared.target, {}, prepared.results)
    with InferenceSession(model, lock=home / "m.lock.json", precision=BF16) as session:
        assert is_close(run(session), recounted(BF16))
        assert is_close(run(session, w=WEIGHT), recounted("as given"))


def test_a_structure_has_the_tasks_of_its_model() -> None:
    for precision in Precision:
        data = wide_model()
        tasks = list(open_for(detect(1), data, precision=precision).tasks)
        assert list(open_for(detect(1), strip(data).data, precision=precision).tasks) == tasks


# Commands


@pytest.fixture
def tuned(wide: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Arguments that name the model and a database in which it was tuned in bfloat16."""
    monkeypatch.setattr(tuning, "open_pool", lambda *_: FakePool(by_key))
    arguments = [wide, "--db", f"sqlite:///{wide.parent / 'tuning.db'}", "--threads", 1, "--json"]
    answer = command("tune", *arguments, "--trials", 4, "--precision", BF16)
    assert answer.code == 0, answer.err
    return arguments


@pytest.mark.slow
def test_tuning_and_lookups_are_of_a_precision(tuned: list[object], command: Command) -> None:
    for precision in Precision:
        told = command("lookup", *tuned, "--precision", precision).data
        is_measured = {task["basis"] == "measured" for task in told["tasks"]}  # which it also is of defaults that stay
        assert is_measured == {precision is Precision.BF16}
        tasks = {task["key"] for task in command("tasks", *tuned, "--precision", precision).data["tasks"]}
        assert tasks == {task["key"] for task in told["tasks"]}
        model, *rest = tuned
        for key in tasks:  # one, or one more where a processor multiplies bfloat16, that casts
            shown = command("show", key, "--model", model, "--precision", precision, *rest)
            assert (shown.code, shown.data["key"]) == (0, key)
    assert command("lookup", *tuned).data == command("lookup", *tuned, "--precision", "as given").data


@pytest.mark.slow
def test_a_job_is_of_a_precision(tuned: list[object], wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "open_pool", lambda *_: FakePool(by_key))
    url = str(tuned[2])
    first = tuning.tune(wide, db=url, threads=1, trials=2)
    second = tuning.tune(wide, db=url, threads=1, trials=2, precision="int8 activations")
    with open_store(url) as store:
        specs = [store.jobs.get(number).spec for number in (1, first.job_id, second.job_id)]
    assert [spec.precision for spec in specs] == [BF16, "as given", "int8 activations"]
    assert "precision" not in specs[1].settings  # jobs of before there was one are equal
    assert specs[1].tasks == specs[2].tasks and len({spec.key for spec in specs}) == 3


def test_a_model_runs_in_a_precision(tuned: list[object], wide: Path, command: Command) -> None:
    np.save(wide.parent / "x.npy", X)
    for precision in ("as given", BF16):
        arguments = [*tuned, "--input", f"x={wide.parent / 'x.npy'}", "--output", wide.parent, "--precision", precision]
        assert command("run", *arguments).code == 0
        assert is_close(np.load(wide.parent / "output_0.npy"), recounted(precision))


def test_what_is_pinned_is_of_a_precision(tuned: list[object], wide: Path, command: Command) -> None:
    lock = wide.parent / "wide.lock.json"
    assert command("lock", *tuned, "--precision", BF16, "-o", lock).code == 0
    assert command("run", wide, "--lock", lock, "--precision", BF16).code == 0
    refused = command("run", wide, "--lock", lock)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "was made for precision 'bf16', and 'as given' is asked for" in refused.err


def test_a_compiled_model_has_a_precision(wide: Path, command: Command) -> None:
    libraries = []
    for precision in ("as given", BF16):
        file = wide.parent / "libwide.so"
        assert command("compile", wide, "-o", file, "--threads", 1, "--precision", precision).code == 0
        libraries.append(file.stat().st_size)
    assert libraries[0] - libraries[1] > WEIGHT.nbytes / 2 - 4096  # the weight has half the size


@pytest.mark.slow
def test_a_benchmark_tells_the_error_of_a_precision(tuned: list[object], command: Command) -> None:
    pytest.importorskip("onnxruntime")
    for precision, least, most in (("as given", 0.0, 1e-6), (BF16, 2**-12, 2**-7)):
        told = command("bench", *tuned, "--against", "onnxruntime", "--precision", precision).data
        assert least <= told["max_rel_err"] <= most


def test_commands_refuse_another_value_in_one_line(wide: Path, command: Command) -> None:
    for name in ("tune", "run", "lookup", "lock", "tasks", "bench", "compile"):
        answer = command(name, wide, "--precision", "fp16")
        told = "error: --precision must be as given, bf16 or int8 activations, not 'fp16'\n"
        assert (answer.code, answer.err) == (2, told)


def test_a_vendor_and_a_precision_exclude_each_other(wide: Path, command: Command) -> None:
    answer = command("tune", wide, "--vendor", "--precision", BF16)
    assert answer.code == 2
    assert "error: ONNX Runtime computes a model as given: leave vendor out, or precision bf16" in answer.err


# The error


def recounted_error(path: Path, precision: str) -> float:
    """That of the outputs of two sessions."""
    feeds = example_feeds(open_for(detect(1), path))
    with InferenceSession(path, threads=1) as given, InferenceSession(path, threads=1, precision=precision) as other:
        [plain], [ours] = given.run(None, feeds), other.run(None, feeds)
    error: float = np.abs(ours - plain).max() / np.abs(plain).max()
    return error


@pytest.mark.slow
def test_a_job_tells_the_error_of_its_precision(wide: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "open_pool", lambda *_: FakePool(by_key))
    asked = ["--trials", 4, "--threads", 1, "--db", f"sqlite:///{wide.parent / 'tuning.db'}"]
    error = recounted_error(wide, BF16)
    assert error > 2**-12
    report = tuning.tune(wide, threads=1, trials=4, precision=BF16)
    assert report.precision_errors == {"y": pytest.approx(error, rel=1e-3)}  # but for the order of sums
    kept = Report.from_json(report.to_json())  # the same but for the last bits of times
    assert report.precision == kept.precision == BF16 and kept.precision_errors == report.precision_errors
    said = command("tune", wide, *asked, "--precision", BF16).out
    assert f"precision bf16 moves the output by {100 * error:.2g}% of its largest value on made-up inputs" in said
    told = command("tune", wide, *asked, "--json").data
    assert (told["precision"], told["precision_errors"]) == ("as given", {})
    assert "precision" not in command("tune", wide, *asked).out


def test_nothing_is_told_of_made_up_weights(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "open_pool", lambda *_: FakePool(by_key))
    report = tuning.tune(strip(wide).data, threads=1, trials=2, precision=BF16)
    assert report.tuned_s and report.precision_errors == {}


def test_errors_are_of_outputs_of_floats() -> None:
    floats, whole, texts = np.array([1, -4], np.float32), np.array([1, 2]), np.array(["a"], object)
    ours = [floats + 1, whole + 1, texts, floats, floats * np.inf, floats * 0]
    given = [floats, whole, texts, floats[:1], floats, floats * 0]
    assert float_errors("abcdef", ours, given) == {"a": 0.25, "d": None, "e": None, "f": 0.0}


@pytest.mark.parametrize("errors", [{"y": -1.0}, {"y": np.nan}, {"y": "inf"}, {str(n): 0.0 for n in range(2000)}, [1]])
def test_a_child_tells_no_nonsense(errors: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        _check_errors(errors)


def test_errors_in_words() -> None:
    def words(**errors: float | None) -> str:
        return ModelGain.of_job(None, {"precision": "bf16", "precision_errors": errors}).precision_text

    assert words() == "" == ModelGain.of_job(None, {}).precision_text == ModelGain.of_job({}, None).precision_text
    assert words(y=0.00123) == "precision bf16 moves the output by 0.12% of its largest value on made-up inputs"
    apart = "not compared: NaN or infinite at other places: z"
    assert words(x=0.25, y=0.5, z=None) == (
        f"precision bf16 moves output y, others less, by 50% of its largest value on made-up inputs; {apart}"
    )
    assert words(z=None) == apart
