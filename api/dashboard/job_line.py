"""JobLine: a job in a list, with what the rest of its search is expected to bring.

From it alone one tells which job is worth stopping: `remaining_gain` is what is left to be had, `minute_gain` what a
minute of it brings, and `outlook` what to make of both: see `Outlook.of`, by which all pages judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from math import inf

from pydantic import Field

from tunewright.db.job import UNFINISHED, Job, JobState, Wish
from tunewright.tuner.explain import values
from tunewright.tuner.explain.gain import GainBasis, ModelGain, standing
from tunewright.tuner.search.report import JobOutcome, is_out_of_time, verdict
from tunewright.tuner.search.scheduling.outlook import MINUTE_S
from tunewright.tuner.text import short, sized_name

from ..http.schemas.base import Answer
from ..http.schemas.jobs import dims_of, owner_of
from .views import LongText, OwnerName, Tags, TargetName, Text

LITTLE_GAIN = 0.01
"""What is left to be had of a search is hardly worth waiting for below this: 1% of the model's speed."""

LITTLE_MINUTE_GAIN = 0.0005
"""Nor is a minute that brings less than this."""


class Outlook(StrEnum):
    """What to expect of the rest of a search."""

    LITTLE = "little"  # hardly worth its time
    SOME = "some"
    NOISY = "noisy"  # the machine was too busy to tell: trials differ by more than what is left to be had
    UNKNOWN = "unknown"

    @staticmethod
    def of(gain: float | None, minute_gain: float | None, noise: str) -> Outlook:
        """What to make of an expected gain, of which a minute brings `minute_gain`, after times that are so noisy.

        Little stays little where they are: noise makes more of a gain, as the fastest of many noisy times are partly
        luck, and never less.
        """
        if gain is None:
            return Outlook.UNKNOWN
        is_slow = minute_gain is not None and minute_gain < LITTLE_MINUTE_GAIN
        if gain < LITTLE_GAIN or is_slow:
            return Outlook.LITTLE
        return Outlook.NOISY if noise else Outlook.SOME


OUTLOOKS = {
    Outlook.LITTLE: "little more to expect",
    Outlook.NOISY: "too noisy to tell what more to expect",
}
"""These in words, where a number alone would mislead."""


class JobLine(Answer):
    """A job in a list."""

    id: int
    label: Text = Field(description="The model's name, for people.")
    tags: Tags = Field(description="Words to find it by.")
    owner: OwnerName | None = Field(description="The key that submitted it; null for a local command.")
    model: Text = Field(description="Digest of its model; empty where it has none.")
    dims: dict[Text, int] = Field(description="Sizes of the model's open dimensions, and values of inputs, by name.")
    state: JobState
    wish: Wish | None = Field(description="What its tuner process has been asked for and not yet done.")
    error: LongText
    target: TargetName = Field(description="Its key is empty while the job waits for any device.")
    tasks: int = Field(description="Distinct tasks of the model.")
    trials: int = Field(description="Candidates measured so far.")
    most_trials: int | None = Field(description="Most candidates to measure; null: no limit.")
    spent_s: float = Field(description="Seconds of searching so far.")
    before_s: float = Field(description="How many of them came before `most_s` counts: a command spent them.")
    most_s: float | None = Field(description="Most seconds of searching; null: no limit.")
    speedup: float | None = Field(description="How many times as fast as by default the model is.")
    speedup_of: GainBasis = Field(
        description="What that is by: runs of the whole `model`, its `tasks` timed side by side, or `trials` so far."
    )
    speedup_interval: tuple[float, float] | None = Field(description="95% interval; null: not known.")
    outcome: JobOutcome | None = Field(
        description="What it did for the model as a whole; null: it has not come so far."
    )
    noise: Text = Field(description="Why its machine was too busy to rely on the times; empty where it was not.")
    left_s: float | None = Field(description="Seconds until the search is expected to end.")
    remaining_gain: float | None = Field(
        description="By which share the rest of the search is expected to make the model's tasks faster, all together: "
        "0.02 is 2%."
    )
    minute_gain: float | None = Field(
        description="The same of a minute of it, on the average; null where less than a minute is left."
    )
    outlook: Outlook
    priority: int
    holder: Text = Field(description="The tuner process at work on it; empty where there is none.")
    created_at: datetime
    updated_at: datetime

    @property
    def name(self) -> str:
        """Its model for people, with the sizes that it is for."""
        name = self.label or short(self.model) or "tasks without a model"
        return sized_name(name, self.dims)

    @property
    def is_finished(self) -> bool:
        """Whether nothing about it changes any more."""
        return self.state not in UNFINISHED

    @property
    def is_searched(self) -> bool:
        """Whether its search is over: it is finished, or out of time."""
        return self.is_finished or is_out_of_time(self.state, self.outcome)

    @property
    def outlook_text(self) -> str:
        """What to make of the rest of its search, for people; empty where that needs no word."""
        return OUTLOOKS.get(self.outlook, "")

    @property
    def result_text(self) -> str:
        """Its state for people; where it succeeded or is out of time, its outcome."""
        return verdict(self.state, self.outcome)


def forecast_of_rest(job: Job) -> tuple[float | None, float | None, float | None]:
    """The newest forecast of the rest of a search: its seconds, what it brings (0.02 is 2%), and what of that a minute
    brings on the average. None where nothing is told, or to come.
    """
    progress = standing(job)
    left_s, gain = values.number(progress, "left_s"), values.number(progress, "remaining_gain")
    return left_s, gain, gain_of_minute(gain, left_s)


def gain_of_minute(gain: float | None, seconds: float | None) -> float | None:
    """What a minute brings on the average of a gain in so many seconds; None where they are less, or not known."""
    if gain is None or seconds is None or seconds < MINUTE_S:
        return None
    rate: float = (1.0 + gain) ** (MINUTE_S / seconds)
    return rate - 1.0


def line_of(job: Job, targets: Mapping[str, str], owners: Mapping[str, str]) -> JobLine:
    """A job as a line; `targets` and `owners` are names by key."""
    key = job.spec.target_key
    gain = ModelGain.of_job(job.progress, job.result)
    left_s, remaining_gain, minute_gain = forecast_of_rest(job)
    return JobLine.show(
        job,
        gain,
        left_s=left_s,
        remaining_gain=remaining_gain,
        minute_gain=minute_gain,
        outlook=Outlook.of(remaining_gain, minute_gain, gain.noise),
        model=job.spec.model_sha256,
        tags=list(job.tags),
        owner=owner_of(job, owners),
        dims=dims_of(job),
        target=TargetName.known(key, targets),
        tasks=len(job.spec.tasks),
        most_trials=job.budget.trials,
        before_s=job.budget.before_s,
        most_s=None if job.budget.seconds == inf else job.budget.seconds,
        speedup_of=gain.of,
    )
