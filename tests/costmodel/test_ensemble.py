"""Models of XGBoost as arrays: the same predictions without it, and the same model given back to it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xgboost

from tunewright.costmodel import ensemble as ensemble_module
from tunewright.costmodel.ensemble import FIELDS, Ensemble


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return np.random.default_rng(0).random((301, 7), dtype=np.float32)


def booster(values: np.ndarray, depth: int, rounds: int = 12, **parameters: Any) -> xgboost.Booster:
    label = values[:, 0] * values[:, 3] + (values[:, 5] > 0.9)
    data = xgboost.DMatrix(values, label=label)
    return xgboost.train({"max_depth": depth, "nthread": 1, **parameters}, data, rounds)


def ensemble_of(model: xgboost.Booster) -> Ensemble:
    return Ensemble.of(bytes(model.save_raw("json")))


@pytest.mark.parametrize("depth", [1, 2, 6, 9])
@pytest.mark.parametrize("objective", ["reg:squarederror", "rank:pairwise"])
def test_predictions_are_those_of_xgboost(values, depth, objective):
    model = booster(values, depth, objective=objective)
    trees = ensemble_of(model).trees()
    assert trees.depth <= depth
    np.testing.assert_array_equal(trees.sums(values), model.inplace_predict(values))


def test_trees_that_learn_nothing_are_leaves(values):
    model = booster(values, 3, gamma=1e9)
    trees = ensemble_of(model).trees()
    assert trees.depth == 0
    np.testing.assert_array_equal(trees.sums(values), model.inplace_predict(values))
    trees = ensemble_of(booster(values, 3, rounds=0, base_score=0.75)).trees()
    assert trees.sums(values[:2]).tolist() == [0.75, 0.75]


@pytest.mark.parametrize("rounds", [0, 1, 12])
def test_xgboost_gets_its_model_back(values, rounds):
    model = booster(values, 6, rounds)
    ensemble = Ensemble.read(ensemble_of(model).write())
    again = xgboost.Booster(model_file=bytearray(ensemble.to_json()))
    for form in ("ubj", "json"):
        assert again.save_raw(form) == model.save_raw(form)
    assert ensemble.write() == ensemble_of(model).write()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]\n", b"3\n", b'{"sizes": [0], "model": {}}\n', b'{"sizes": "x"}\n']
)
def test_other_bytes_are_no_ensemble(content):
    with pytest.raises(ValueError):
        Ensemble.read(content)


def test_an_ensemble_that_is_cut_short_is_refused(values):
    content = ensemble_of(booster(values, 2, rounds=1)).write()
    for end in range(0, len(content), 7):
        with pytest.raises(ValueError):
            Ensemble.read(content[:end])
    with pytest.raises(ValueError, match="bytes of"):
        Ensemble.read(content + b"x")


SPLIT: dict[str, list[Any]] = {name: [0, 0, 0] for name in FIELDS} | {
    "left_children": [1, -1, -1], "right_children": [2, -1, -1], "split_conditions": [0.5, 1.0, 2.0],
}  # fmt: skip


def ensemble(tree: dict[str, list[Any]], count: int = 1, **learner: Any) -> Ensemble:
    """An ensemble of this tree, so many times."""
    whole = {
        "gradient_booster": {"name": "gbtree", "model": {"trees": [dict(tree) for _ in range(count)]}},
        "learner_model_param": {"base_score": "[0.5]"},
        "objective": {"name": "rank:pairwise"},
    }
    result = Ensemble.of(json.dumps({"learner": whole}).encode())
    return replace(result, model={"learner": {**result.model["learner"], **learner}})


def test_trees_are_read_as_they_are():
    assert ensemble(SPLIT).trees().sums(np.array([[0.2], [0.7]], np.float32)).tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left_children": [7, -1, -1]}, "a node whose child is not there"),
        ({"right_children": [3, -1, -1]}, "a node whose child is not there"),
        ({"right_children": [-1, -1, -1]}, "a node whose child is not there"),
        ({"left_children": [0, -1, -1]}, "deeper than"),
        ({"split_indices": [-1, 0, 0]}, "no feature has the number -1"),
        ({"split_type": [1, 0, 0]}, "trees of categories"),
    ],
)
def test_no_tree_leads_out_of_its_memory(change, message):
    with pytest.raises(ValueError, match=message):
        ensemble({**SPLIT, **change}).trees()


def test_many_trees_are_not_made_as_deep_as_one(monkeypatch):
    monkeypatch.setattr(ensemble_module, "MOST_LEAVES", 10)
    assert len(ensemble(SPLIT, count=5).trees().leaves) == 5
    monkeypatch.setattr(ensemble_module, "MOST_LEAVES", 9)
    with pytest.raises(ValueError, match="5 trees deeper than 0 levels"):
        ensemble(SPLIT, count=5).trees()


@pytest.mark.parametrize(
    "learner", [{"objective": {"name": "binary:logistic"}}, {"gradient_booster": {"name": "dart", "model": {}}}]
)
def test_models_whose_predictions_are_no_sums_are_refused(learner):
    with pytest.raises(ValueError, match=r"booster '(gbtree|dart)' of objective"):
        ensemble(SPLIT, **learner).trees()


@pytest.mark.parametrize("model", [{}, {"learner": None}, {"learner": []}, {"learner": {"objective": 3}}, [], None])
def test_other_values_are_no_model(model):
    with pytest.raises(ValueError, match="no trees of XGBoost"):
        replace(ensemble(SPLIT), model=model).trees()
