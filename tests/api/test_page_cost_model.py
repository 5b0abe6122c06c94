"""The page of the cost model: versions, training set, held-out figures, calibration, weights, and what is gone by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from markupsafe import escape

from tunewright.api.dashboard.cost_model import LISTED, CostModelTab
from tunewright.costmodel.base import base
from tunewright.costmodel.features import NAMES, version_of
from tunewright.costmodel.forest import Forest, Growth
from tunewright.costmodel.layered_model import LayeredModel
from tunewright.db.snapshot import MAX_CONTENTS, NewSnapshot
from tunewright.tuner.explain import cost_model_status
from tunewright.tuner.explain.meanings import MEANINGS
from tunewright.tuner.lookup import experience

from .conftest import make_task, points, store_best
from .page import whole

GOOD = {
    "tasks": 7,
    "trials": 140,
    "pairwise": 0.91,
    "pairwise_all": 0.85,
    "peak_1": 0.96,
    "peak_5": 0.99,
    "time_error": 0.2,
    "covered": 0.9,
}
WORSE = GOOD | {"pairwise": 0.8}


def content(number: int) -> bytes:
    """A model that goes by one feature alone."""
    values = np.zeros((40, len(NAMES)), np.float32)
    values[:, number] = np.arange(40)
    growth = Growth(rounds=3, max_depth=2, eta=0.3, colsample_bytree=1.0)
    groups = np.repeat(np.arange(4), 10)
    forest = Forest.fit(values, np.arange(40, dtype=np.float32), groups, growth, members=2, seed=0)
    return LayeredModel((forest,), None).write()


@pytest.fixture(autouse=True)
def _no_base(monkeypatch):
    """As for all tests of the service: see `_no_base_model`."""
    monkeypatch.setattr(cost_model_status, "base", lambda kind: None)
    cost_model_status._load.cache_clear()


@pytest.fixture
def keep(one):
    """Keep a snapshot; its id."""

    def kept(number=0, held_out=GOOD, below=WORSE, **changes):
        metrics = changes.pop("metrics", {"held_out": held_out, "below": below})
        made = NewSnapshot("cpu", version_of("cpu"), content(number), 100 + number, number, metrics)
        return one.store.snapshots.keep(replace(made, **changes)).id

    return kept


@pytest.fixture
def look(client):
    """A function that gives what the page says, and the text of all of its tabs."""

    def found(**query):
        answer = client.get("/v1/pages/cost-model", params=query)
        assert answer.status_code == 200, answer.text
        tabs = [whole(client.get("/cost-model", params=query | {"tab": tab.value})) for tab in CostModelTab]
        return answer.json(), "\n".join(tab.source for tab in tabs)

    return found


def test_nothing_was_learned(look):
    view, text = look()
    assert (view["base"], view["snapshots"], view["newest"]) == (None, [], None)
    assert (view["picks"], view["why"]) == ("none", "alone")
    assert (view["new_trials"], view["wanted_trials"]) == (0, 100)
    assert "no base model" in text and "tunewright tune" in text


def test_the_base_model_with_its_card(look, monkeypatch):
    monkeypatch.setattr(cost_model_status, "base", base)
    monkeypatch.setattr(experience, "base", base)
    view, text = look()
    shipped = base("cpu")
    assert shipped is not None
    card = shipped.card
    shown = view["base"]
    assert shown["sha256"] == card["sha256"] and view["picks"] == "base"
    assert shown["quality"]["pairwise"] == card["quality"]["pairwise"]
    ops = {line["op"]: (line["trials"], line["held_out"]) for line in shown["learned_from"]["ops"]}
    trials_by_op, held_out = (card[name]["trials_by_op"] for name in ("learned_from", "held_out"))
    assert ops["MatMul"] == (trials_by_op["MatMul"], held_out["MatMul"])
    listed = sum(trials for trials, _ in ops.values())
    assert listed + shown["learned_from"]["other_trials"] == card["learned_from"]["trials"]
    assert {rival["name"] for rival in shown["rivals"]} == set(card["objectives"])
    weights = view["base_weights"]
    assert [one["share"] for one in weights] == sorted((one["share"] for one in weights), reverse=True)
    assert {one["feature"] for one in weights[:5]} == set(list(card["features_that_count"])[:5])
    assert weights[0]["words"] == MEANINGS[weights[0]["feature"]].words
    assert str(escape(weights[0]["words"])) in text and "the analytic estimate" in text


def test_what_an_older_model_told_the_base_model(look, monkeypatch):
    shipped = base("cpu")
    assert shipped is not None
    told = replace(shipped, card=shipped.card | {"told": {"targets": ["cpu:older:2x512"]}})
    for module in (cost_model_status, experience):
        monkeypatch.setattr(module, "base", lambda kind: told)
    view, text = look()
    assert view["base"]["told"] == ["cpu:older:2x512"] and "Of cpu:older:2x512 it also learned" in text


@pytest.mark.parametrize(
    ("held_out", "below", "why", "worse_in"),
    [
        (GOOD, WORSE, "proven", []),
        (WORSE, GOOD, "worse", ["pairwise"]),
        (WORSE | {"peak_1": 0.5}, GOOD, "worse", ["pairwise", "peak_1"]),
        (None, None, "unjudged", []),
        (GOOD, None, "unjudged", []),
        (GOOD | {"peak_1": None}, WORSE, "unjudged", []),
    ],
)
def test_which_model_lookups_pick_by_and_why(look, keep, held_out, below, why, worse_in):
    newest = keep(3, held_out, below)
    view, text = look()
    assert (view["newest"], view["why"], view["worse_in"]) == (newest, why, worse_in)
    assert view["picks"] == ("snapshot" if why == "proven" else "none")
    assert f"snapshot {newest}" in text
    assert view["newest_weights"] == [{"feature": NAMES[3], "words": MEANINGS[NAMES[3]].words, "share": 1.0}]


def test_times_that_are_far_off_are_not_praised(look, keep):
    """Lookups go by the order, which is good; but the times that it predicts are no help."""
    keep(3, GOOD | {"time_error": 4.87}, WORSE | {"time_error": 0.31})
    view, text = look()
    assert view["picks"] == "snapshot"
    standing_part = text.partition('id="standing"')[2].partition("<details>")[0]
    assert (
        'class="good"' not in standing_part and "off by 487.0% in the median, those of the base model by 31.0%" in text
    )


def test_the_snapshots_and_what_became_of_each(look, keep):
    kept = [keep(number) for number in range(MAX_CONTENTS + 1)]
    later = keep(9, features_version="other"), keep(10, parent_sha256="ab" * 32)
    view, text = look()
    uses = {line["id"]: line["use"] for line in view["snapshots"]}
    assert uses == {
        later[1]: "other_base",
        later[0]: "other_features",
        kept[4]: "newest",
        kept[3]: "older",
        **dict.fromkeys(kept[:3], "dropped"),
    }
    assert [line["id"] for line in view["snapshots"]] == sorted(uses, reverse=True)
    first = view["snapshots"][-1]
    assert (first["trials"], first["held_out"]["pairwise"], first["below"]["pairwise"]) == (100, 0.91, 0.8)
    assert view["newest"] == kept[4] and view["wanted_trials"] == 100
    assert text.count("<figure") >= 6 and "what they stand on" in text


def test_one_that_can_not_be_read(look, keep):
    keep(0, content=b"nonsense")
    view, text = look()
    assert [line["use"] for line in view["snapshots"]] == ["unreadable"]
    assert (view["newest"], view["picks"]) == (None, "none")
    assert "can&#39;t be read" in text or "can't be read" in text


def test_a_base_model_that_can_not_be_read(look, keep, monkeypatch):
    def broken(kind):
        raise ValueError("the model is not <the> one")

    keep(0)
    monkeypatch.setattr(cost_model_status, "base", broken)
    view, text = look()
    assert view["trouble"] == "the model is not <the> one" and view["newest"] is None
    assert "not &lt;the&gt; one" in text


def test_metrics_of_older_versions(look, keep):
    keep(0, metrics={"held_out": {"pairwise": 0.9}})
    [line] = look()[0]["snapshots"]
    assert (line["held_out"]["pairwise"], line["held_out"]["covered"]) == (0.9, None)
    assert line["below"] is None


def test_what_a_snapshot_learned_from(one, look, keep):
    task, other = replace(make_task(64), op="<i>Conv</i>"), replace(make_task(65), op="x" * 5000)
    for place, known in enumerate((task, task, other, other)):
        store_best(one.store, known, schedule=points(known)[place % 2])
    keep(0, newest_trial_id=3)
    view, text = look()
    assert view["newest_learned_from"] == {
        "tasks": 2,
        "trials": 3,
        "ops": [
            {"op": "<i>Conv</i>", "trials": 2, "held_out": None},
            {"op": "x" * 297 + "...", "trials": 1, "held_out": None},
        ],
        "other_trials": 0,
    }
    assert view["new_trials"] == 1
    assert str(escape("<i>Conv</i>")) in text and "<i>Conv" not in text


def test_many_snapshots_are_a_small_page(look, one, monkeypatch):
    monkeypatch.setattr(cost_model_status, "_load", lambda key: cost_model_status._LoadedModels(None, (), (), None))
    for number in range(LISTED + 1):
        one.store.snapshots.keep(
            NewSnapshot("cpu", version_of("cpu"), b"%d" % number, 100, number, {"held_out": GOOD, "below": WORSE})
        )
    view, text = look()
    assert len(view["snapshots"]) == LISTED and view["is_cut"]
    assert len(text) < 300_000


def test_another_kind_of_targets(one, look, kit):
    one.store.add_target(kit.target())
    view, text = look(kind="cuda")
    assert (view["kind"], view["kinds"]) == ("cuda", ["cpu", "cuda"])
    assert "/cost-model?kind=cpu" in text


def test_a_kind_that_is_none_is_refused(client):
    for path in ("/cost-model", "/v1/pages/cost-model"):
        assert client.get(path, params={"kind": "zz"}).status_code == 422
        assert client.get(path, params={"kind": "cuda"}).status_code == 200


def test_older_snapshots_unfold(look, keep):
    for number in range(10):
        keep(number)
    _, text = look()
    assert '<details id="older-snapshots">' in text and "2 more" in text
    first, _, others = text.partition("older-snapshots")
    assert first.count('<th scope="row" rowspan="2">') == 8 and others.count('<th scope="row" rowspan="2">') == 2
