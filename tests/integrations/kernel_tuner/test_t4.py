"""Results in the format T4 become entries of the log."""

import json

import pytest

from tunewright.db.logs.entry import Cost, CostEvidence, LogEnvironment
from tunewright.integrations.kernel_tuner import entries_of

A100 = LogEnvironment("NVIDIA A100", "kernel_tuner", {"cuda": "13.0"})


def result(block=128, runs=(0.25, 0.5, 0.75), invalidity="correct", unit="ms", value=0.5, **changes):
    """As Kernel Tuner writes it."""
    return {
        "timestamp": "2026-11-30 10:00:00.000000+00:00",
        "configuration": {"block_size_x": block, "tile": 2},
        "times": {"compilation": 310.2, "benchmark": 2.1, "framework": 0.9, "runtimes": list(runs)},
        "invalidity": invalidity,
        "correctness": 1,
        "measurements": [{"name": "GFLOP/s", "value": 9.5, "unit": ""}, {"name": "time", "value": value, "unit": unit}],
        "objectives": ["time"],
    } | changes


@pytest.fixture
def entries(tmp_path):
    def read(*results):
        file = tmp_path / "results.json"
        file.write_text(json.dumps({"results": list(results), "schema_version": "1.0.0"}))
        return list(entries_of([file], "vector_add-4096", A100))

    return read


def test_a_configuration_is_a_value_with_what_it_took(entries):
    [entry] = entries(result())
    assert (entry.key, entry.environment) == ("vector_add-4096", A100)
    assert json.loads(entry.value) == {"block_size_x": 128, "tile": 2}
    assert entry.cost == Cost(5e-4, 2.5e-4, 7.5e-4, 3, CostEvidence.TIMED)


def test_the_same_configuration_is_the_same_value(entries):
    swapped = result(configuration={"tile": 2, "block_size_x": 128})
    first, second = entries(result(), swapped)
    assert first.choice == second.choice


@pytest.mark.parametrize("invalidity", ["timeout", "compile", "runtime", "correctness", "constraints"])
def test_what_failed_is_no_entry(entries, invalidity):
    assert entries(result(invalidity=invalidity, value="RuntimeFailedConfig")) == []


@pytest.mark.parametrize(
    ("changes", "cost"),
    [
        ({"unit": "us", "value": 500, "runs": ()}, Cost(5e-4, evidence=CostEvidence.TIMED)),
        ({"value": [0.25, 0.5, 0.75], "runs": (0.5,)}, Cost(5e-4, samples=1, evidence=CostEvidence.TIMED)),
        ({"value": 2.0}, Cost(2e-3, samples=3, evidence=CostEvidence.TIMED)),  # the mean of other runs
        ({"objectives": ["GFLOP/s"]}, Cost()),
        ({"objectives": []}, Cost()),
        ({"measurements": None}, Cost()),
    ],
)
def test_costs_are_times_in_seconds(entries, changes, cost):
    assert [entry.cost for entry in entries(result(**changes))] == [cost]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (result(configuration={}), "configuration"),
        (["?"], "configuration"),
        (result(value=-1.0), "no time"),
        (result(measurements={}), r"^(?!.*no time)"),
        (result(objectives="time"), "arrays"),
    ],
)
def test_anything_else_says_where(entries, wrong, says):
    if wrong == result(measurements={}):
        assert [entry.cost for entry in entries(wrong)] == [Cost()]
        return
    with pytest.raises(ValueError, match=rf"results.json, result 2: .*{says}"):
        entries(result(), wrong)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"results": 3}', "[" * 100_000])
def test_other_files_are_refused(tmp_path, text):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"other.json: this is no"):
        list(entries_of([file], "k", A100))
