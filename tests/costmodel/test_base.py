"""The base model that is part of the package."""

import hashlib
import json
import lzma

import numpy as np
import pytest

from tunewright.costmodel import base as base_module
from tunewright.costmodel.base import base
from tunewright.costmodel.features import VERSION
from tunewright.costmodel.learned import FORM
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


def test_one_that_can_not_be_read_is_left_alone_and_another_file_is_not(tmp_path, monkeypatch, caplog):
    head = {"form": FORM, "features": VERSION, "layers": 1, "bytes": [9]}
    content = lzma.compress(json.dumps(head).encode() + b"\n[5]\n.....")
    folder = tmp_path / "base_model"
    folder.mkdir()
    (folder / "cpu.xz").write_bytes(content)
    (folder / "cpu.json").write_text(json.dumps({"sha256": hashlib.sha256(content).hexdigest()}))
    monkeypatch.setattr(base_module, "files", lambda package: tmp_path)
    assert base_module.base.__wrapped__("cpu") is None
    assert "can't be read" in caplog.text
    (folder / "cpu.xz").write_bytes(content[:-1])
    with pytest.raises(ValueError, match="not the one with digest"):
        base_module.base.__wrapped__("cpu")
