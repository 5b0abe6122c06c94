"""What XGBoost has written, read and predicted without it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import xgboost

from tunewright.costmodel import boosted, ubjson
from tunewright.costmodel.boosted import trees_of
from tunewright.costmodel.ubjson import parsed


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return np.random.default_rng(0).random((301, 7), dtype=np.float32)


def booster(values: np.ndarray, depth: int, rounds: int = 12, **parameters: Any) -> xgboost.Booster:
    label = values[:, 0] * values[:, 3] + (values[:, 5] > 0.9)
    data = xgboost.DMatrix(values, label=label)
    return xgboost.train({"max_depth": depth, "nthread": 1, **parameters}, data, rounds)


@pytest.mark.parametrize("depth", [1, 2, 6, 9])
@pytest.mark.parametrize("objective", ["reg:squarederror", "rank:pairwise"])
def test_predictions_are_those_of_xgboost(values, depth, objective):
    model = booster(values, depth, objective=objective)
    of = trees_of(bytes(model.save_raw("ubj")))
    assert of.depth <= depth
    np.testing.assert_array_equal(of.sums(values), model.inplace_predict(values))


def test_trees_that_learn_nothing_are_leaves(values):
    model = booster(values, 3, gamma=1e9)
    of = trees_of(bytes(model.save_raw("ubj")))
    assert of.depth == 0
    np.testing.assert_array_equal(of.sums(values), model.inplace_predict(values))
    of = trees_of(bytes(booster(values, 3, rounds=0, base_score=0.75).save_raw("ubj")))
    assert of.sums(values[:2]).tolist() == [0.75, 0.75]


def test_ubjson_says_what_json_does(values):
    model = booster(values, 4)
    right = json.loads(bytes(model.save_raw("json")))
    assert plain(parsed(bytes(model.save_raw("ubj")))) == right


def plain(value: Any) -> Any:
    """As JSON has it, with floats as XGBoost shortens them there."""
    match value:
        case dict():
            return {name: plain(one) for name, one in value.items()}
        case list():
            return [plain(one) for one in value]
        case np.ndarray():
            return [json.loads(str(one)) for one in value]
    return value


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"Z", None), (b"T", True), (b"F", False), (b"i\xff", -1), (b"U\xff", 255), (b"I\x01\x00", 256),
        (b"l\x00\x00\x00\x02", 2), (b"L" + bytes(7) + b"\x03", 3), (b"d?\x80\x00\x00", 1.0),
        (b"D?\xf0" + bytes(6), 1.0), (b"SU\x02\xc3\xa9", "é"), (b"{}", {}), (b"[]", []), (b"[i\x01F]", [1, False]),
        (b"[#U\x02TZ", [True, None]), (b"{U\x01aTU\x01b[#U\x00}", {"a": True, "b": []}),
    ],
)  # fmt: skip
def test_values(content, value):
    assert parsed(content) == value


def test_arrays_of_numbers_are_those_of_numpy():
    found = parsed(b"[$l#U\x02\x00\x00\x00\x01\xff\xff\xff\xff")
    assert found.dtype == np.dtype("i4") and found.dtype.isnative and found.tolist() == [1, -1]


def test_what_is_cut_short_or_something_else_is_refused(values):
    content = bytes(booster(values, 2, rounds=1).save_raw("ubj"))
    for end in range(0, len(content), 7):
        with pytest.raises(ValueError, match="no UBJSON"):
            parsed(content[:end])
    for other in (
        b"TT",
        b"x",
        b"[$S#U\x01",
        b"SZ",
        b"Si\xff",
        b"[#i\xff",
        b"SU\x01\xff",
        b"[" * 99,
        b"[$d#L\x7f" + bytes(7),
    ):
        with pytest.raises(ValueError, match="no UBJSON"):
            parsed(other)
    with pytest.raises(ValueError, match=f"more than {ubjson.DEEPEST}"):
        parsed(b"[" * 99)


def changed(tree: Any, monkeypatch: pytest.MonkeyPatch, count: int = 1, **learner: Any) -> None:
    """From now on every model has this tree alone, so many times."""
    model = {
        "gradient_booster": {"name": "gbtree", "model": {"trees": [tree] * count}},
        "learner_model_param": {"base_score": "[0.5]"},
        "objective": {"name": "rank:pairwise"},
    }
    monkeypatch.setattr(boosted, "parsed", lambda content: {"learner": model | learner})


LEAF: dict[str, Any] = {
    "left_children": [1, -1, -1], "right_children": [2, -1, -1], "split_indices": [0, 0, 0],
    "split_conditions": [0.5, 1.0, 2.0], "split_type": [0, 0, 0],
}  # fmt: skip


def test_trees_are_read_as_they_are(monkeypatch):
    changed(LEAF, monkeypatch)
    assert trees_of(b"").sums(np.array([[0.2], [0.7]], np.float32)).tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"left_children": [7, -1, -1]}, "a node whose child is not there"),
        ({"right_children": [3, -1, -1]}, "a node whose child is not there"),
        ({"left_children": [0, -1, -1]}, "deeper than"),
        ({"split_indices": [0]}, "nodes that lack a part"),
        ({name: [] for name in LEAF}, "a tree without nodes"),
        ({"left_children": [[1, -1, -1]]}, "a tree without nodes"),
        ({"left_children": 1}, "a tree without nodes"),
        ({"split_indices": [-1, 0, 0]}, "no feature has the number -1"),
        ({"split_indices": [1 << 32, 0, 0]}, "feature 4294967296"),
        ({"split_type": [1, 0, 0]}, "trees of categories"),
    ],
)
def test_no_tree_leads_out_of_its_memory(change, said, monkeypatch):
    changed({**LEAF, **change}, monkeypatch)
    with pytest.raises(ValueError, match=said):
        trees_of(b"")


def test_many_trees_are_not_made_as_deep_as_one(monkeypatch):
    changed(LEAF, monkeypatch, count=5)
    monkeypatch.setattr(boosted, "MOST_LEAVES", 10)
    assert len(trees_of(b"").leaves) == 5
    monkeypatch.setattr(boosted, "MOST_LEAVES", 9)
    with pytest.raises(ValueError, match="5 trees deeper than 0 levels"):
        trees_of(b"")


@pytest.mark.parametrize(
    "learner", [{"objective": {"name": "binary:logistic"}}, {"gradient_booster": {"name": "dart", "model": {}}}]
)
def test_models_whose_predictions_are_no_sums_are_refused(learner, monkeypatch):
    changed(LEAF, monkeypatch, **learner)
    with pytest.raises(ValueError, match=r"booster '(gbtree|dart)' of objective"):
        trees_of(b"")


@pytest.mark.parametrize(
    "content", [b"{}", b"T", b"[#U\x00", b"{U\x07learnerT}", b"[$U#U\x00", b"{U\x07learner[$U#U\x00}"]
)
def test_other_values_are_no_model(content):
    with pytest.raises(ValueError, match="no trees of XGBoost"):
        trees_of(content)


def test_a_tree_that_is_none_is_no_model(monkeypatch):
    changed(None, monkeypatch)
    with pytest.raises(ValueError, match="no trees of XGBoost"):
        trees_of(b"")
    changed({**LEAF, "split_indices": ["x", 0, 0]}, monkeypatch)
    with pytest.raises(ValueError, match="no trees of XGBoost"):
        trees_of(b"")
