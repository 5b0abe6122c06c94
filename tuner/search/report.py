"""Report: the result of a tuning job, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from tunewright.codegen.codec import JsonName, from_json, to_json
from tunewright.db.job import JobState
from tunewright.graph.numerics import Precision

from ..lookup.verdict import DEFAULTS_KEPT, VENDOR, VendorTime
from ..session.image_store import fallback_share
from ..text import ONNX_RUNTIME, Interval, ratio
from ..units import Time, TimeInterval, in_ms


class SearchEnd(StrEnum):
    """The reason why a search ended."""

    TRIALS = "trials"  # all of the budget were done
    MINUTES = "minutes"  # so was the time
    UNTIL = "until"  # another minute was expected to bring less than the budget asks for
    EXHAUSTED = "exhausted"  # no task had anything left to try


ENDINGS = {
    SearchEnd.TRIALS: "all its trials were done",
    SearchEnd.MINUTES: "its minutes were over",
    SearchEnd.UNTIL: "another minute was expected to bring too little",
    SearchEnd.EXHAUSTED: "nothing new was left to try",
}
"""The reasons in words."""


class JobOutcome(StrEnum):
    """The outcome of a job for its whole model: trials and tasks may promise more than a run then shows."""

    FASTER = "faster"  # beyond the interval of the gain: what was found is in use
    DEFAULTS_KEPT = DEFAULTS_KEPT  # nothing found makes the model faster beyond it: its tasks keep their defaults
    TOO_NOISY = "too_noisy"  # it looked faster on a machine too busy to tell: what was found is in use
    VENDOR = VENDOR  # a vendor's runtime runs it faster than any of our kernels, beyond the interval: that is in use
    UNTIMED = "untimed"  # the model could not be run on both: what was found for each task is in use

    @staticmethod
    def of(word: str, is_noisy: bool) -> JobOutcome | None:
        """The outcome that a stored result has; None where it has none. Older versions called noisy gains faster."""
        if word == JobOutcome.FASTER and is_noisy:
            return JobOutcome.TOO_NOISY
        return next((outcome for outcome in JobOutcome if outcome == word), None)


VERDICTS = {
    JobOutcome.DEFAULTS_KEPT: "defaults kept",
    JobOutcome.TOO_NOISY: "too noisy to tell",
    JobOutcome.VENDOR: f"runs in {ONNX_RUNTIME}",
}
"""Words for outcomes of jobs that succeeded without a gain of our kernels that can be told, or is in use."""


def verdict(state: str, outcome: JobOutcome | None) -> str:
    """The state of a job for people; of one that succeeded or is out of time, what it came to."""
    if outcome and state == JobState.SUCCEEDED:
        return VERDICTS.get(outcome, state)
    if is_out_of_time(state, outcome):
        words = VERDICTS.get(outcome, outcome.value) if outcome else ""
        return f"{state}, minutes over: {words}"
    return state


def is_out_of_time(state: str, outcome: JobOutcome | None) -> bool:
    """Whether a job rests as its minutes were over: of all that are paused, such ones alone have an outcome."""
    return outcome is not None and state == JobState.PAUSED


class Payoff(StrEnum):
    """What tuning is worth for a task whose best another version had found, after an upgrade."""

    PAYS = "pays"  # that best is faster than the default of this version, beyond the intervals of both
    OTHER = "other"  # another schedule is, that had lost before
    UNSURE = "unsure"  # a schedule seems faster, but not beyond the intervals
    DEFAULT = "default"  # the default of this version is as fast as all of them: tuning no longer pays
    FAILS = "fails"  # none of them works any more


PAYOFFS = {
    Payoff.PAYS: "tuning still pays",
    Payoff.OTHER: "tuning still pays, by another schedule",
    Payoff.UNSURE: "too close to tell",
    Payoff.DEFAULT: "tuning no longer pays: the default is as fast now",
    Payoff.FAILS: "no schedule works any more",
}
"""These in words."""


@dataclass(frozen=True, slots=True)
class Retimed:
    """What was known of a stale task by the versions that had tuned it, and what came of re-timing it."""

    versions: Mapping[str, str]  # of compiler, driver and Tunewright, as far as they are known
    default_s: Time  # as it was told then, and so are the others; None: not known
    best_s: Time
    payoff: Payoff
    default_interval_s: TimeInterval = None
    best_interval_s: TimeInterval = None


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A job's stale tasks, and what an upgrade did to them, all together, as often as the model runs each."""

    schedules: int  # the most that were re-timed of a task, besides its default
    versions: Mapping[str, str]  # the present ones
    seconds: float  # that re-timing took, over all processes
    tuning_s: Annotated[float, JsonName("tuning_seconds")]  # that jobs had searched for what is known of these tasks
    tasks: int  # that were re-timed
    payoffs: Mapping[str, int] = field(default_factory=dict)  # how many of these each `Payoff` is of
    before_default_s: Time = None  # by the versions before; None: not known of all of them
    before_s: Time = None
    default_s: Time = None
    best_s: Time = None

    @property
    def share(self) -> float | None:
        """The part of the time of tuning that re-timing took; None where no time of tuning is known."""
        return ratio(self.seconds, self.tuning_s or None)

    @property
    def change(self) -> float | None:
        """How many times as fast as before the upgrade the best are now; below 1 it made them slower."""
        return ratio(self.before_s, self.best_s)

    @property
    def default_change(self) -> float | None:
        """The same of the defaults."""
        return ratio(self.before_default_s, self.default_s)

    @property
    def gain(self) -> float | None:
        """How many times as fast as the defaults of this version the best are."""
        return ratio(self.default_s, self.best_s)

    def to_json(self) -> dict[str, Any]:
        """Plain data, times in milliseconds."""
        data: dict[str, Any] = to_json(self)
        return data | {
            "share": self.share,
            "change": self.change,
            "default_change": self.default_change,
            "gain": self.gain,
        }


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One task: its default and the schedule chosen among the best, in turn in fresh processes after the search."""

    key: str
    op: str
    occurrences: int  # of the task in the model, also where it may stand for others or others for it
    chosen: int  # of these that the tuned model runs
    trials: int  # all that the database knows for this target
    flops: int
    default_s: Time  # None where the default schedule failed
    best_s: Time  # None where no schedule holds
    fraction_of_peak: float | None  # of the machine's multiply-add peak, see `machine_rates`; None: not known
    schedule: dict[str, Any]
    default_interval_s: TimeInterval = None  # of `default_s`, and the next of `best_s`; None: not known
    best_interval_s: TimeInterval = None
    noise: str = ""  # why the machine was too busy to rely on the times, for people; empty where it was not
    default_key: Annotated[str, JsonName("default_schedule")] = ""  # another version may have another default
    job_trials: int | None = None  # of `trials`, those that the job measured; None: from before that was told
    is_confirmed: Annotated[bool, JsonName("confirmed")] = True  # else there was nothing to compare it with
    retimed: Retimed | None = None  # by a job that re-times, where the task was stale

    @property
    def gflops(self) -> float | None:
        """Billions of floating-point operations a second at the best time."""
        return self.flops / self.best_s / 1e9 if self.best_s else None

    def to_json(self) -> dict[str, Any]:
        """Plain data, times in milliseconds."""
        data: dict[str, Any] = to_json(self)
        return data | {"gflops": self.gflops}


@dataclass(frozen=True, slots=True)
class Report:
    """One tuning job."""

    job_id: Annotated[int, JsonName("job")]
    model: str
    target: str
    trials: int  # measured by this job, over all the processes it took
    seconds: float  # of this process
    tasks: tuple[TaskReport, ...]
    default_s: Time  # the whole model on default schedules, and tuned, run in turn; None where the schedule of any
    tuned_s: Time  # task is known to fail, so that it can't be run
    peak_gflops: float | None  # None where the target is another machine
    failed: Mapping[str, int]  # status -> trials of this job, but for those that were taken back
    fallback: Mapping[str, int]  # op -> nodes without a native kernel
    whole_model: str = ""  # why the whole model was not timed, one line; empty where it was
    default_fault: str = ""  # why it can't be run on its default schedules, one line; empty where it can
    ended_by: SearchEnd | None = None  # None in a report from before that was told, and where nothing was searched
    outcome: JobOutcome | None = None  # likewise
    default_interval_s: TimeInterval = None  # of `default_s`
    tuned_interval_s: TimeInterval = None
    speedup_interval: Interval | None = None  # of the ratio of both, opening by opening
    tasks_default_s: Time = None  # what its tasks take of a run on defaults by their own times; None: not known
    tasks_apart_s: Time = None  # the same on their best schedules, without segments
    rejected_s: Time = None  # where the defaults were kept, what a run takes on what was found instead
    rejected_interval: Interval | None = None  # how many times as fast that was
    noise: str = ""  # why the machine was too busy to rely on these, for people; empty where it was not
    runtime_nodes: int = 0  # native nodes that are no task, but the runtime's own
    peak_noise: str = ""  # why the machine may reach more than `peak_gflops`, for people
    voided: int = 0  # trials of this job that people took back by its end
    regressed: int = 0  # tasks that this job confirmed to be slower than they were before
    vendor: VendorTime | None = None  # the whole model in a vendor's runtime; None: nobody asked for it
    own_outcome: JobOutcome | None = None  # where that is taken, what came of our kernels, which all times above are of
    precision: str = Precision.AS_GIVEN.value
    precision_errors: Mapping[str, float | None] = field(default_factory=dict)  # by output: see `precision_error`
    upgrade: Upgrade | None = None  # of a job that re-times

    @property
    def speedup(self) -> float | None:
        """The speed-up of the model over its defaults, as our kernels run it; None where it was not timed."""
        return ratio(self.default_s, self.tuned_s)

    @property
    def kernels_s(self) -> float | None:
        """Seconds of a run of the tuned model that its tasks take, by their own times; None where one holds nowhere."""
        is_default = (self.own_outcome or self.outcome) is JobOutcome.DEFAULTS_KEPT
        used = [(task.chosen, task.default_s if is_default else task.best_s) for task in self.tasks if task.chosen]
        known_s = [count * time_s for count, time_s in used if time_s is not None]
        return sum(known_s) if len(known_s) == len(used) else None

    def to_json(self) -> dict[str, Any]:
        """Plain data, times in milliseconds; `from_json` inverts it but for the last bits of times."""
        data: dict[str, Any] = to_json(self)
        return data | {
            "tasks": [task.to_json() for task in self.tasks],
            "upgrade": self.upgrade and self.upgrade.to_json(),
            "fallback_share": fallback_share(self.fallback, in_ms(self.kernels_s), in_ms(self.tuned_s)),
            "speedup": self.speedup,
            "tasks_tuned_ms": in_ms(self.kernels_s),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Report:
        """The inverse of `to_json`. Raises ValueError on other data."""
        # A job of before there was a choice told of no tasks that are chosen.
        tasks = [{"chosen": task["occurrences"]} | task for task in data["tasks"]]
        return from_json(Report, {**data, "tasks": tasks})
