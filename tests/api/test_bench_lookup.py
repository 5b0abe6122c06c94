"""The benchmark of lookups puts into a database what the program itself would have put there."""

from __future__ import annotations

import asyncio

import pytest

from tunewright.bench import lookup
from tunewright.bench.synthetic_records import fill, make_tasks
from tunewright.db.store import open_store

from .conftest import make_target

TARGET = make_target()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_made_records(kind, request, tmp_path):
    url = f"sqlite:///{tmp_path}/made.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    tasks = make_tasks(3)
    stored = fill(url, tasks, TARGET, 5)
    assert (stored.trials, stored.confirmations, len(stored.tasks)) == (15, 2, 3)
    with open_store(url) as store:
        keys = [task.key for task in tasks]
        walked = store.best_many(keys, TARGET.key)
        for (key, _), best in store.catalog.best(keys, [TARGET.key]).items():
            assert (best.schedule, best.median_s) == (walked[key].schedule, walked[key].measurement.median_s)
            assert best.is_confirmed == (key in store.confirmations([key], TARGET.key))
        assert walked.keys() == set(keys)
        assert {record.measurement.status for record in store.records(keys[0], TARGET.key)} == {"ok"}


@pytest.mark.slow
def test_load(serve, tmp_path):
    tasks = make_tasks(lookup.BATCH + 1)
    fill(f"sqlite:///{tmp_path}/made.db", tasks, TARGET, 2)
    with serve(url=f"sqlite:///{tmp_path}/made.db") as server:
        measure(server, tasks, tmp_path)


def measure(server, tasks, tmp_path):
    keys = [task.key for task in tasks]
    first, times_s = asyncio.run(lookup.send_batches(server.url, server.token, TARGET, keys, 3))
    assert (len(first), len(times_s)) == (1, 3)
    times_s, failed = asyncio.run(lookup.send_singles(server.url, server.token, TARGET, keys, 0.2))
    assert (len(times_s), failed) == (100, 0)
    figures = lookup.measure_client("sqlite", server.url, server.token, tasks[:5], TARGET, tmp_path)
    assert [figure.count for figure in figures] == [1, 5, 5]


def test_bounds():
    assert lookup.figure("x", [0.001] * 100, 2.0).holds
    assert not lookup.figure("x", [0.001] * 90 + [0.003] * 10, 2.0).holds
    assert not lookup.figure("x", [0.001], 2.0, failed=1).holds
