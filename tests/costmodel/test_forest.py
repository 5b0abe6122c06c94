"""Forests: members that differ in what they have seen, layers that correct those below, and models as bytes."""

import hashlib
import json
import lzma
from dataclasses import replace

import numpy as np
import pytest

from tunewright.codegen.target import CUDA
from tunewright.costmodel import layered_model as learned_module
from tunewright.costmodel.features import NAMES
from tunewright.costmodel.forest import SQUARES, Forest, Growth
from tunewright.costmodel.layered_model import LayeredModel, OtherFeatures, UnreadableModel

GROWTH = Growth(rounds=20, max_depth=3, eta=0.3, colsample_bytree=1.0)


@pytest.fixture
def data():
    """Points of ten groups, and labels that two features decide."""
    values = np.random.default_rng(0).random((400, 6), dtype=np.float32)
    return values, (values[:, 0] + 0.5 * (values[:, 3] > 0.5)).astype(np.float32), np.arange(400) // 40


def fitted(data, members=3, seed=1, before=None):
    values, labels, groups = data
    return Forest.fit(values, labels, groups, GROWTH, members=members, seed=seed, before=before, objective=SQUARES)


def test_it_learns_and_equal_arguments_give_equal_forests(data):
    values, labels, _ = data
    predictions = fitted(data).predict(values)
    assert predictions.shape == (3, 400)
    assert np.abs(predictions.mean(axis=0) - labels).mean() < 0.05
    np.testing.assert_array_equal(predictions, fitted(data).predict(values))
    assert (fitted(data, seed=2).predict(values) != predictions).any()
    assert fitted(data).predict(values[:0]).shape == (3, 0)


def test_members_differ_most_where_nothing_was_seen(data):
    values, labels, groups = data
    inside = values[:, 0] < 0.7
    spread = (
        Forest.fit(values[inside], labels[inside], groups[inside], GROWTH, members=3, seed=0).predict(values).std(0)
    )
    assert spread[~inside].mean() > spread[inside].mean()


def test_a_layer_corrects_what_is_below_it(data):
    values, labels, groups = data
    below = fitted((values, np.full(400, 0.5, np.float32), groups))
    above = fitted(data, before=below.predict(values))
    both = LayeredModel((below,), None).with_layer(above)
    assert np.abs(both.members(values).mean(axis=0) - labels).mean() < 0.05
    assert np.abs(above.predict(values).mean(axis=0) - labels).mean() > 0.3


def test_by_default_it_learns_the_order_within_groups(data):
    values, labels, groups = data
    shifted = labels + groups  # what is between groups is nothing to it
    predictions = Forest.fit(values, shifted, groups, GROWTH, members=3, seed=0).predict(values).mean(axis=0)
    assert np.corrcoef(predictions, labels)[0, 1] > 0.8
    assert abs(np.corrcoef(predictions, groups)[0, 1]) < 0.2


def test_contributions_add_up_to_what_is_predicted(data):
    values = data[0]
    forest = fitted(data)
    parts = forest.contributions(values[:5])
    assert parts.shape == (5, 7)
    np.testing.assert_allclose(parts.sum(axis=1), forest.predict(values[:5]).mean(axis=0), atol=1e-4)
    gains = forest.gains(6)
    assert gains.sum() == pytest.approx(1.0)
    assert set(np.argsort(-gains)[:2].tolist()) == {0, 3}


def wide(count=60):
    values = np.random.default_rng(0).random((count, len(NAMES)), dtype=np.float32)
    return values, values[:, 0], np.arange(count) // (count // 5)


@pytest.fixture
def model():
    data = wide()
    return LayeredModel((fitted(data), fitted(data, members=1)), fitted(data, members=1), scale=0.3, spread_scale=1.5)


def test_a_model_as_bytes_is_the_same_model(model):
    content = model.write()
    again = LayeredModel.read(content, hashlib.sha256(content).hexdigest())
    values = wide()[0]
    assert again.reach is not None
    np.testing.assert_array_equal(again.members(values), model.members(values))
    np.testing.assert_array_equal(again.reach.predict(values), model.reach.predict(values))
    assert (again.scale, again.spread_scale) == (0.3, 1.5)


