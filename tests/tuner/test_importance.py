"""Importance of knobs: what was planted is found, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.tuner.explain.importance import FEWEST_TRIALS, GROUPS, Importance, importance


def planted(count: int, seed: int = 0) -> tuple[dict[str, list[float]], np.random.Generator]:
    """Values of five knobs that say nothing of each other."""
    rng = np.random.default_rng(seed)
    choices = {
        "tile": [1, 2, 4, 8, 16],
        "block": range(2, 200, 3),
        "unroll": [1, 4],
        "rows": [1, 2, 3],
        "round": [8, 9],
    }
    return {name: rng.choice(list(values), count).astype(float).tolist() for name, values in choices.items()}, rng


def found(columns: dict[str, list[float]], times_s: np.ndarray) -> Importance:
    told = importance(columns, times_s.tolist())
    assert told is not None
    return told


@pytest.mark.parametrize("seed", range(8))
def test_the_one_that_matters_is_found_and_no_other(seed: int) -> None:
    columns, rng = planted(600, seed)
    times_s = 1e-3 * (1 + np.array(columns["tile"]) / 4) * rng.lognormal(0, 0.3, 600)
    told = found(columns, times_s)
    first, *others = told.knobs
    assert (first.name, first.best, first.matters) == ("tile", (1.0, 1.0), True)
    assert first.low < first.share < first.high
    assert 3.0 < first.factor < 5.0  # planted: 4
    assert [knob.name for knob in others if knob.matters] == []
    assert all(knob.share < 0.02 for knob in others)


def test_intervals_hold_the_share_of_the_variance() -> None:
    """Of 95% some miss it; the effect has a variance of 1/4, and the noise one of 3/4."""
    told = []
    for seed in range(30):
        columns, rng = planted(300, seed)
        log_times = (np.array(columns["unroll"]) == 4) + rng.normal(0, np.sqrt(0.75), 300)
        told += [knob for knob in found(columns, 1e-3 * 2.0**log_times).knobs if knob.name == "unroll"]
    assert sum(knob.low <= 0.25 <= knob.high for knob in told) >= 25
    assert abs(np.mean([knob.share for knob in told]) - 0.25) < 0.03
    assert all(knob.high - knob.low < 0.25 for knob in told)


@pytest.mark.parametrize("seed", range(8))
def test_noise_is_due_to_no_knob(seed: int) -> None:
    columns, rng = planted(300, seed)
    told = found(columns, rng.lognormal(0, 1, 300))
    assert [knob.name for knob in told.knobs if knob.matters] == []


def test_one_that_went_along_with_it_is_not_taken_for_it() -> None:
    """The search tried most of the good tiles with one value of another knob."""
    columns, rng = planted(900)
    tiles = np.array(columns["tile"])
    columns["along"] = np.where(rng.random(900) < 0.8, tiles > 4, rng.random(900) < 0.5).astype(float).tolist()
    told = found(columns, 1e-3 * tiles * rng.lognormal(0, 0.2, 900))
    shares = {knob.name: knob for knob in told.knobs}
    assert told.knobs[0].name == "tile" and shares["tile"].share > 0.9
    assert not shares["along"].matters


def test_what_only_combinations_explain_is_said_of_none() -> None:
    columns, _ = planted(600)
    differ = (np.array(columns["unroll"]) == 4) ^ (np.array(columns["round"]) == 9)
    told = found(columns, np.where(differ, 2e-3, 1e-3))
    assert told.explained < 0.05
    assert [knob.name for knob in told.knobs if knob.matters] == []


def test_too_few_trials_tell_nothing() -> None:
    columns, _ = planted(FEWEST_TRIALS)
    times_s = (1e-3 * np.array(columns["tile"])).tolist()
    assert importance({name: values[:-1] for name, values in columns.items()}, times_s[:-1]) is None
    assert importance(columns, times_s) is not None
    assert importance({}, []) is None


def test_what_does_not_vary_is_no_knob() -> None:
    columns, rng = planted(100)
    told = found(columns | {"fixed": [7.0] * 100}, rng.lognormal(0, 1, 100))
    assert "fixed" not in [knob.name for knob in told.knobs]
    assert found({"fixed": [7.0] * 100}, rng.lognormal(0, 1, 100)).knobs == ()
    assert found(columns, np.full(100, 1e-3)) == Importance(100, ())


def test_it_is_the_same_each_time() -> None:
    columns, rng = planted(200)
    times_s = rng.lognormal(0, 1, 200)
    assert found(columns, times_s) == found(columns, times_s)


def test_many_values_are_looked_at_in_groups() -> None:
    columns, rng = planted(800)
    blocks = np.array(columns["block"])
    told = found(columns, 1e-3 * blocks * rng.lognormal(0, 0.1, 800))
    first = told.knobs[0]
    assert first.name == "block" and first.best[0] == 2.0 and first.best[1] < 60
    assert first.share > 1 - 2 / GROUPS
