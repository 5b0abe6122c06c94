"""The page of a candidate: schedule, generated code, measurement, and the cost model's prediction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query
from markupsafe import Markup
from pydantic import Field

from tunewright.db.store import Store
from tunewright.db.trial import TrialDetail, TrialOrder, TrialPage
from tunewright.search_space.measurement import Measurement
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.explain.calibration import calibrations
from tunewright.tuner.explain.meanings import MEANINGS
from tunewright.tuner.explain.reasons import differences
from tunewright.tuner.explain.texts import DiffKind, DiffLine, parts_of
from tunewright.tuner.lookup.experience import proven_experience
from tunewright.tuner.lookup.predictor import locate, train
from tunewright.tuner.text import times

from ...http.descriptions import Descriptions, DescriptionsDep, Failure
from ...http.problems import Problem, ProblemKind
from ...http.schemas.base import SHA256, Answer, Digest
from ...http.service import ServiceDep, in_thread
from ..drawing.bars import Bar, bars, nest
from ..drawing.charts import histogram
from ..drawing.scales import AxisSpec, Unit
from ..page import add_page
from ..page_query import PageQuery
from ..views import LongText, Provenance, TargetName, Text
from .analysis import ContributionShown, Nearness, ReasonShown, nearness, sample
from .charts import EFFECT_HEADS, effects
from .schedules import (
    FormShown,
    KnobShown,
    ScheduleTold,
    Standing,
    TaskHead,
    TaskInPath,
    TextPart,
    ToleranceShown,
    TrialBrief,
    knobs,
    text_parts,
    tolerances,
)

router = APIRouter(tags=["pages"])

MOST_SAMPLES = 1000
"""Samples that are shown: what was imported may have any number."""


class Against(StrEnum):
    """What a schedule can be compared with."""

    DEFAULT = "default"
    BEST = "best"


class CandidateTab(StrEnum):
    """The parts of the page, of which it shows one: each is a template `candidate_TAB.html`."""

    OVERVIEW = "overview"
    LOOPS = "loops"
    TEXT = "text"
    MEASURED = "measured"
    MODEL = "model"


class CandidateQuery(Answer):
    """What of a candidate was asked for."""

    target: Digest = Field(description="Key of the target that it was measured on.")
    text: TextPart | None = Field(default=None, description="What it becomes, as this.")
    against: Against | None = Field(
        default=None, description="How the text differs from that of the default, or of the best known."
    )
    tab: CandidateTab | None = Field(
        default=None,
        description="What the page shows, whose data has all of them; null: the `text` where one is asked for, else "
        "the `overview`.",
    )

    @property
    def open_tab(self) -> CandidateTab:
        """What the page shows."""
        return self.tab or (CandidateTab.TEXT if self.text else CandidateTab.OVERVIEW)


class CandidateAsked(CandidateQuery, PageQuery):
    """What a page of a candidate was asked for."""

    in_path = frozenset({"task", "schedule"})

    task: Digest
    schedule: Digest


class Evidence(Answer):
    """What was measured of a candidate, and where."""

    samples_ms: list[float]
    incumbent_ms: float | None = Field(
        description="Noted of what was timed in turn: the times are as if it took that. May be null."
    )
    warm_ms: float | None = Field(description="Median with all operands in the caches; null where it was not timed.")
    object_sha256: Text = Field(description="Digest of the object code that was timed.")
    provenance: Provenance = Field(description="Machine, compiler and library versions.")
    error: LongText = Field(description="What went wrong, more of it than in a table.")

    @staticmethod
    def of(measured: Measurement) -> Evidence:
        """A measurement as views show it."""
        return Evidence.show(measured, samples_ms=[1e3 * sample for sample in measured.samples_s[:MOST_SAMPLES]])


class Opinion(Answer):
    """What a cost model expects of a candidate."""

    model: Text
    expected_ms: float
    has_learned_from_it: bool = Field(description="Whether it may have known the measured time.")


class Explained(Answer):
    """What the cost model says of a candidate."""

    expected: list[Opinion]
    contributions: list[ContributionShown] = Field(description="What moves its opinion most, the largest first.")
    reasons: list[ReasonShown] = Field(description="What of it differs from the default, and what that is worth.")


class DiffLineShown(Answer):
    """A line of what two texts have in common, or one of them alone."""

    kind: DiffKind
    text: LongText


class TextShown(Answer):
    """What a candidate becomes, or how that differs from what another one does."""

    part: TextPart
    against: Against | None
    text: str | None = Field(description="Null where a difference was asked for, or there is none yet.")
    difference: list[DiffLineShown] | None = Field(
        description="From the other to this one; empty where they are alike."
    )
    why: Text = Field(description="Why there is none; empty where it is still being made.")


class CandidatePage(Answer):
    """A schedule of a task on a target."""

    asked: CandidateAsked
    task: TaskHead
    target: TargetName
    schedule: ScheduleTold
    is_default: bool
    is_best: bool
    trial: TrialBrief | None = Field(description="What came of it; null: it was not tried.")
    evidence: Evidence | None
    tolerances: list[ToleranceShown] = Field(description="Of each output.")
    best: TrialBrief | None
    default: TrialBrief | None
    knobs: list[KnobShown]
    form: FormShown
    default_form: FormShown | None = Field(description="Of the default; null where that is this one.")
    best_form: FormShown | None = Field(description="Of the best; null where that is this one, or there is none.")
    nearness: Nearness | None = Field(description="Null where it was not timed here, or its loops are not known.")
    explained: Explained | None = Field(description="Null while it is being worked out.")
    parts: list[TextPart] = Field(description="What it can be read as.")
    text: TextShown | None = Field(description="Null where none was asked for.")


# Charts

FEWEST_SAMPLES = 5
"""Fewer samples are listed instead of drawn."""


def candidate_charts(view: CandidatePage) -> dict[str, Markup]:
    """`loops`, `samples`, `reasons` and `contributions`; as far as they are known."""
    charts = {"loops": nest("The loops of the schedule", view.form.parts)}
    if view.evidence is not None and len(view.evidence.samples_ms) >= FEWEST_SAMPLES:
        samples_s = [1e-3 * sample_ms for sample_ms in view.evidence.samples_ms]
        axis = AxisSpec("time of a run", Unit.TIME)
        charts["samples"] = histogram("Its samples", axis, samples_s, names="sample").draw()
    if view.explained is not None:
        charts["reasons"] = effects("Differences from the default, by the cost model", view.explained.reasons)
        charts["contributions"] = bars(
            "Largest feature contributions",
            [
                Bar(part.words, part.log2_speed, times(part.factor), part.value, part.feature)
                for part in view.explained.contributions
            ],
            heads=EFFECT_HEADS,
            kind="effect",
            nothing="The cost model has not learned anything yet, or does not know the schedule.",
        )
    return charts


# View


@add_page(
    router,
    "/tasks/{task_key}/schedules/{schedule_key}",
    "task/candidate.html",
    summary="A schedule of a task",
    charts=candidate_charts,
    refusals=(ProblemKind.NO_SUCH_TASK, ProblemKind.NO_SUCH_TARGET, ProblemKind.NO_SUCH_SCHEDULE, ProblemKind.INVALID),
)
async def candidate(
    service: ServiceDep,
    descriptions: DescriptionsDep,
    task_key: TaskInPath,
    schedule_key: Annotated[str, Path(pattern=f"^{SHA256}$", description="Key of the schedule.")],
    query: Annotated[CandidateQuery, Query()],
) -> CandidatePage:
    """A schedule in words and as loops, what it becomes, how that differs, what was measured, and what is predicted.

    What takes long to work out is null at first.
    """
    asked = CandidateAsked(task=task_key, schedule=schedule_key, **dict(query))
    store, key = service.store, (task_key, asked.target, schedule_key)
    facts = await in_thread(partial(CandidateFacts.load, store, asked))
    known, schedule = facts.known, facts.schedule
    form, default_form, best_form, explained, text = await asyncio.gather(
        known.form(descriptions, schedule),
        known.form(descriptions, known.default, schedule),
        known.form(descriptions, known.best_schedule, schedule),
        descriptions.analyse(key, known.mark(facts.newest), partial(_explain, store, facts)),
        _text(descriptions, facts, asked),
    )
    forms = {"form": form, "default_form": default_form, "best_form": best_form}
    return await in_thread(partial(_page, asked, facts, explained=explained, text=text, **forms))


@dataclass(frozen=True, slots=True)
class CandidateFacts:
    """The data of a candidate, read from the database for one page."""

    known: Standing
    schedule: Schedule
    trial: TrialDetail | None
    newest: TrialPage  # the newest trial of all

    def other(self, against: Against) -> Schedule | None:
        """The schedule to compare with; None where there is none."""
        return self.known.default if against is Against.DEFAULT else self.known.best_schedule

    @property
    def time_s(self) -> float | None:
        """What the schedule takes: as it was chosen for, where it is the best."""
        if self.known.best and self.known.best_schedule == self.schedule:
            return self.known.best.median_s
        return self.trial.line.median_s if self.trial else None

    @classmethod
    def load(cls, store: Store, query: CandidateAsked) -> CandidateFacts:
        """By what was asked for. Raises Problem, StoreError."""
        known = Standing.load(store, query.task, query.target)
        trial = store.trials.get(query.task, query.target, query.schedule)
        schedules = (trial.line.schedule if trial else None, known.default, known.best_schedule)
        schedule = next((other for other in schedules if other and other.key == query.schedule), None)
        if schedule is None:
            raise Problem(ProblemKind.NO_SUCH_SCHEDULE, f"the task has no schedule {query.schedule} on this target")
        newest = store.trials.page(query.task, query.target, order=TrialOrder.NEWEST, limit=1)
        return cls(known, schedule, trial, newest)


def _explain(store: Store, facts: CandidateFacts) -> Explained:
    """The cost model's predictions for a candidate. Raises StoreError."""
    task, target, schedule, default = facts.known.task, facts.known.target, facts.schedule, facts.known.default
    lines = sample(store, facts.known, schedule)
    own = [(line.schedule, line) for line in lines]
    this = [facts.trial.line] if facts.trial else []
    opinions = [
        Opinion(
            model=calibration.model,
            expected_ms=1e3 * pair.predicted_s,
            has_learned_from_it=calibration.has_learned_from_these,
        )
        for calibration in calibrations(store, task, target, this)
        for pair in calibration.points
    ]
    model, place = train(proven_experience(store, target.kind), task, target, own), locate(task, target, schedule)
    why = differences(model, task, target, schedule, default) if model is not None and default else []
    [contributions] = model.explain(task, target, *place) if model is not None and place is not None else [[]]
    return Explained(
        expected=opinions,
        contributions=[
            ContributionShown.show(part, words=meaning.words, value=meaning.format(part.value))
            for part in contributions
            if (meaning := MEANINGS[part.feature])
        ],
        reasons=list(map(ReasonShown.of, why)),
    )