def test_kind_and_sketches_are_kept(model, space_of, conv):
    space = space_of(conv())
    content = replace(model, kind=CUDA, sketches=frozenset({"made_up 1"})).write()
    again = LayeredModel.read(content, hashlib.sha256(content).hexdigest(), CUDA)
    assert (again.kind, again.sketches) == (CUDA, frozenset({"made_up 1"}))
    assert again.knows(space) and not again.knows(replace(space, version=2)) and model.knows(replace(space, version=2))
    with pytest.raises(OtherFeatures):
        LayeredModel.read(content, hashlib.sha256(content).hexdigest())


def test_a_model_above_another_knows_the_sketches_of_both(model):
    above, below = (replace(model, sketches=frozenset({name})) for name in ("one 1", "two 1"))
    assert above.on(below).sketches == frozenset({"one 1", "two 1"})
    assert above.on(model).sketches is None is model.on(below).sketches


def test_a_model_in_its_first_form_is_the_same_model(model, monkeypatch):
    """As UBJSON of XGBoost: so older versions have written snapshots."""

    def write(forest: Forest) -> bytes:
        models = [bytes(booster.save_raw("ubj")) for booster in forest._boosters]
        return json.dumps([len(part) for part in models]).encode() + b"\n" + b"".join(models)

    right = model.write()
    with monkeypatch.context() as old:
        old.setattr(learned_module, "FORM", learned_module.UBJSON_FORM)
        old.setattr(Forest, "write", write)
        content = model.write()
    assert LayeredModel.read(content, hashlib.sha256(content).hexdigest()).write() == right
    content = lzma.compress(lzma.decompress(content)[:-9] + b"x" * 9)
    with pytest.raises(UnreadableModel, match="can't be read") as caught:
        LayeredModel.read(content, hashlib.sha256(content).hexdigest())
    assert len(str(caught.value).splitlines()) == 1


def test_a_scale_is_given_by_its_name(data):
    with pytest.raises(TypeError):
        LayeredModel((fitted(data),), None, 2.0)  # type: ignore[call-arg]
    model = LayeredModel((fitted(data),), None, spread_scale=2.0)
    assert (model.scale, model.spread_scale) == (0.5, 2.0)


def test_only_the_bytes_that_are_known_are_read(model):
    content = model.write()
    with pytest.raises(ValueError, match="not the one with digest"):
        LayeredModel.read(content, "0" * 64)


@pytest.mark.parametrize("content", [b"", b"no model", lzma.compress(b"x" * 100)[:-20]])
def test_other_bytes_are_no_model(content):
    with pytest.raises(UnreadableModel, match=r"can't be read"):
        LayeredModel.read(content, hashlib.sha256(content).hexdigest())


def test_a_model_too_large_is_refused(model, monkeypatch):
    content = model.write()
    monkeypatch.setattr(learned_module, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="more than"):
        LayeredModel.read(content, hashlib.sha256(content).hexdigest())


def test_a_model_of_other_features_says_so(model, monkeypatch):
    content = model.write()
    monkeypatch.setattr(learned_module, "version_of", lambda kind: "another")
    with pytest.raises(OtherFeatures, match="version"):
        LayeredModel.read(content, hashlib.sha256(content).hexdigest())


def test_what_holds_no_trees_is_said_in_a_line(data):
    head, lengths, models = lzma.decompress(LayeredModel((fitted(data),), None).write()).split(b"\n", 2)
    content = lzma.compress(b"\n".join((head, lengths, b"x" * len(models))))
    with pytest.raises(UnreadableModel, match="can't be read") as caught:
        LayeredModel.read(content, hashlib.sha256(content).hexdigest())
    assert len(str(caught.value).splitlines()) == 1


def test_lengths_that_do_not_match_are_refused(data):
    content = fitted(data).write()
    with pytest.raises(ValueError, match="bytes of models"):
        Forest.read(content[:-1])
    with pytest.raises(ValueError, match="lengths"):
        Forest.read(b'["x"]\n')
