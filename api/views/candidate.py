"""The view of one candidate: what it is, what it becomes, what was measured of it, and what the cost model says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from pydantic import Field

from tunewright.codegen.target import Target
from tunewright.db.known import Best
from tunewright.db.sql_store import SqlStore
from tunewright.db.trials import TrialDetail
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.insight.calibration import calibrations
from tunewright.tuner.insight.meanings import MEANINGS
from tunewright.tuner.insight.reasons import differences
from tunewright.tuner.insight.texts import DiffKind, DiffLine, parts_of
from tunewright.tuner.lookup.experience import proven
from tunewright.tuner.lookup.prediction import located, taught
from tunewright.tuner.units import in_ms

from ..looks import Failure, Looks
from ..problems import Kind, Problem
from ..schemas import Answer, Digest
from ..service import in_thread
from .judged import Nearness, Question, ReasonShown, measured_peak, nearness, sample
from .said import Provenance, Said, SaidAtLength
from .schedules import (
    FormShown,
    KnobShown,
    ScheduleTold,
    TaskHead,
    ToleranceShown,
    TrialBrief,
    default_of,
    knobs,
    target_of,
    task_of,
    tolerances,
)
from .targets import TargetName

MOST_SAMPLES = 1000
"""Samples that are shown: what was imported may have any number."""


class TextPart(StrEnum):
    """What a schedule can be read as: of a processor the first three, of a GPU the first and the last two."""

    IR = "ir"
    LLVM = "llvm"
    ASSEMBLY = "assembly"
    CUDA = "cuda"
    PTX = "ptx"


class Against(StrEnum):
    """What a schedule can be compared with."""

    DEFAULT = "default"
    BEST = "best"


class CandidateAsked(Answer):
    """What a page of a candidate was asked for."""

    task: Digest
    schedule: Digest
    target: Digest
    text: TextPart | None = None
    against: Against | None = Field(None, description="What the text is compared with; null: it is shown as it is.")


class Evidence(Answer):
    """What was measured of a candidate, and where."""

    samples_ms: list[float]
    incumbent_ms: float | None = Field(
        description="Noted of what was timed in turn: the times are as if it took that. May be null."
    )
    warm_ms: float | None = Field(description="Median with all operands in the caches; null where it was not timed.")
    object_sha256: Said = Field(description="Digest of the object code that was timed.")
    provenance: Provenance = Field(description="Machine, compiler and library versions.")
    error: SaidAtLength = Field(description="What went wrong, more of it than in a table.")

    @staticmethod
    def of(measured: Measurement) -> Evidence:
        """A measurement as views show it."""
        return Evidence(
            samples_ms=[1e3 * sample for sample in measured.samples_s[:MOST_SAMPLES]],
            incumbent_ms=in_ms(measured.incumbent_s),
            warm_ms=in_ms(measured.warm_s),
            object_sha256=measured.object_sha256,
            provenance=measured.provenance,
            error=measured.error,
        )


class Opinion(Answer):
    """What a cost model expects of a candidate."""

    model: Said
    expected_ms: float
    has_learned_from_it: bool = Field(description="Whether it may have known the measured time.")


class ContributionShown(Answer):
    """What one feature does to the speed that is predicted."""

    feature: Said
    words: Said = Field(description="What it is.")
    value: Said = Field(description="Its value, for people.")
    log2_speed: float = Field(description="What it adds to log2 of the speed.")

    @property
    def factor(self) -> float:
        """What it does to the speed: 2 is twice as fast."""
        return float(2.0**self.log2_speed)


class Explained(Answer):
    """What the cost model says of a candidate."""

    expected: list[Opinion]
    contributions: list[ContributionShown] = Field(description="What moves its opinion most, the largest first.")
    reasons: list[ReasonShown] = Field(description="What of it differs from the default, and what that is worth.")
    nearness: Nearness | None


class DiffLineShown(Answer):
    """A line of what two texts have in common, or one of them alone."""

    kind: DiffKind
    text: SaidAtLength


class TextShown(Answer):
    """What a candidate becomes, or how that differs from what another one does."""

    part: TextPart
    against: Against | None
    text: str | None = Field(description="Null where a difference was asked for, or there is none yet.")
    difference: list[DiffLineShown] | None = Field(
        description="From the other to this one; empty where they are alike."
    )
    why: Said = Field(description="Why there is none; empty where it is still being made.")


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
    explained: Explained | None = Field(description="Null while it is being worked out.")
    parts: list[TextPart] = Field(description="What it can be read as.")
    text: TextShown | None = Field(description="Null where none was asked for.")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the database has of a candidate, read for one page."""

    task: Task
    target: Target
    schedule: Schedule
    detail: TrialDetail | None
    default: Schedule | None
    default_detail: TrialDetail | None
    best: Best | None
    best_detail: TrialDetail | None
    peak_gflops: float | None  # as measured by the job that measured the best
    snapshot_id: int

    def other(self, against: Against) -> Schedule | None:
        """What it is compared with; None where there is nothing."""
        match against:
            case Against.DEFAULT:
                return self.default
            case Against.BEST:
                return self.best.schedule if self.best else None

    @property
    def mark(self) -> tuple[object, ...]:
        """Changes when what is explained should be explained anew."""
        return self.snapshot_id, self.best.schedule if self.best else None, self.detail is not None

    @property
    def question(self) -> Question:
        """What there is to explain: this schedule, whether or not it is the best."""
        is_best = self.best is not None and self.best.schedule == self.schedule
        measured_s = self.best.median_s if is_best and self.best else self.detail.line.median_s if self.detail else None
        return Question(self.task, self.target, self.default, self.schedule, measured_s, self.peak_gflops)


