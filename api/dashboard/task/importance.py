"""Which knobs matter: by a task's trials, and by what the cost model predicts of the same trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from tunewright.db.store import Store
from tunewright.db.trial import TrialLine, distinct
from tunewright.tuner.explain.calibration import predictions
from tunewright.tuner.explain.importance import FEWEST_TRIALS, Importance, KnobShare, importance
from tunewright.tuner.explain.meanings import knob_words

from ...http.schemas.base import Answer
from ..views import Text
from .columns import KNOB, TrialColumns, time_s
from .schedules import Standing

SKETCH = "sketch"
"""What stands among the knobs for the choice between sketches."""


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


class ImportanceShown(Answer):
    """What knobs explain of the times."""

    trials: int = Field(description="Trials that it is of: those of the sample that worked, without the fastest added.")
    fewest: int = Field(default=FEWEST_TRIALS, description="With fewer nothing can be told.")
    explained: float | None = Field(description="What all knobs explain, each by itself; null: it can't be told.")
    knobs: list[ShareShown] = Field(description="The largest shares first.")
    model: Text = Field(description="The cost model beside; empty: there is none.")
    model_explained: float | None = Field(description="What they explain of its predictions.")

    @property
    def mattering(self) -> list[ShareShown]:
        """The knobs that matter for certain."""
        return [knob for knob in self.knobs if knob.matters]


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
    of_sketch = [line for line in at_random if sketch in ("", line.schedule.sketch_name)]
    timed = [line for line in of_sketch if time_s(line)]
    measured = importance(_inputs(known, timed), [time_s(line) or 0.0 for line in timed])
    told = [line for line in timed if predicted.times_s.get(line.id)]
    model = importance(_inputs(known, told), [predicted.times_s[line.id] for line in told])
    names = sorted({line.schedule.sketch_name for line in timed})
    by_model = {knob.name: knob.share for knob in model.knobs} if model else {}
    return Explanation(_importance_view(timed, measured, model, by_model, predicted.model, names), predicted.times_s)


def _inputs(known: Standing, lines: Sequence[TrialLine]) -> dict[str, list[float]]:
    """The values of the knobs that all have, and the number of the sketch where there are several."""
    table = TrialColumns(known.task, lines, {})
    inputs = {knob: [value or 0.0 for value in table.values(KNOB + knob)] for knob in table.varied}
    sketches = [line.schedule.sketch_name for line in lines]
    names = sorted(set(sketches))
    return inputs | ({SKETCH: [float(names.index(name)) for name in sketches]} if len(names) > 1 else {})


def _importance_view(
    timed: Sequence[TrialLine],
    measured: Importance | None,
    model: Importance | None,
    by_model: Mapping[str, float],
    model_name: str,
    sketches: Sequence[str],
) -> ImportanceShown:
    return ImportanceShown(
        trials=len(timed),
        explained=None if measured is None else measured.explained,
        knobs=[
            ShareShown.show(
                knob,
                words="which sketch it is of" if knob.name == SKETCH else knob_words(knob.name),
                best=_best(knob, sketches),
                model_share=by_model.get(knob.name),
            )
            for knob in (measured.knobs if measured else ())
        ],
        model=model_name,
        model_explained=None if model is None else model.explained,
    )


def _best(knob: KnobShare, sketches: Sequence[str]) -> str:
    if knob.name == SKETCH:
        return " or ".join(sketches[int(knob.best[0]) : int(knob.best[1]) + 1])
    low, high = (f"{end:,.15g}" for end in knob.best)
    return low if low == high else f"{low} to {high}"
