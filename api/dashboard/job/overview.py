"""A job at a glance: whether it is worth more time, whether its figures can be trusted, and where a run's time goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic import Field

from tunewright.db.job import Job, JobState
from tunewright.tuner.explain import values
from tunewright.tuner.explain.gain import GainBasis
from tunewright.tuner.noise import total_noise
from tunewright.tuner.search.report import ENDINGS, SearchEnd
from tunewright.tuner.search.scheduling.outlook import MINUTE_S, again_words
from tunewright.tuner.search.view import CLEAR_GAIN
from tunewright.tuner.text import about, faster, is_certain, mark_noise, mark_trial, small_share

from ...http.schemas.base import Answer
from ..job_line import JobLine, Outlook, gain_of_minute
from ..views import LongText, Text
from .history import JobHistory
from .tasks import Latency, ModelRun, TaskLine, TaskSort, sort_tasks, total_ms

PARTS = 6
"""Tasks whose share of a run is shown apart."""

MOST_PROMISING = 3
"""Tasks that are named at once, of those that something is still expected of."""


class Prospect(Answer):
    """Whether the job is worth more budget."""

    outlook: Outlook
    again_s: float | None = Field(description="For so many seconds more ...")
    again_gain: float | None = Field(
        description="... of searching it is expected to become faster by this share, whatever the budget: a run of the "
        "whole model, or its tasks' time where that was not timed (see `parts_of`)."
    )
    ended_by: SearchEnd | None = Field(description="Why the search ended; null: it has not, or not by itself.")

    @property
    def again(self) -> str:
        """For how long more, in words."""
        return again_words(MINUTE_S if self.again_s is None else self.again_s)

    @property
    def again_timed(self) -> str:
        """The same with how long that is, where it is not said."""
        is_long = self.again_s is not None and self.again_s > MINUTE_S
        return f"{self.again} ({about(self.again_s)})" if is_long and self.again_s else self.again

    @property
    def ending(self) -> str:
        """Why the search ended, for people."""
        return ENDINGS[self.ended_by] if self.ended_by else ""


class Promise(Answer):
    """A task that something is still expected of."""

    key: Text
    op: Text
    expected_share: float = Field(
        description="What part of what `parts_of` says searching for as long again should save here."
    )


class Part(Answer):
    """What a task takes of a run of the model, or several together, or what no task does."""

    key: Text = Field(description="Of the task; empty where it is no single one.")
    name: Text = Field(description="For people.")
    before_ms: float | None
    after_ms: float | None
    is_tried: bool = Field(description="Whether a trial is in it, which nothing has confirmed.")
    is_default_tried: bool = Field(description="Whether one is in `before_ms`.")
    noise: Text = Field(description="Why the machine was too busy to rely on it; empty where it was not.")

    def mark_before(self, time: str) -> str:
        """The time before, marked as it needs to be."""
        return mark_trial(mark_noise(time, self.noise), self.is_default_tried)

    def mark_after(self, time: str) -> str:
        """The time after."""
        return mark_trial(mark_noise(time, self.noise), self.is_tried)


class Answered(StrEnum):
    """The answer to a question about a job, in a word."""

    YES = "yes"
    NO = "no"
    PARTLY = "partly"
    MAYBE = "maybe"
    OPEN = "not yet"  # nothing that would tell is known so far
    UNTOLD = "can't be told"  # what would tell was taken while the machine was too busy


class JobAnswer(Answer):
    """The answer to a question about a job, and why in a sentence."""

    answer: Answered
    why: Text


class Worth(JobAnswer):
    """Whether a job is worth more time."""

    more: LongText = Field(description="What more time would bring, in sentences; empty where nothing tells.")


def stage_of(job: Job) -> str:
    """What goes on in a job, or did when it was paused; a job that is out of time has all it was to have."""
    is_at_rest = job.state is JobState.PAUSED and job.result is None
    return values.word(job.progress, "stage") if job.holder or is_at_rest else ""


def forecast_of(job: Job, history: JobHistory) -> Mapping[str, Any] | None:
    """The newest progress that tells what more budget would bring."""
    told = (job.progress, history.expected)
    return next((data for data in told if values.number(data, "again_gain") is not None), None)


def prospect_of(
    progress: Mapping[str, Any] | None, gain: float | None, ended_by: SearchEnd | None, noise: str
) -> Prospect:
    """What more budget would bring, after times that are so noisy."""
    spent_s = values.number(progress, "spent_s")
    again_s = None if spent_s is None else max(spent_s, MINUTE_S)
    return Prospect(
        outlook=Outlook.of(gain, gain_of_minute(gain, again_s), "" if ended_by is SearchEnd.EXHAUSTED else noise),
        again_s=again_s,
        again_gain=gain,
        ended_by=ended_by,
    )


def promises_of(tasks: Sequence[TaskLine]) -> list[Promise]:
    """The tasks that most is still expected of."""
    return [
        Promise(key=task.key, op=task.op, expected_share=task.expected_share)
        for task in sort_tasks(tasks, TaskSort.EXPECTED)[:MOST_PROMISING]
        if task.expected_share is not None and task.expected_share >= CLEAR_GAIN
    ]


# Answers


def worth_answer(job: JobLine, run: Latency, prospect: Prospect, of: GainBasis) -> Worth:
    """Whether the job, or another one of its model, is worth more time."""
    if prospect.again_gain is None:
        if job.is_searched:
            return Worth(answer=Answered.OPEN, why="more time was not searched for", more="")
        more = "What more time would bring is told once each task that the model needs had its first trial."
        return Worth(answer=Answered.OPEN, why="known once each task had its first trial", more=more)
    if prospect.ended_by is SearchEnd.EXHAUSTED:
        more = "Nothing was left to try: more budget brings nothing."
        return Worth(answer=Answered.NO, why="nothing was left to try", more=more)
    it = "it" if of is GainBasis.MODEL else "its tasks"
    again = f"make {it} {faster(prospect.again_gain)}"
    is_little = prospect.outlook is Outlook.LITTLE
    if job.is_searched:
        return _worth_afterwards(job, run, prospect, again)
    if job.remaining_gain is not None:
        return _worth_of_rest(job, it, f"{prospect.again.capitalize()} would {again}.")
    if prospect.outlook is Outlook.NOISY:
        return _untold(job, f"{prospect.again.capitalize()} should {again}")
    return Worth(
        answer=Answered.NO if is_little else Answered.YES, why=f"{prospect.again_timed} should {again}", more=""
    )


def _worth_afterwards(job: JobLine, run: Latency, prospect: Prospect, again: str) -> Worth:
    """The answer once the search is over."""
    more = f"By its trials, searching for {prospect.again} was expected to {again}"
    is_little = prospect.outlook is Outlook.LITTLE
    if prospect.outlook is Outlook.NOISY:
        return _untold(job, more)
    if run.is_kept:
        why = "what its trials promised so far made the whole model no faster"
        more += ". What they promised so far made the whole model no faster, so that may not either."
        return Worth(answer=Answered.NO if is_little else Answered.MAYBE, why=why, more=more)
    why = f"{prospect.again_timed} should {again}"
    more += f": {_way_on(job, is_little=is_little)}."
    return Worth(answer=Answered.NO if is_little else Answered.YES, why=why, more=more)


def _untold(job: JobLine, forecast: str) -> Worth:
    """The answer where the machine was too busy for the trials that a forecast goes by."""
    then = "run the job again" if job.is_finished else "go on with it" if job.is_searched else "let it go on"
    more = f"{forecast}. That can't be relied on, as it goes by trials that can't: {job.noise}."
    if job.is_searched:
        more += f" {_way_on(job, is_little=False).capitalize()}."
    why = f"its trials differ by more than they promise: {then} when the machine is quiet"
    return Worth(answer=Answered.UNTOLD, why=why, more=more)


def _way_on(job: JobLine, *, is_little: bool) -> str:
    """How whoever wants more of a job that is searched comes to it."""
    if is_little:
        return "little more to expect"
    if job.is_finished:
        return "another job of this model with more budget goes on from what this one found"
    return "the same command goes on from what it found"


def _worth_of_rest(job: JobLine, it: str, again: str) -> Worth:
    """The answer while a job searches and tells what the rest of its budget brings."""
    gain = f"make {it} {faster(job.remaining_gain)}"
    more = f"The rest of its budget is expected to {gain}"
    if job.outlook is Outlook.NOISY:
        return _untold(job, more)
    left = f", {about(job.left_s)}," if job.left_s else ""
    why = f"the rest of its budget{left} should {gain}"
    if job.outlook is not Outlook.LITTLE:
        return Worth(answer=Answered.YES, why=why, more=f"{more}. {again}")
    if job.minute_gain is not None:
        why += f", {small_share(job.minute_gain)} a minute"
    more += f": little more to expect. Cancelled, it keeps what it found. {again}"
    return Worth(answer=Answered.NO, why=f"{why}; cancelled, it keeps what it found", more=more)


def trust_answer(job: JobLine, run: Latency) -> JobAnswer:
    """Whether the speed-up that is told can be relied on."""
    if run.speedup is None:
        if job.is_searched:
            return JobAnswer(answer=Answered.NO, why="no speed-up is known")
        return JobAnswer(answer=Answered.OPEN, why="no speed-up is known so far")
    if run.noise:
        but = "its interval is clear of 1, but " if is_certain(run.speedup_interval) else ""
        return JobAnswer(answer=Answered.NO, why=f"{but}its times can't be relied on: {run.noise}")
    if run.of is GainBasis.TRIALS:
        if job.is_finished:
            return JobAnswer(answer=Answered.NO, why="it is by trials alone: nothing was timed side by side")
        return JobAnswer(answer=Answered.OPEN, why="it is by trials so far: what comes of it is timed at the end")
    if run.of is GainBasis.TASKS:
        return JobAnswer(answer=Answered.PARTLY, why="each task was confirmed, the model as a whole was not timed")
    if run.is_kept:
        return JobAnswer(
            answer=Answered.YES, why="the whole model was timed both ways, and nothing is faster for certain"
        )
    if run.speedup_interval is None:
        return JobAnswer(answer=Answered.PARTLY, why="the whole model was timed, without an interval")
    if not is_certain(run.speedup_interval):
        return JobAnswer(answer=Answered.PARTLY, why="the whole model was timed in turn, and its gain may be none")
    why = "the whole model was timed in turn with its default, and its gain is beyond chance"
    return JobAnswer(answer=Answered.YES, why=why)


# Where the time goes


def time_parts(tasks: Sequence[TaskLine], run: ModelRun) -> list[Part]:
    """Shares of a run: the heaviest tasks, the time besides tasks where the model was timed, and the rest.

    The heaviest by default come first: that stays as it is while tasks become faster, and so do colours and numbers.
    """
    besides = _remainder(run)
    used = [task for task in tasks if task.before_ms != 0 or task.after_ms != 0]
    if all(task.before_ms is not None for task in used):
        used.sort(key=lambda task: -(task.before_ms or 0.0))
    most = PARTS - len(besides)
    parts = [
        Part.show(task, name=task.op, is_tried=not task.is_confirmed, is_default_tried=_is_default_tried([task]))
        for task in used[:most]
    ]
    rest = used[most:]
    name = f"{len(rest)} more tasks" if len(rest) > 1 else "1 more task"
    others = Part(
        key="",
        name=name,
        before_ms=total_ms([task.before_ms for task in rest]),
        after_ms=total_ms([task.after_ms for task in rest]),
        is_tried=not all(task.is_confirmed for task in rest),
        is_default_tried=_is_default_tried(rest),
        noise=total_noise(task.noise for task in rest),
    )
    return [*parts, *besides, *([others] if rest else [])]


def _is_default_tried(tasks: Iterable[TaskLine]) -> bool:
    """Whether a trial is in what these take of a run on default schedules."""
    return any(task.before_ms != 0 and not task.is_default_confirmed for task in tasks)


def _remainder(run: ModelRun) -> list[Part]:
    """The time of a run that no task takes: nodes without a kernel, and the time between kernels."""
    if run.besides_ms is None:
        return []
    before_ms, after_ms = run.besides_ms
    noise = total_noise([run.noise, *(times.noise for times in run.times)])
    return [
        Part(
            key="",
            name="besides its tasks",
            before_ms=before_ms,
            after_ms=after_ms,
            is_tried=not all(times.is_confirmed for times in run.times),
            is_default_tried=run.is_default_tried,
            noise=noise,
        )
    ]
