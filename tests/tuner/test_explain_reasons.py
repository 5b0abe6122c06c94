"""Reasons: what tells schedules apart by a model, and that each feature has words which fit how it is made."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.target import CUDA
from tunewright.costmodel import base as shipped
from tunewright.costmodel.features import NAMES, features, names_of
from tunewright.costmodel.xgb import XGBModel
from tunewright.db.store import Store
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import SKETCHES, default_schedule, spaces
from tunewright.tuner.explain.meanings import MEANINGS
from tunewright.tuner.explain.reasons import MOST_REASONS, SpeedReason, differences, reasons
from tunewright.tuner.lookup import experience
from tunewright.tuner.lookup.experience import learn
from tunewright.tuner.lookup.predictor import locate

from .test_lookup import FAR, NEAR, TARGET, TASK
from .test_lookup_predictor import add_trials
from .trial_lines import convolution, line, points

LONGEST = 64
"""Characters of words beside a bar."""


@pytest.fixture
def store(store: Store) -> Store:
    store.add_target(TARGET)
    return store


@pytest.fixture
def with_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the package carries, which other tests here do without."""
    monkeypatch.setattr(experience, "base", shipped.base)


def test_every_feature_has_words_of_its_own() -> None:
    assert list(MEANINGS) == list(names_of(CUDA))
    words = [meaning.words for meaning in MEANINGS.values()]
    assert len(set(words)) == len(words)


def test_words_are_short_and_plain() -> None:
    for meaning in MEANINGS.values():
        words = meaning.words
        assert len(words) <= LONGEST
        assert words.isascii() and words == words.strip() and not words.endswith(".")
        assert words[0].islower()
        assert "{" not in words and "_" not in words


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        ("task_log_bytes", "task"),
        ("target_log_l2", "L2"),
        ("level0_", "innermost tile|product"),
        ("level3_", "outermost tile"),
        ("l1_", "L1 cache"),
        ("l2_", "L2 cache"),
        ("l3_", "last cache"),
        ("estimate_", "estimate"),
        ("block_log_", "block|thread"),
        ("gpu_log_l2", "L2 cache"),
    ],
)
def test_words_say_what_names_do(begin: str, words: str) -> None:
    found = [name for name in MEANINGS if name.startswith(begin)]
    assert found and all(re.search(words, MEANINGS[name].words) for name in found)


@pytest.mark.parametrize("task", [TASK, FAR], ids=str)
def test_values_are_shown_as_what_they_are(task) -> None:
    """Beside the numbers that the features are made of."""
    [space, *_] = spaces(task, TARGET)
    matrix = features(task, TARGET, space, space.row(space.default)[None])

    def shown(name: str) -> str:
        return MEANINGS[name].format(float(matrix.column(name)[0]))

    values = dict(space.default.values)
    assert shown("knob_vectors") == str(values["vectors"])
    assert shown("knob_held") == "none"  # the sketch has no such knob
    assert shown("sketch_code") == space.sketch
    assert shown("target_lanes") == "16"
    assert shown("target_log_l1") == "49.2 kB"
    assert shown("target_log_l2") == "1.05 MB"
    assert shown("task_inputs") == "2"
    assert shown("stage_sum") == "yes"
    assert shown("stage_log_reduction") == "64"
    assert shown("task_log_flops").endswith("FLOP")
    assert shown("vector_used") == "100%"
    assert re.fullmatch(r"[\d.]+ [nµm]?s", shown("estimate_log_s"))
    assert re.fullmatch(r"[\d.]+x", shown("estimate_log_over_floor"))
    assert shown("l3_log_traffic") == "0 B"  # all of it fits


@given(st.floats(-60.0, 60.0))
def test_any_value_can_be_shown(value: float) -> None:
    for meaning in MEANINGS.values():
        said = meaning.format(value)
        assert said and said.isprintable() and len(said) < 30


def test_factors_have_the_digits_that_count() -> None:
    shown = MEANINGS["estimate_log_over_floor"].format
    assert [shown(float(np.log2(factor))) for factor in (0.00123, 0.25, 1.5, 99.0, 12_345.0)] == [
        "0.0012x", "0.25x", "1.50x", "99.00x", "12,345x"]  # fmt: skip


def test_every_sketch_is_shown_by_its_name() -> None:
    assert {MEANINGS["sketch_code"].format(float(code)) for code in range(256)} == {
        "unknown", *(one.name for one in SKETCHES)}  # fmt: skip


def test_nothing_was_learned(store: Store) -> None:
    [other, *_] = others(1)
    assert reasons(store, TASK, TARGET, other, default_schedule(TASK, TARGET)) == []
    assert reasons(None, TASK, TARGET, other, default_schedule(TASK, TARGET)) == []


