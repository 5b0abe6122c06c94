"""What is replayed is what was recorded, and a comparison of searches is the same each time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tunewright.bench import strategies
from tunewright.bench.entries import code_sha256
from tunewright.bench.suite.network import Network
from tunewright.bench.tabular.cases import TabularCase, make_case
from tunewright.bench.tabular.comparison import NEAR, Contender, Curve, replay_search, summary
from tunewright.bench.tabular.contenders import SPREAD_SCALE, RecordedCase, TransferModels, contenders
from tunewright.bench.tabular.plot import draw_curves
from tunewright.bench.tabular.pool import ReplayPool
from tunewright.bench.tabular.records import missing_points, record_points
from tunewright.bench.tabular.subspace import thin_space
from tunewright.codegen.target import Target
from tunewright.costmodel.layered_model import LayeredModel
from tunewright.costmodel.roofline import estimate_space_s
from tunewright.db.store import open_store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.sketches import spaces
from tunewright.tuner.models.model import open_model

TARGET = Target("cpu", "x86_64-unknown-linux-gnu", "made-up", "", 256, 16, 2, 32 << 10, 1 << 20, 16 << 20)
MOST = 120


def product(rows: int) -> Task:
    net = Network("product")
    model = open_model(net.onnx(net.gemm(net.input("x", (rows, 96)), 96, 128)))
    return next(task for task, _ in model.tasks.values())


def convolution() -> Task:
    net = Network("convolution")
    model = open_model(net.onnx(net.conv(net.input("x", (1, 32, 28, 28)), 32, 32, 3)))
    return max((task for task, _ in model.tasks.values()), key=lambda task: task.flops)


def make_records(case: TabularCase) -> RecordedCase:
    """Times are the estimate, and something of each point's own."""
    records = []
    for space in case.spaces:
        estimates = estimate_space_s(case.task, case.target, space, space.points)
        factors = np.random.default_rng(5).uniform(1.0, 1.5, len(estimates))
        for row, time_s in zip(space.points, estimates * factors, strict=True):
            measurement = Measurement(Status.OK, (float(time_s),), float(time_s))
            records.append(Record(case.task.key, case.target.key, space.schedule(row), measurement))
    return RecordedCase(case, records)


@pytest.fixture(scope="module")
def recorded_cases() -> list[RecordedCase]:
    tasks = {"product 48": product(48), "product 384": product(384), "convolution": convolution()}
    return [make_records(make_case(f"{name}, threads: 2", task, TARGET, MOST)) for name, task in tasks.items()]


def test_a_thinned_space_is_a_part_of_the_whole() -> None:
    for task in (product(48), convolution()):
        for space in spaces(task, TARGET):
            small = thin_space(space, MOST)
            assert 0 < len(small.points) <= MOST
            assert small.default == space.default
            for row in small.points:
                space.row(small.schedule(row))  # raises if illegal there


def test_a_space_that_is_small_stays_whole() -> None:
    [space] = spaces(product(48), TARGET)
    small = thin_space(space, MOST)
    assert thin_space(small, MOST).knobs == small.knobs


def test_what_is_recorded_is_what_is_answered(recorded_cases: Sequence[RecordedCase]) -> None:
    recorded_case = recorded_cases[0]
    candidates = [Candidate(recorded_case.case.task, TARGET, record.schedule) for record in recorded_case.records[:5]]
    with ReplayPool(TARGET, recorded_case.records) as pool:
        assert [measurement for _, measurement in pool.measure(candidates)] == pool.compare(candidates)
        assert pool.compare(candidates) == [record.measurement for record in recorded_case.records[:5]]
        assert [state.target for state in pool.devices()] == [TARGET]
        other = Candidate(recorded_cases[1].case.task, TARGET, recorded_cases[1].records[0].schedule)
        with pytest.raises(LookupError):
            list(pool.measure([other]))
        with pytest.raises(ValueError, match="2 tasks"):
            pool.compare([candidates[0], other])


def test_the_fastest_of_several_records_counts(recorded_cases: Sequence[RecordedCase]) -> None:
    record = recorded_cases[0].records[0]
    failed = Record(record.task_key, record.target_key, record.schedule, Measurement(Status.CRASH, error="made up"))
    for records in ([record, failed], [failed, record]):
        [measurement] = ReplayPool(TARGET, records).compare(
            [Candidate(recorded_cases[0].case.task, TARGET, record.schedule)]
        )
        assert measurement == record.measurement


