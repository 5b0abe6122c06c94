"""The base model that is part of the package."""

import numpy as np
import pytest

from tunewright.costmodel import base as base_module
from tunewright.costmodel.base import base
from tunewright.costmodel.features import VERSION
from tunewright.costmodel.xgb import XGBModel


def test_it_is_there_and_is_what_its_card_says():
    found = base("cpu")
    assert found is not None, "features have changed: ./dev bench base_model makes a model that knows them"
    assert found.card["sha256"] == found.sha256
    assert found.card["features"] == VERSION
    assert all(value is not None for value in found.card["quality"].values())
    assert found.card["quality"]["pairwise"] > 0.85
    assert found.card["learned_from"]["tasks"] > 500


def test_it_answers_before_anything_was_measured(conv, space_of, target):
    found = base("cpu")
    assert found is not None
    model, space = XGBModel(found.learned), space_of(conv())
    rows = space.sample(20, np.random.default_rng(0))
    assert model.ready
    assert np.isfinite(model.score(conv(), target, space, rows)).all()
    assert (model.deviation(conv(), target, space, rows) > 0).all()


def test_there_is_none_for_a_kind_that_nobody_measured():
    assert base("abacus") is None


def test_one_of_other_features_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tunewright.costmodel.learned.VERSION", "another")
    assert base_module.base.__wrapped__("cpu") is None
