"""MachineLog and MachineRecord: what a machine did, from its samples to the page of a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.db.job import EventKind
from tunewright.db.store import open_store
from tunewright.search_space.measurement import DRIFT, Measurement, Status
from tunewright.tuner.explain.machine_record import (
    LARGEST,
    LONGEST_SPAN_S,
    MOST_SPANS,
    MachineRecord,
    machine_words,
    span_of,
    whole_span,
)
from tunewright.tuner.machine_span import Gauge, GaugeRange, MachineSpan
from tunewright.tuner.models.model import open_model
from tunewright.tuner.search.machine_log import SAMPLE_S, SPANS, MachineLog
from tunewright.workers.machine_sample import MachineSample

from .conftest import small_model
from .fake_pool import FakePool, by_key, job

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

QUIET = MachineSample(SAMPLE_S, 0.0, 0.02, 0.5, None, None, 2600.0, None)
BUSY = MachineSample(SAMPLE_S, 0.25, 0.02, 0.5, None, None, 2400.0, None, is_noisy=True)


class Time:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def trial(low_s: float, high_s: float, drift: str = "") -> Measurement:
    provenance = {DRIFT: drift} if drift else {}
    return Measurement(Status.OK, (low_s, 1.0, high_s), 1.0, low_s, high_s, provenance=provenance)


def test_a_span_is_told_for_each_look() -> None:
    time, seen = Time(), [QUIET]
    log = MachineLog(lambda: seen[-1], time)
    log.look()
    assert log.news() == []  # it is too early
    log.note(trial(0.98, 1.02, "1.5"))
    log.note(trial(0.5, 1.5, "0.5"))
    log.note(Measurement(Status.CRASH, error="signal 11"))
    time.now_s = SAMPLE_S
    log.look()
    [event] = log.news()
    assert event.kind is EventKind.MACHINE and event.data == {
        "elapsed_s": 10.0,
        "noisy_s": 0.0,
        "trials": 3,
        "busy_trials": 0,
        "marked_trials": 1,
        "steal": [0.0, 0.0, 0.0],
        "others": [0.02, 0.02, 0.02],
        "load": [0.5, 0.5, 0.5],
        "clock_mhz": [2600.0, 2600.0, 2600.0],
        "spread": [0.04, 0.52, 1.0],
        "drift": [0.5, 1.0, 1.5],
    }
    assert log.news() == []
    seen.append(BUSY)
    log.note(trial(1.0, 1.0))
    [event] = log.news(is_last=True)
    assert (event.data["noisy_s"], event.data["busy_trials"], event.data["marked_trials"]) == (10.0, 1, 0)


def test_those_of_long_work_are_longer_and_lose_nothing() -> None:
    time, seen = Time(), [QUIET]
    log = MachineLog(lambda: seen[-1], time)
    told = []
    looks = 40 * SPANS
    for number in range(looks):
        time.now_s += SAMPLE_S
        seen[-1] = BUSY if number == looks - 20 else QUIET
        log.look()
        told += log.news()
    told += log.news(is_last=True)
    assert SPANS < len(told) < SPANS * 6
    spans = [span_of(event.data) for event in told]
    assert sum(span.elapsed_s for span in spans if span) == pytest.approx((looks + 1) * SAMPLE_S, rel=1e-3)
    assert sum(span.noisy_s for span in spans if span) == SAMPLE_S
    assert max(span.gauges[Gauge.STEAL].high for span in spans if span) == 0.25


def test_a_job_tells_what_its_machine_did(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/t.db") as store:
        report = job(open_model(small_model().SerializeToString()), store, FakePool(by_key, machine=BUSY))
        events = store.jobs.events(report.job_id, kinds=[EventKind.MACHINE])
        spans = [span for event in events if (span := span_of(event.data)) is not None]
        assert sum(span.trials for span in spans) == sum(span.busy_trials for span in spans) == report.trials > 0
        whole = whole_span([(event.created_at, span) for event, span in zip(events, spans, strict=True)])  # type: ignore[misc]
        assert machine_words(whole).startswith("The machine was too busy for 100.0% of the time")
        without = job(open_model(small_model().SerializeToString()), store, FakePool(by_key), seed=1)
        assert store.jobs.events(without.job_id, kinds=[EventKind.MACHINE]) == []


# What is told


def extents(most: float) -> st.SearchStrategy[GaugeRange]:
    values = st.lists(st.floats(0.0, most), min_size=3, max_size=3)
    return values.map(lambda three: GaugeRange(*sorted(three)))


SPAN = st.builds(
    lambda seconds, part, trials, gauges: MachineSpan(
        seconds, seconds * part, trials, trials // 2, trials // 3, gauges
    ),
    st.floats(0.01, 1e4),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(0, 100),
    st.fixed_dictionaries({}, optional={gauge: extents(LARGEST.get(gauge, 1.0)) for gauge in Gauge}),
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(max_size=8), parts, max_size=4),
    max_leaves=8,
)


@given(span=SPAN)
def test_what_is_told_is_understood(span: MachineSpan) -> None:
    data = span.to_json()
    read = span_of(data)
    assert read is not None and read.gauges.keys() == span.gauges.keys()
    assert read.to_json() == data


NAMES = ["elapsed_s", "noisy_s", "trials", "busy_trials", "marked_trials", *(gauge.value for gauge in Gauge)]


@given(
    data=st.fixed_dictionaries(
        {}, optional={name: JSON | st.lists(st.floats(), min_size=3, max_size=3) for name in NAMES}
    )
)
def test_nothing_that_is_told_is_a_fault(data: dict[str, Any]) -> None:
    span = span_of(data)
    if span is None:
        return
    assert 0 <= span.noisy_s <= span.elapsed_s <= LONGEST_SPAN_S
    assert 0 <= span.busy_trials <= span.trials and 0 <= span.marked_trials <= span.trials
    for gauge, (low, mean, high) in span.gauges.items():
        assert 0 <= low <= mean <= high <= LARGEST.get(gauge, 1.0)
    assert machine_words(span)


@pytest.mark.parametrize(
    "told",
    [
        [0.5],
        [0.1, 0.2, 5.0],
        [0.3, 0.2, 0.1],
        ["0.1", 0.1, 0.1],
        "abc",
        [0.1, 0.1, float("inf")],
        [True] * 3,
        0.1,
        None,
    ],
)
def test_a_gauge_that_makes_no_sense_is_left_out(told: object) -> None:
    span = span_of({"elapsed_s": 10.0, "steal": told, "others": [0.0, 0.1, 0.2]})
    assert span == MachineSpan(10.0, gauges={Gauge.OTHERS: GaugeRange(0.0, 0.1, 0.2)})


@given(spans=st.lists(SPAN, min_size=1, max_size=30), repeat=st.integers(1, 60))
def test_many_spans_become_few(spans: list[MachineSpan], repeat: int) -> None:
    record = MachineRecord()
    every = spans * repeat
    for number, span in enumerate(every):
        record.add(BEGIN + timedelta(seconds=number), span)
        assert len(record.ends) <= MOST_SPANS
    whole = whole_span(record.ends)
    assert whole is not None
    assert whole.elapsed_s == pytest.approx(sum(span.elapsed_s for span in every))
    assert whole.trials == sum(span.trials for span in every)
    for gauge, seen in whole.gauges.items():
        told = [span.gauges[gauge] for span in every if gauge in span.gauges]
        assert (seen.low, seen.high) == (min(one.low for one in told), max(one.high for one in told))
    assert record.ends[-1].told_at == BEGIN + timedelta(seconds=len(every) - 1)
    assert [end.told_at for end in record.ends] == sorted(end.told_at for end in record.ends)


@pytest.mark.parametrize(
    ("whole", "words"),
    [
        (None, "Nothing is known of the machine: "),
        (MachineSpan(1e4, 10.0), "The machine was quiet nearly all the time that it was watched."),
        (MachineSpan(100.0), "The machine was quiet all the time that it was watched."),
        (
            MachineSpan(100.0, 3.0, 50, 3),
            "The machine was quiet in 97.0% of the time; 3 trials of 50 were taken while it was too busy.",
        ),
        (
            MachineSpan(100.0, 3.0, 50, 1),
            "The machine was quiet in 97.0% of the time; 1 trial of 50 was taken while it was too busy.",
        ),
        (
            MachineSpan(100.0, 80.0),
            "The machine was too busy for 80.0% of the time: run the job again when it is quiet.",
        ),
    ],
)
def test_what_is_said(whole: MachineSpan | None, words: str) -> None:
    assert machine_words(whole).startswith(words)