def test_recording_goes_on_where_it_ended(recorded_cases: Sequence[RecordedCase], tmp_path: Path) -> None:
    case = recorded_cases[0].case
    pool = ReplayPool(TARGET, recorded_cases[0].records)
    with open_store(f"sqlite:///{tmp_path / 'replay.db'}") as store:
        points = missing_points(store, case)
        assert {schedule.key for schedule in points} == {schedule.key for schedule in case.points}
        assert record_points(store, pool, case, points, time.monotonic() - 1) == 0
        assert record_points(store, pool, case, points[:20], time.monotonic() + 60) == 20
        assert {s.key for s in missing_points(store, case)} == {s.key for s in points[20:]}


def test_every_contender_searches_alike_each_time(recorded_cases: Sequence[RecordedCase], tmp_path: Path) -> None:
    curves, recorded_case = {}, recorded_cases[0]
    for name, contender in contenders(recorded_cases).items():
        curves[name], again = (
            replay_search(recorded_case.case, recorded_case.records, contender, seed=1, trials=17) for _ in range(2)
        )
        assert np.array_equal(curves[name], again), name
        assert (np.diff(curves[name]) >= 0).all()
        assert 0 < curves[name][-1] <= 1
    draw_curves(tmp_path / "curves.svg", {name: curve.tolist() for name, curve in curves.items()})
    assert "taught elsewhere" in (tmp_path / "curves.svg").read_text()


@pytest.mark.slow
def test_what_was_compared_is_kept_while_records_and_code_stay(
    recorded_cases: list[RecordedCase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[str] = []

    def count_search(case: TabularCase, *rest: Any) -> Curve:
        searches.append(case.name)
        return replay_search(case, *rest)

    monkeypatch.setattr(strategies, "RESULTS", tmp_path)
    monkeypatch.setattr(strategies, "replay_search", count_search)
    monkeypatch.setattr(strategies, "_recorded_cases", lambda console: recorded_cases[:1])
    console = Console(quiet=True)
    for names, count in ((["random"], 1), (["random"], 1), (["random", "estimate"], 2)):
        assert strategies._compare(console, names, 1, again=False) == 0
        assert len(searches) == count
    summaries = json.loads((tmp_path / "strategies.json").read_text())["contenders"]
    assert list(summaries) == ["random", "estimate"]
    strategies._compare(console, ["estimate"], 1, again=True)
    assert len(searches) == 3
    changes: list[tuple[str, Callable[..., str]]] = [
        ("code_sha256", lambda *folders: "another" if folders else code_sha256()),  # only what is compared with
        ("code_sha256", lambda *folders: "another"),
        ("base_model_sha256", lambda: "another"),
    ]
    for count, (name, changed) in enumerate(changes, 4):
        monkeypatch.setattr(strategies, name, changed)
        strategies._compare(console, ["estimate"], 1, again=False)
        assert len(searches) == count
        assert list(json.loads((tmp_path / "strategies.json").read_text())["contenders"]) == ["estimate"]


def test_what_is_taught_elsewhere_spreads_as_far_as_its_errors(recorded_cases: Sequence[RecordedCase]) -> None:
    layered_model = TransferModels(recorded_cases).model(recorded_cases[0].case, seed=0)._learned
    assert layered_model is not None
    assert (layered_model.scale, layered_model.spread_scale) == (LayeredModel((), None).scale, SPREAD_SCALE)


def test_a_search_of_a_whole_space_finds_its_best(recorded_cases: Sequence[RecordedCase]) -> None:
    recorded_case = recorded_cases[0]
    chance: Contender = contenders(recorded_cases)["random"]
    assert replay_search(recorded_case.case, recorded_case.records, chance, seed=0, trials=2 * MOST)[-1] == 1.0


def test_a_summary_counts_the_trials_until_the_best_is_near() -> None:
    figures = summary({"one": [np.array([0.5, 0.96, 1.0]), np.array([0.5, 0.5, 0.5])]})
    assert NEAR == 0.95
    assert figures["trials_by_case"] == {"one": 3.0}  # 2, and one more than the 3 there were
    assert figures["median_trials"] == 3.0
    assert figures["arrived"] == 0.5
    assert figures["speed"]["1"] == 0.5
