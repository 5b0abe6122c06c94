"""The contract of Overview, checked on every database."""

from __future__ import annotations

import pytest

from tunewright.db.job import EventKind, JobState, NewEvent, SearchBudget
from tunewright.db.overview import CURVE_POINTS

from .conftest import selected


@pytest.fixture
def overview(filled):
    return filled.overview


@pytest.fixture
def begin(filled, samples):
    """Queue a job and lease it; the lease."""
    numbers = iter(range(100))

    def begun(label=""):
        filled.jobs.submit(samples.spec(next(numbers)), label, SearchBudget(10))
        lease = filled.jobs.lease([samples.target().key], "h")
        assert lease is not None
        return lease

    return begun


def tell(filled, lease, *speedups):
    events = [NewEvent(EventKind.PROGRESS, {"trials": n, "speedup": one}) for n, one in enumerate(speedups)]
    filled.jobs.renew(lease, events=events)


def test_nothing(overview):
    assert (overview.figures(), overview.regressions(5), overview.curves([1, 2])) == ([], [], {})


def test_figures_are_of_jobs_that_succeeded_the_newest_first(filled, overview, begin, samples):
    first, failed, last = begin(), begin(), begin()
    filled.jobs.finish(
        first, JobState.SUCCEEDED, result={"default_ms": 4.0, "tuned_ms": 2.5, "noise": "", "regressed": 2}
    )
    filled.jobs.finish(failed, JobState.FAILED, error="no")
    assert [one.job_id for one in overview.figures()] == [first.job_id]
    filled.jobs.finish(last, JobState.SUCCEEDED, result={"tuned_ms": ["of a later version"], "noise": "busy"})
    newest, oldest = overview.figures()
    assert (oldest.job_id, oldest.target_key) == (first.job_id, samples.target().key)
    assert (float(oldest.default_ms), float(oldest.tuned_ms), oldest.noise, oldest.regressed) == (4.0, 2.5, "", "2")
    assert (newest.job_id, newest.default_ms, newest.noise) == (last.job_id, "", "busy")
    filled.jobs.delete(last.job_id)
    assert overview.figures() == [oldest]


def test_figures_are_read_once(filled, overview, begin):
    for _ in range(3):
        filled.jobs.finish(begin(), JobState.SUCCEEDED, result={"default_ms": 1.0})
    overview.figures()
    with selected(filled) as queries:
        overview.figures()
    assert len(queries) == 1


def test_of_many_jobs_the_new_ones_alone_are_read(filled, overview, begin):
    leases = [begin() for _ in range(4)]

    def end(lease):
        filled.jobs.finish(lease, JobState.SUCCEEDED, result={"default_ms": 1.0})

    def ids():
        with selected(filled) as queries:
            found = [one.job_id for one in overview.figures()]
        return found, queries

    end(leases[0])
    end(leases[2])
    one, two, three, four = (lease.job_id for lease in leases)
    assert ids()[0] == [three, one]
    end(leases[3])
    found, queries = ids()
    assert found == [four, three, one]
    assert len(queries) == 3 and "> " in queries[1][0]  # of ids behind the newest
    end(leases[1])  # an older one, later
    assert ids()[0] == [four, three, two, one]
    filled.jobs.delete(four)
    assert ids()[0] == [three, two, one]
    filled.jobs.delete(two)
    end(begin())
    assert ids()[0] == [four + 1, three, one]


def test_what_is_made_of_figures_is_made_once(filled, overview, begin):
    calls = []

    def count(figures):
        calls.append(len(figures))
        return len(figures)

    for expected in (1, 2):
        filled.jobs.finish(begin(), JobState.SUCCEEDED, result={})
        assert [overview.of_figures(count) for _ in range(3)] == [expected] * 3
    filled.jobs.delete(overview.figures()[0].job_id)
    assert (overview.of_figures(count), overview.of_figures(len), calls) == (1, 1, [1, 2, 1])


def test_regressions_take_one_query_whatever_jobs_say(filled, overview, begin):
    for n in range(4):  # as by results of another version, without an event
        filled.jobs.finish(begin(f"net-{n}"), JobState.SUCCEEDED, result={"regressed": 1})
    overview.figures()
    with selected(filled) as queries:
        assert overview.regressions(5) == []
    assert len(queries) == 2


def test_regressions_are_the_newest_of_jobs_that_have_any(filled, overview, begin, samples):
    leases = [begin(f"net-{n}.onnx") for n in range(3)]
    for n, lease in enumerate(leases):
        regressed = [NewEvent(EventKind.REGRESSED, {"task_key": f"{n}{k}"}) for k in range(2)] if n != 1 else []
        filled.jobs.renew(lease, events=[*regressed, NewEvent(EventKind.PROGRESS, {"speedup": 1.0})])
        filled.jobs.finish(lease, JobState.SUCCEEDED, result={"regressed": len(regressed)})
    found = overview.regressions(3)
    assert [(one.label, one.event.data["task_key"]) for one in found] == [
        ("net-2.onnx", "21"),
        ("net-2.onnx", "20"),
        ("net-0.onnx", "01"),
    ]
    assert {one.target_key for one in found} == {samples.target().key}


def test_a_curve_has_what_a_job_told_in_order(filled, overview, begin):
    lease, other, silent = begin(), begin(), begin()
    tell(filled, lease, 1.0, 1.2, 1.5)
    filled.jobs.renew(
        other, events=[NewEvent(EventKind.PROGRESS, {"speedup": each}) for each in (True, "x", -1.0, None)]
    )
    assert overview.curves([lease.job_id, other.job_id, silent.job_id, 999]) == {lease.job_id: (1.0, 1.2, 1.5)}
    tell(filled, lease, 1.6)
    assert overview.curves([lease.job_id]) == {lease.job_id: (1.0, 1.2, 1.5, 1.6)}


def test_a_long_curve_has_few_points_from_few_events(filled, overview, begin):
    lease = begin()
    for start in range(0, 3000, 500):
        tell(filled, lease, *(1.0 + (start + n) / 1000 for n in range(500)))
    with selected(filled) as queries:
        [curve] = overview.curves([lease.job_id]).values()
    assert len(queries) <= 3
    assert CURVE_POINTS / 2 <= len(curve) <= CURVE_POINTS
    assert list(curve) == sorted(curve)
    assert curve[-1] == pytest.approx(1.0 + 2999 / 1000)
    assert curve[0] < 1.2
    with selected(filled) as queries:
        overview.curves([lease.job_id])
    assert len(queries) == 1  # it has told nothing since