async def candidate_page(store: SqlStore, looks: Looks, asked: CandidateAsked) -> CandidatePage:
    """The page that was asked for. Raises Problem for what is not known, StoreError."""
    facts = await in_thread(partial(_read, store, asked))
    key = asked.task, asked.target, asked.schedule
    forms, explained, text = await asyncio.gather(
        _forms(looks, facts),
        looks.judged(key, facts.mark, partial(_explained, store, facts)),
        _text(looks, facts, asked),
    )
    return await in_thread(partial(_page, asked, facts, forms, explained, text))


class Forms(NamedTuple):
    """Of a schedule, and of the default and the best where these are others."""

    own: FormShown
    default: FormShown | None
    best: FormShown | None


async def _forms(looks: Looks, facts: Facts) -> Forms:
    async def form(schedule: Schedule) -> FormShown:
        return FormShown.of(await looks.form(facts.task, facts.target, schedule))

    async def other(against: Against) -> FormShown | None:
        schedule = facts.other(against)
        return None if schedule is None or schedule == facts.schedule else await form(schedule)

    return Forms(*await asyncio.gather(form(facts.schedule), other(Against.DEFAULT), other(Against.BEST)))


def _read(store: SqlStore, asked: CandidateAsked) -> Facts:
    task, target = task_of(store, asked.task), target_of(store, asked.target)
    default = default_of(task, target)
    best = store.known.best([task.key], [target.key]).get((task.key, target.key))

    def detail(schedule_key: str) -> TrialDetail | None:
        return store.trials.one(task.key, target.key, schedule_key)

    found = detail(asked.schedule)
    known = [
        *([found.line.schedule] if found else []),
        *([default] if default else []),
        *([best.schedule] if best else []),
    ]
    schedule = next((one for one in known if one.key == asked.schedule), None)
    if schedule is None:
        raise Problem(Kind.NO_SUCH_SCHEDULE, f"the task has no schedule {asked.schedule} on this target")
    best_detail = detail(best.schedule.key) if best else None
    by = best_detail.line.job_id if best_detail else None
    snapshots = store.costs.list(target.kind, limit=1)
    return Facts(
        task=task,
        target=target,
        schedule=schedule,
        detail=found,
        default=default,
        default_detail=detail(default.key) if default else None,
        best=best,
        best_detail=best_detail,
        peak_gflops=measured_peak(store.jobs.get(by).result) if by is not None else None,
        snapshot_id=snapshots[0].id if snapshots else 0,
    )


def _explained(store: SqlStore, facts: Facts) -> Explained:
    """What the cost model says. Raises StoreError."""
    task, target, schedule = facts.task, facts.target, facts.schedule
    lines = sample(store, facts.question)
    own = [(line.schedule, line) for line in lines]
    this = [facts.detail.line] if facts.detail else []
    expected = [
        Opinion(model=one.model, expected_ms=1e3 * pair.predicted_s, has_learned_from_it=one.has_learned_from_these)
        for one in calibrations(store, task, target, this)
        for pair in one.points
    ]
    model, place = taught(proven(store, target.kind), task, target, own), located(task, target, schedule)
    why = differences(model, task, target, schedule, facts.default) if model is not None and facts.default else []
    [contributions] = model.explain(task, target, *place) if model is not None and place is not None else [[]]
    return Explained(
        expected=expected,
        contributions=[
            ContributionShown(
                feature=one.feature,
                words=MEANINGS[one.feature].words,
                value=MEANINGS[one.feature].shown(one.value),
                log2_speed=one.log2_speed,
            )
            for one in contributions
        ],
        reasons=list(map(ReasonShown.of, why)),
        nearness=nearness(facts.question, this),
    )


async def _text(looks: Looks, facts: Facts, asked: CandidateAsked) -> TextShown | None:
    if asked.text is None:
        return None
    found: str | Sequence[DiffLine] | Failure | None
    if asked.text not in parts_of(facts.target):
        found = Failure(f"{facts.target} has none; it has {', '.join(parts_of(facts.target))}")
    elif asked.against is None:
        found = await looks.text(facts.task, facts.target, facts.schedule, asked.text)
    elif (other := facts.other(asked.against)) is not None:
        found = await looks.difference(facts.task, facts.target, facts.schedule, other, asked.text)
    else:
        found = Failure(f"there is no {asked.against} to compare it with")
    return TextShown(
        part=asked.text,
        against=asked.against,
        text=found if isinstance(found, str) else None,
        difference=None
        if found is None or isinstance(found, str | Failure)
        else [DiffLineShown(kind=line.kind, text=line.text) for line in found],
        why=found.why if isinstance(found, Failure) else "",
    )


def _page(
    asked: CandidateAsked,
    facts: Facts,
    forms: Forms,
    explained: Explained | None,
    text: TextShown | None,
) -> CandidatePage:
    task, target, schedule, default = facts.task, facts.target, facts.schedule, facts.default
    best = facts.best.schedule if facts.best else None
    return CandidatePage(
        asked=asked,
        task=TaskHead.of(task),
        target=TargetName.of(target),
        schedule=ScheduleTold.of(schedule),
        is_default=schedule == default,
        is_best=schedule == best,
        trial=TrialBrief.of(facts.detail.line) if facts.detail else None,
        evidence=Evidence.of(facts.detail.record.measurement) if facts.detail else None,
        tolerances=tolerances(task),
        parts=[TextPart(part) for part in parts_of(target)],
        best=TrialBrief.chosen(facts.best, facts.best_detail.line if facts.best_detail else None)
        if facts.best
        else None,
        default=TrialBrief.of(facts.default_detail.line) if facts.default_detail else None,
        knobs=knobs(schedule, default, best),
        form=forms.own,
        default_form=forms.default,
        best_form=forms.best,
        explained=explained,
        text=text,
    )
