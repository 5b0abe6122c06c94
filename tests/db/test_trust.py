"""What was timed here speaks, what is imported fills gaps, and what is taken back is offered by nobody."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, op
from tunewright.codegen.target import Target
from tunewright.db import admission, exchange
from tunewright.db.errors import NotFound
from tunewright.db.exchange import EntryKind
from tunewright.db.job import JobState, SearchBudget
from tunewright.db.store import open_store
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

from .conftest import FROZEN

FAILED = Measurement(Status.CRASH, error="signal 11")
START = datetime(2025, 3, 1, tzinfo=UTC)

steps = st.tuples(
    st.sampled_from(["record", "trial", "confirmation", "void", "lift"]),
    st.integers(0, 3),
    st.sampled_from([1e-3, 2e-3, 3e-3, None]),
)


def line(samples, record, moment, extent=8, kind=EntryKind.TRIAL):
    data = exchange.to_json(samples.task(extent).to_json(), samples.target().to_json(), record, moment, kind)
    return json.dumps(data)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=14))
@example([("trial", 0, 1e-3), ("confirmation", 1, None), ("record", 1, None)])
def test_the_rule_holds_whatever_happens_in_whatever_order(filled, samples, steps):
    extent = 100 + filled.counts()["tasks"]  # a task of its own for every example
    filled.add_task(samples.task(extent))
    key = samples.task(extent).key, samples.target().key
    timed: dict[int, float | None] = {}  # here, by the number of the schedule
    imported: set[int] = set()
    voided: set[int] = set()
    stored = 0
    for second, (kind, number, median_s) in enumerate(steps):
        measurement = FAILED if median_s is None else samples.measurement(median_s)
        record = samples.record(number, measurement, extent=extent)
        match kind:
            case "record":
                stored += filled.record(record)
                timed.setdefault(number, median_s)
            case "void" | "lift":
                with suppress(NotFound):
                    change = filled.voids.void if kind == "void" else filled.voids.lift
                    change(*key, samples.schedule(number).key, *(["it lies"] if kind == "void" else []))
                    (voided.add if kind == "void" else voided.discard)(number)
            case _:
                moment = START + timedelta(seconds=second)
                stored += filled.import_([line(samples, record, moment, extent, EntryKind(kind))]).added
                imported.add(number)
        best = filled.best(*key)
        catalog_best = filled.catalog.best([key[0]], [key[1]]).get(key)
        assert (catalog_best and (catalog_best.schedule, catalog_best.median_s)) == (
            best and (best.schedule, best.measurement.median_s)
        )
        works = [median for n, median in timed.items() if median is not None and n not in voided]
        if works:
            assert best is not None and catalog_best is not None
            assert (best.measurement.median_s, catalog_best.is_imported) == (min(works), False)
        if best is not None:
            assert best.schedule not in [samples.schedule(n) for n in voided]
            assert works or best.schedule in [samples.schedule(n) for n in imported - timed.keys()]
        assert {trial.schedule for trial in filled.records(*key)} >= {samples.schedule(n) for n in timed}
        failed = filled.catalog.failures([key[0]], key[1]).get(key[0], set())
        assert failed >= {samples.schedule(n).key for n in voided}
        hints = filled.hints(*key)
        assert not {samples.schedule(n) for n in (*voided, *timed)} & set(hints)
    lines = [entry for entry in filled.export() if entry["task_key"] == key[0]]
    assert len(lines) == stored
    keys = {samples.schedule(n).key for n in voided}
    assert all(
        (entry["voided_at"] is not None) == (exchange.parse(json.dumps(entry)).record.schedule.key in keys)
        for entry in lines
    )


def test_a_trial_of_a_job_takes_the_place_of_an_imported_one(filled, samples):
    key = samples.task().key, samples.target().key
    filled.import_([line(samples, samples.record(1, samples.measurement(1e-6)), START)])
    lease = filled.jobs.open(samples.spec(), "", SearchBudget(9), "h")
    assert filled.schedule_keys(*key) == set()
    assert filled.record(samples.record(1), lease)
    assert not filled.record(samples.record(1), lease)
    assert filled.records(*key) == [samples.record(1)]
    [trial] = filled.jobs.trials(lease.job_id)
    assert trial.record == samples.record(1)
    assert sorted(entry["median_s"] for entry in filled.export()) == [1e-6, samples.record(1).measurement.median_s]
    again = filled.import_([line(samples, samples.record(1, samples.measurement(1e-6)), START)])
    assert (again.added, again.known) == (0, 1)


@pytest.mark.parametrize("is_newest", [True, False])
def test_a_trial_that_takes_the_place_of_another_one_is_newer_than_all(filled, samples, is_newest):
    """Ids stand in addresses of pages, and tell what nobody has learned from yet."""
    filled.import_([line(samples, samples.record(1, samples.measurement(1e-6)), START)])
    if not is_newest:
        filled.record(samples.record(2))
    before = filled.newest_trial()
    assert filled.record(samples.record(1))
    assert filled.newest_trial() > before
    [(candidate, timing)] = filled.examples("cpu", after=before)
    assert (candidate.schedule, timing.median_s) == (samples.schedule(1), samples.record(1).measurement.median_s)


def test_what_is_of_no_sketch_of_this_version_is_history(filled, samples):
    key = samples.task().key, samples.target().key
    data = json.loads(line(samples, samples.record(1), START))
    for number, change in enumerate([{"sketch": "magic"}, {"version": 0}, {"version": 7}]):
        entry = data | {"schedule": data["schedule"] | change}
        assert filled.import_([json.dumps(entry)]).added == 1, number
    assert (filled.best(*key), filled.hints(*key), filled.catalog.best_on(key[1])) == (None, [], [])
    assert len(list(filled.export())) == 3


def test_what_was_taken_back_is_not_learned_from(filled, samples):
    for number in range(3):
        filled.record(samples.record(number))
    filled.voids.void(samples.task().key, samples.target().key, samples.schedule(1).key, "noisy")
    assert [example.schedule for example, _ in filled.examples("cpu")] == [samples.schedule(2), samples.schedule(0)]
    page = filled.trials.page(samples.task().key, samples.target().key)
    assert {example.status: (example.median_s, example.error) for example in page.trials}[Status.VOIDED] == (
        None,
        "noisy",
    )
    assert page.counts == {Status.OK: 2, Status.VOIDED: 1}


def test_the_first_fault_is_named_and_what_is_before_it_is_stored(filled, samples):
    good = [line(samples, samples.record(number), START) for number in range(4)]
    illegal = json.loads(good[2])
    illegal["schedule"]["values"]["tile_m"] = 5000
    sudden = line(samples, samples.record(5, samples.measurement(1e-12)), START)
    lines = ["", good[0], good[1], json.dumps(illegal), good[2], sudden, "{"]
    with pytest.raises(
        exchange.BadLine, match=r"line 4: its schedule is no legal point: tile_m=5000 is none of"
    ) as bad:
        filled.import_(lines)
    assert (bad.value.number, bad.value.stored) == (4, 2)
    with pytest.raises(exchange.BadLine, match=r"line 2: \w+ is 1e-12 s, which can't be: a run of this task on cpu:"):
        filled.import_([good[3], sudden])
    assert len(list(filled.export())) == 3


def voided(moment):
    return {"voided_at": moment, "void_reason": "wrong"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schema": 2} | voided("2025-06-01T00:00:00+00:00"), "its schema is 2, and voided_at '2025-06-01T00:00:00"),
        (
            {"schema": 3} | voided("2999-01-01T00:00:00+00:00"),
            "voided_at is 2999-01-01T00:00:00+00:00, which is yet to",
        ),
        (
            {"low_s": 9e-6, "high_s": 1e-6},
            "low_s is 9e-06 s, median_s 3e-06 s, high_s 1e-06 s; the median lies between",
        ),
        ({"low_s": 3.1e-6, "high_s": 4e-6}, "the median lies between the ends of its interval"),
        ({"low_s": 1e-6, "high_s": 2.9e-6}, "the median lies between the ends of its interval"),
        ({"high_s": None}, "low_s is 3e-06 s, high_s null; an interval has both ends"),
        ({"samples_s": [5.0]}, "median_s is 3e-06 s, samples_s go from 5 s to 5 s; it is their median"),
        ({"samples_s": [1e-6, 1.1e-6]}, "samples_s go from 1e-06 s to 1.1e-06 s; it is their median"),
        ({"status": "timeout", "samples_s": []}, "the status is timeout, but there are times"),
        ({"status": "crash", "median_s": None}, "the status is crash, but there are times"),
        ({"status": "wrong_result", "median_s": None}, "but no median_s that they are of"),
        ({"low_s": 0}, "low_s is 0 s, which can't be: a run of this task on cpu:"),
        ({"low_s": 1e-12}, "low_s is 1e-12 s, which can't be: a run of this task on cpu:"),
        ({"samples_s": [3e-6, 1e-12, 3e-6]}, "samples_s is 1e-12 s, which can't be: a run of this task on cpu:"),
        ({"schema": 3}, "its schema is 3, and voided_at null; lines of what is taken back are of version 3"),
        ({"void_reason": "x"}, "void_reason is 'x', but there is no voided_at"),
        ({"incumbent_s": 1e-300}, "incumbent_s is 1e-300 s, which can't be"),
        ({"error": "it broke"}, "the status is ok, but error is 'it broke'"),
        ({"max_rel_err": 1.1e-4}, "the status is ok, but max_rel_err is 0.00011; results of this task are off 0.0001"),
        ({"object_sha256": "AB" * 32}, "object_sha256 is 'ABAB"),
        ({"object_sha256": "x"}, "object_sha256 is 'x', not 64 hexadecimal digits in lower case"),
    ],
)
def test_times_that_contradict_each_other_are_refused(filled, samples, changed, said):
    good = json.loads(line(samples, samples.record(1, samples.measurement(3e-6)), START))
    with pytest.raises(exchange.BadLine, match=f"line 2: .*{re.escape(said)}"):
        filled.import_([line(samples, samples.record(2), START), json.dumps(good | changed)])
    assert len(list(filled.export())) == 1
    rounded = good | {"low_s": 3.000001e-6, "high_s": 3.1e-6, "samples_s": [3.1e-6, 3.2e-6]}
    for taken in (good, rounded, good | {"low_s": None, "high_s": None, "samples_s": []}):
        admission.check_agreement(exchange.parse(json.dumps(taken)).record.measurement)


def test_both_floors_of_times_are_told_apart(filled, samples):
    good = json.loads(line(samples, samples.record(1, samples.measurement(3e-6)), START))
    said = []
    for changed in ({"samples_s": [3e-6, 1e-12]}, {"warm_s": 1e-12}):
        with pytest.raises(exchange.BadLine, match="which can't be") as bad:
            filled.import_([json.dumps(good | changed)])
        said.append(str(bad.value).partition(" takes ")[2])
    run, single = said[1], said[0]
    assert re.fullmatch(r"\S+ s at least", run)
    assert re.fullmatch(re.escape(run) + r", and a single sample, which may be of an odd moment, \S+ s", single)


def test_products_are_bounded_by_what_multiplies():
    """Two multiply-adds of vectors a cycle, or matrix registers; where work may be saved the bound is lower."""
    a, b = Tensor("a", (128, 64), DType.F32), Tensor("b", (64, 128), DType.F32)
    i, j, k = map(Var, "ijk")
    body = op("mul", Load("a", (i, k), DType.F32), Load("b", (k, j), DType.F32))
    axes = Axis("i", 128), Axis("j", 128)
    out = Tensor("c", (128, 128), DType.F32)

    def product(body: Expr) -> Task:
        return Task("MatMul", (a, b), (out,), (), (Stage("c", axes, body, (Axis("k", 64),), "sum", (i, j)),))

    target = Target("cpu", "x86_64-unknown-linux-gnu", "znver5", "", 512, 32, 2, 49152, 1 << 20, 1 << 25)
    bound_s = 128 * 128 * 64 / (16 * 2 * 2 * admission.CLOCK_HZ)
    assert admission.fastest_s(product(body), target, saves=False) == pytest.approx(bound_s)
    assert admission.fastest_s(product(body), target, saves=True) == pytest.approx(bound_s / 16)
    padded = op("select", op("lt", i, const(5, DType.I64)), body, const(0.0, DType.F32))
    assert admission.fastest_s(product(padded), target, saves=False) == pytest.approx(bound_s / 32)
    narrow = replace(target, triple="aarch64-unknown-linux-gnu", vector_bits=128)
    assert admission.fastest_s(product(body), narrow, saves=False) == pytest.approx(2 * bound_s)
    assert admission.saves_work("winograd4") and admission.saves_work("magic")
    assert not admission.saves_work("contraction")


def test_a_measured_peak_bounds_what_may_be_saved(filled, samples):
    """Winograd's method may save arithmetic, but no machine is 80 times as fast as another one of its target."""
    a, b, out = (
        Tensor(name, shape, DType.F32) for name, shape in (("a", (256, 512)), ("b", (512, 256)), ("c", (256, 256)))
    )
    body = op("mul", Load("a", (Var("i"), Var("k")), DType.F32), Load("b", (Var("k"), Var("j")), DType.F32))
    stage = Stage("c", (Axis("i", 256), Axis("j", 256)), body, (Axis("k", 512),), "sum", (Var("i"), Var("j")))
    task, target = Task("MatMul", (a, b), (out,), (), (stage,)), samples.target()
    peak_gflops = 1.0
    bound_s = task.flops / (32 * 1e9 * peak_gflops)
    schedule = Schedule("magic", 1, ())  # it may save arithmetic

    def good(median_s):
        return Measurement(Status.OK, (median_s,), median_s)

    def entry(median_s, day=0):
        record, moment = Record(task.key, target.key, schedule, good(median_s)), START + timedelta(days=day)
        return json.dumps(exchange.to_json(task.to_json(), target.to_json(), record, moment, EntryKind.TRIAL))

    assert admission.fastest_s(task, target) < bound_s / 2
    assert filled.import_([entry(bound_s / 2)]).added == 1  # as long as no peak is known
    lease = filled.jobs.open(samples.spec(), "", SearchBudget(9), "h")
    filled.jobs.finish(lease, JobState.SUCCEEDED, result={"peak_gflops": peak_gflops})
    with pytest.raises(exchange.BadLine, match=f"which can't be: a run .* takes {bound_s:.3g} s at least"):
        filled.import_([entry(bound_s / 2.1)])
    assert filled.import_([entry(bound_s * 1.01, day=1)]).added == 1


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem)
def test_what_older_versions_exported_is_taken(path, filled, tmp_path):
    shutil.copy(path, tmp_path / "old.sqlite")
    with open_store(f"sqlite:///{tmp_path}/old.sqlite") as old:
        lines = [json.dumps(entry) for entry in old.export()]
    assert filled.import_(lines).added == len(lines) > 0


def test_a_void_stays_as_it_was_given_until_it_is_lifted(filled, samples):
    key, schedule = (samples.task().key, samples.target().key), samples.schedule(1)
    filled.record(samples.record(1))
    for number in (1, 2, 3):
        assert filled.voids.void(*key, schedule.key, f"reason {number}") == 1
    [entry] = filled.export()
    assert (entry["status"], entry["void_reason"], entry["schema"]) == ("ok", "reason 1", 3)
    assert filled.voids.schedules(*key) == [schedule]
    assert filled.voids.lift(*key, schedule.key) == 1
    with pytest.raises(NotFound, match="not taken back here"):
        filled.voids.lift(*key, schedule.key)
    with pytest.raises(NotFound, match="nothing is stored"):
        filled.voids.void(*key, samples.schedule(9).key, "x")
