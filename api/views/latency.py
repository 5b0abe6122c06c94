"""Latency: what one run of a job's model takes, before and after, and how sure that is."""

from __future__ import annotations

from pydantic import Field

from tunewright.db.jobs import Job
from tunewright.tuner.insight.gain import Gain, GainOf
from tunewright.tuner.jobs.report import Outcome

from ..schemas import Answer
from .said import Said


class Latency(Answer):
    """What one run of the whole model takes."""

    of: GainOf = Field(
        description="What the times are of: runs of the whole `model`, its `tasks` timed side by side, or `trials`."
    )
    default_ms: float | None = Field(description="On default schedules.")
    tuned_ms: float | None = Field(description="As it is run from now on, or by the best trials so far.")
    default_interval_ms: tuple[float, float] | None = Field(description="95% interval of the median; null: not known.")
    tuned_interval_ms: tuple[float, float] | None
    speedup: float | None = Field(description="The ratio of both.")
    speedup_interval: tuple[float, float] | None
    outcome: Outcome | None = Field(description="What the job did for the model; null: it has not come so far.")
    rejected_ms: float | None = Field(
        description="Where the defaults were kept, what a run takes on what was found instead; null: nothing was."
    )
    rejected: float | None = Field(description="How many times as fast as by default that is.")
    rejected_interval: tuple[float, float] | None
    why_not: Said = Field(description="Why a finished job has not timed the model; empty where it has.")
    noise: Said = Field(description="Why the machine was too busy to rely on the times; empty where it was not.")

    @property
    def is_timed(self) -> bool:
        """Whether the model was run."""
        return self.of is GainOf.MODEL

    @property
    def is_kept(self) -> bool:
        """Whether the model stays on its defaults."""
        return self.outcome is Outcome.DEFAULTS_KEPT

    @staticmethod
    def of_job(job: Job) -> Latency:
        """That of a job as it stands."""
        found = Gain.told(job.progress, job.result)
        return Latency(
            of=found.of,
            default_ms=found.default_ms,
            tuned_ms=found.tuned_ms,
            default_interval_ms=found.default_interval_ms,
            tuned_interval_ms=found.tuned_interval_ms,
            speedup=found.speedup,
            speedup_interval=found.speedup_interval,
            outcome=found.outcome,
            rejected_ms=found.rejected_ms,
            rejected=found.rejected,
            rejected_interval=found.rejected_interval,
            why_not=found.why_untimed,
            noise=found.noise,
        )
