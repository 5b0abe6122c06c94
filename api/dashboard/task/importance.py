"""Which knobs matter: by a task's trials, by what the cost model predicts of the same, and what the fastest share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from tunewright.db.store import Store
from tunewright.db.trial import TrialLine, distinct
from tunewright.tuner.explain.calibration import predictions
from tunewright.tuner.explain.importance import FEWEST_TRIALS, KnobShare, importance
from tunewright.tuner.explain.meanings import knob_words
from tunewright.tuner.noise import noise_of_line

from ...http.schemas.base import Answer
from ..views import Text
from .columns import KNOB, TrialColumns, best_of, time_s
from .schedules import Standing

SKETCH = "sketch"
"""What stands among the knobs for the choice between sketches."""

SHARED, UNLIKE = 0.9, 0.7
"""The fastest share a value that so many of them have at least, and of the others so many at most."""

FEWEST_FASTEST = 10
"""Of fewer it is not said what they share."""

FAR_ABOVE = 0.1
"""The cost model's share of a knob is far above that by trials if it is so far above the interval of that."""


class ShareShown(Answer):
    """What one knob explains of the differences between times, by itself."""

    name: Text
    words: Text = Field(description="What it is; empty where the name says it.")
    share: float = Field(description="Part of the variance of the logarithm of the time: 1 is all of it.")
    low: float = Field(description="The lower end of its 95% interval.")
    high: float
    matters: bool = Field(description="Whether that is more than hardly anything, for certain.")
    best: Text = Field(description="The value with the best times, or a range of some.")
    factor: float = Field(description="How many times as long trials with the worst values take, all else equal.")
    model_share: float | None = Field(description="The same share of the predicted times; null: not known.")

    @property
    def is_mostly_of_model(self) -> bool:
        """Whether it matters by the cost model, and by the trials far less."""
        return self.model_share is not None and self.model_share > self.high + FAR_ABOVE


class SharedShown(Answer):
    """A value of a knob that the fastest trials share."""

    name: Text
    words: Text = Field(description="What the knob is; empty where the name says it.")
    value: Text
    fastest: int = Field(description="Of the fastest, those that have it.")
    others: float = Field(description="Part of the other trials that have it.")


class ImportanceShown(Answer):
    """What knobs explain of the times."""

    trials: int = Field(description="Trials that it is of: those of the sample that worked, without the fastest added.")
    busy: int = Field(description="Trials taken while the machine was too busy to rely on their times.")
    is_calm: bool = Field(description="Whether those are left out; else they are among the trials, being needed.")
    fewest: int = Field(default=FEWEST_TRIALS, description="With fewer nothing can be told.")
    explained: float | None = Field(description="What all knobs explain, each by itself; null: it can't be told.")
    knobs: list[ShareShown] = Field(description="The largest shares first.")
    model: Text = Field(description="The cost model beside; empty: there is none.")
    model_explained: float | None = Field(description="What they explain of its predictions.")
    fastest: int = Field(description="The fastest trials, as they are drawn: 20, but no more than a tenth.")
    shared: list[SharedShown] = Field(description="What those share and the others don't.")
    common: list[SharedShown] = Field(description="What nearly all trials have, those too: little else was tried.")

    @property
    def mattering(self) -> list[ShareShown]:
        """The knobs that matter for certain."""
        return [knob for knob in self.knobs if knob.matters]

    @property
    def mostly_of_model(self) -> ShareShown | None:
        """The knob that matters most by the cost model of those that by the trials do far less; None: there is none."""
        found = [knob for knob in self.knobs if knob.is_mostly_of_model]
        return max(found, key=lambda knob: knob.model_share or 0.0, default=None)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What takes a while to work out of a sample of trials."""

    shown: ImportanceShown
    predicted_s: Mapping[int, float]  # by the id of the trial


def explain(
    store: Store, known: Standing, at_random: Sequence[TrialLine], fastest: Sequence[TrialLine], sketch: str
) -> Explanation:
    """Which knobs matter by the trials at random, which the fastest would bias; predictions of both.

    `sketch`: only trials of it, as `name.version`; empty: of all. Raises StoreError.
    """
    lines = distinct((*at_random, *fastest))
    predicted = predictions(store, known.task, known.target, lines)
    of_sketch = [line for line in lines if sketch in ("", line.schedule.sketch_name)]
    unbiased = {line.id for line in at_random}
    worked = [line for line in of_sketch if time_s(line) and line.id in unbiased]
    calm = [line for line in worked if not noise_of_line(line)]
    is_calm = len(calm) >= FEWEST_TRIALS
    timed = calm if is_calm else worked
    measured = importance(_inputs(known, timed), [time_s(line) or 0.0 for line in timed])
    told = [line for line in timed if predicted.times_s.get(line.id)]
    model = importance(_inputs(known, told), [predicted.times_s[line.id] for line in told])
    names = _sketch_names(timed)
    by_model = {knob.name: knob.share for knob in model.knobs} if model else {}
    best = best_of(of_sketch)
    had = _values_of_fastest(known, best, worked)
    shown = ImportanceShown(
        trials=len(timed),
        busy=len(worked) - len(calm),
        is_calm=is_calm,
        explained=None if measured is None else measured.explained,
        knobs=[
            ShareShown.show(
                knob,
                words=_words(knob.name),
                best=_best(knob, names),
                model_share=by_model.get(knob.name),
            )
            for knob in (measured.knobs if measured else ())
        ],
        model=predicted.model,
        model_explained=None if model is None else model.explained,
        fastest=len(best),
        shared=[one for one in had if one.others <= UNLIKE],
        common=[one for one in had if one.others >= SHARED],
    )
    return Explanation(shown, predicted.times_s)


def _values_of_fastest(known: Standing, best: Sequence[TrialLine], worked: Sequence[TrialLine]) -> list[SharedShown]:
    """The values that nearly all of the fastest have: of knobs, where all of these trials have them, and the sketch."""
    fastest = {line.id for line in best}
    others = [line for line in worked if line.id not in fastest]
    if len(best) < FEWEST_FASTEST or not others:
        return []
    lines = [*best, *others]
    names, found = _sketch_names(lines), []
    for name, values in _inputs(known, lines).items():
        [(value, count)] = Counter(values[: len(best)]).most_common(1)
        part = values[len(best) :].count(value) / len(others)
        if count >= SHARED * len(best):
            text = names[int(value)] if name == SKETCH else f"{value:,.15g}"
            found.append(SharedShown(name=name, words=_words(name), value=text, fastest=count, others=part))
    return sorted(found, key=lambda one: (one.others, one.name))


def _inputs(known: Standing, lines: Sequence[TrialLine]) -> dict[str, list[float]]:
    """The values of the knobs that all have, and the number of the sketch where there are several."""
    table = TrialColumns(known.task, lines, {})
    inputs = {knob: [value or 0.0 for value in table.values(KNOB + knob)] for knob in table.varied}
    names = _sketch_names(lines)
    sketches = [float(names.index(line.schedule.sketch_name)) for line in lines]
    return inputs | ({SKETCH: sketches} if len(names) > 1 else {})


def _sketch_names(lines: Sequence[TrialLine]) -> list[str]:
    return sorted({line.schedule.sketch_name for line in lines})


def _words(name: str) -> str:
    return "which sketch it is of" if name == SKETCH else knob_words(name)


def _best(knob: KnobShare, sketches: Sequence[str]) -> str:
    if knob.name == SKETCH:
        return " or ".join(sketches[int(knob.best[0]) : int(knob.best[1]) + 1])
    low, high = (f"{end:,.15g}" for end in knob.best)
    return low if low == high else f"{low} to {high}"