async def _text(descriptions: Descriptions, facts: CandidateFacts, query: CandidateAsked) -> TextShown | None:
    if query.text is None:
        return None
    task, target = facts.known.task, facts.known.target
    text: str | Sequence[DiffLine] | Failure | None
    if query.text not in parts_of(target):
        text = Failure(f"{target} has none; it has {', '.join(parts_of(target))}")
    elif query.against is None:
        text = await descriptions.text(task, target, facts.schedule, query.text)
    elif (other := facts.other(query.against)) is not None:
        text = await descriptions.difference(task, target, facts.schedule, other, query.text)
    else:
        text = Failure(f"there is no {query.against} to compare it with")
    return TextShown.show(
        query,
        part=query.text,
        text=text if isinstance(text, str) else None,
        difference=None if isinstance(text, str | Failure) else text,
        why=text.why if isinstance(text, Failure) else "",
    )


def _page(query: CandidateAsked, facts: CandidateFacts, **parts: object) -> CandidatePage:
    """The page with the parts that took long."""
    known, schedule = facts.known, facts.schedule
    return CandidatePage.show(
        facts,
        asked=query,
        task=TaskHead.of(known.task),
        target=TargetName.of(known.target),
        schedule=ScheduleTold.of(schedule),
        is_default=schedule == known.default,
        is_best=schedule == known.best_schedule,
        trial=known.brief(facts.trial),
        evidence=Evidence.of(facts.trial.record.measurement) if facts.trial else None,
        tolerances=tolerances(known.task),
        parts=text_parts(known.target),
        best=known.best_brief,
        default=known.brief(known.default_trial),
        knobs=knobs(schedule, known.default, known.best_schedule),
        nearness=nearness(known, facts.trial, facts.time_s),
        **parts,
    )
