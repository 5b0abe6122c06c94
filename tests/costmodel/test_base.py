"""The base model that is part of the package."""

import hashlib
import json
import lzma

import numpy as np
import pytest

from tunewright.codegen.target import CUDA
from tunewright.costmodel import base as base_module
from tunewright.costmodel.base import base
from tunewright.costmodel.features import NAMES, version_of
from tunewright.costmodel.layered_model import FORM
from tunewright.costmodel.xgb import XGBModel


def test_it_is_there_and_is_what_its_card_says():
    shipped = base("cpu")
    assert shipped is not None, "features have changed: ./dev bench base_model makes a model that knows them"
    assert shipped.card["sha256"] == shipped.sha256
    assert shipped.card["features"] == version_of("cpu")
    assert all(value is not None for value in shipped.card["quality"].values())
    assert shipped.card["quality"]["pairwise"] > 0.85
    assert shipped.card["learned_from"]["tasks"] > 500


def test_that_of_gpus_is_what_its_card_says():
    shipped = base(CUDA)
    assert shipped is not None, "features have changed: ./dev bench gpu_trials fit makes a model that knows them"
    assert shipped.card["sha256"] == shipped.sha256 and shipped.card["features"] == version_of(CUDA)
    assert shipped.learned.kind == CUDA and shipped.learned.sketches
    assert shipped.card["quality"]["pairwise"] > 0.8 > shipped.card["objectives"]["analytic"]["pairwise"]
    picks = shipped.card["first_picks"]["base"]
    assert picks["pick"] > picks["default"] and picks["tasks"] > 30


def test_it_answers_before_anything_was_measured(conv, space_of, target):
    shipped = base("cpu")
    assert shipped is not None
    model, space = XGBModel(shipped.learned), space_of(conv())
    rows = space.sample(20, np.random.default_rng(0))
    assert model.ready
    assert np.isfinite(model.score(conv(), target, space, rows)).all()
    assert (model.deviation(conv(), target, space, rows) > 0).all()


def test_its_predictions_are_those_of_the_model_that_its_card_describes():
    shipped = base("cpu")
    assert shipped is not None
    assert shipped.sha256 == "4d6eb5733183cc3b241451aecaeabcdc14227b8bbe1cba815e9a1e56ee08be33", (
        "renew the digest below"
    )
    values = np.random.default_rng(0).normal(0, 8, (500, len(NAMES))).astype(np.float32)
    values[::7, ::3] = np.nan
    assert shipped.learned.reach is not None
    ranks, reach = shipped.learned.members(values), shipped.learned.reach.predict(values)
    digest = hashlib.sha256(ranks.tobytes() + reach.tobytes()).hexdigest()
    assert digest == "4239bd9b0e79231c8a1f5905404574e8f78e0d233af9766272ec21f11866abb2"


def test_there_is_none_for_a_kind_that_nobody_measured():
    assert base("abacus") is None


def test_one_of_other_features_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tunewright.costmodel.layered_model.version_of", lambda kind: "another")
    assert base_module.base.__wrapped__("cpu") is None


def test_one_that_can_not_be_read_is_left_alone_and_another_file_is_not(tmp_path, monkeypatch, caplog):
    head = {"form": FORM, "features": version_of("cpu"), "layers": 1, "bytes": [9]}
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