def others(count: int) -> list[Schedule]:
    default = default_schedule(TASK, TARGET)
    return [one for one in points(TASK, TARGET, count + 1) if one != default]


def every_reason(schedule: Schedule, default: Schedule) -> list[SpeedReason]:
    return reasons(None, TASK, TARGET, schedule, default, count=len(NAMES))


@pytest.mark.slow
@pytest.mark.usefixtures("with_base")
def test_reasons_are_the_differences_of_contributions() -> None:
    default = default_schedule(TASK, TARGET)
    base = shipped.base("cpu")
    assert base is not None
    model = XGBModel(base.learned)
    for schedule in others(6):
        here, there = locate(TASK, TARGET, schedule), locate(TASK, TARGET, default)
        assert here is not None and there is not None
        gained = float(model.score(TASK, TARGET, *here)[0] - model.score(TASK, TARGET, *there)[0])
        found = every_reason(schedule, default)
        told = {one.feature: one.log2_speed for one in found}
        alike = [
            float(here_part - there_part)
            for name, here_part, there_part in zip(
                NAMES, *(model.contributions(TASK, TARGET, *place)[1][0] for place in (here, there)), strict=True
            )
            if name not in told
        ]
        assert sum(told.values()) + sum(alike) == pytest.approx(gained, abs=1e-3)
        assert all(one.value != one.default_value and one.words == MEANINGS[one.feature].words for one in found)
        assert [abs(one.log2_speed) for one in found] == sorted((abs(v) for v in told.values()), reverse=True)
        assert reasons(None, TASK, TARGET, schedule, default) == found[:MOST_REASONS]
        assert differences(model, TASK, TARGET, schedule, default) == found[:MOST_REASONS]
        assert all(one.value_text and one.default_text for one in found)


def test_a_model_that_has_learned_nothing_tells_nothing_apart() -> None:
    assert differences(XGBModel(), TASK, TARGET, others(1)[0], default_schedule(TASK, TARGET)) == []


@pytest.mark.usefixtures("with_base")
def test_reasons_the_other_way_round_are_the_opposite() -> None:
    default = default_schedule(TASK, TARGET)
    [schedule, *_] = others(3)
    forth = {one.feature: one for one in every_reason(schedule, default)}
    back = {one.feature: one for one in every_reason(default, schedule)}
    assert forth.keys() == back.keys()
    assert all(back[name].log2_speed == pytest.approx(-one.log2_speed) for name, one in forth.items())
    assert all((back[n].value, back[n].default_value) == (o.default_value, o.value) for n, o in forth.items())


@pytest.mark.usefixtures("with_base")
def test_the_default_is_like_itself_and_what_is_unknown_has_no_reasons() -> None:
    default = default_schedule(TASK, TARGET)
    assert every_reason(default, default) == []
    assert every_reason(Schedule("forgotten", 1, ()), default) == []
    assert every_reason(default, Schedule("forgotten", 1, ())) == []


@pytest.mark.usefixtures("with_base")
def test_schedules_of_different_sketches_are_told_apart() -> None:
    task = convolution()
    first, second, *_ = [space.default for space in spaces(task, TARGET)]
    assert first.sketch != second.sketch
    told = {one.feature: one for one in reasons(None, task, TARGET, second, first, count=len(NAMES))}
    assert len(told) > MOST_REASONS
    if "sketch_code" in told:
        assert (told["sketch_code"].value_text, told["sketch_code"].default_text) == (second.sketch, first.sketch)


@pytest.mark.slow
def test_a_snapshot_that_is_proven_and_trials_of_the_task_teach_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In these trials more of anything is slower."""
    add_trials(store, 60)
    monkeypatch.setattr(experience, "is_proven", lambda snapshot: True)
    default = default_schedule(NEAR, TARGET)
    other = next(one for one in points(NEAR, TARGET, 5) if one != default)
    assert reasons(store, NEAR, TARGET, other, default) == []
    known = store.trials.sample(NEAR.key, TARGET.key, 100)
    own = reasons(store, NEAR, TARGET, other, default, [(one.schedule, one) for one in known])
    assert own
    assert learn(store, "cpu") is not None
    assert reasons(store, NEAR, TARGET, other, default)


@pytest.mark.usefixtures("with_base")
def test_trials_that_all_failed_teach_nothing() -> None:
    default = default_schedule(TASK, TARGET)
    [schedule, *_] = others(3)
    failed = [line(one, None) for one in others(5)]
    own = [(one.schedule, one) for one in failed]
    assert reasons(None, TASK, TARGET, schedule, default, own) == reasons(None, TASK, TARGET, schedule, default)
    assert np.isfinite([one.log2_speed for one in every_reason(schedule, default)]).all()
