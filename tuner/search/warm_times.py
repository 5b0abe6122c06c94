"""WarmTimes: of which tasks the times with warm caches count, and not those of trials."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Status
from tunewright.workers.measure.cache_flush import LASTING_S, is_warm_in_model
from tunewright.workers.measure.sampling import interval

from .comparison_rule import Comparison
from .context import JobContext
from .task_state import PACKED, time_s


@dataclass(frozen=True, slots=True)
class WarmTimes:
    """Whether a model's constants stay in the caches from run to run, and times are judged so.

    Trials find constants as far away as they are in most models. Where all those of this model stay in the caches from
    run to run, finalists are judged by their times with warm caches: one that reads more constants to save arithmetic
    may be the faster one then, and the whole model slower with the other. Long runs are judged as trials are: it
    matters less to them where constants come from, and there are few samples with warm caches.
    """

    target: Target
    constant_bytes: int  # of the whole model, in the form that kernels read

    @staticmethod
    def of(context: JobContext) -> WarmTimes:
        """Those of a job's model."""
        uses = zip(context.states, context.assembly.separate_uses, strict=True)
        return WarmTimes(context.target, PACKED * sum(count * state.task.constant_bytes for state, count in uses))

    def count(self, task: Task, fastest_s: float) -> bool:
        """Whether runs are short, and the constants stay in the caches from one run of the model to the next."""
        target = self.target
        is_near = is_warm_in_model(task.constant_bytes, self.constant_bytes, target.l2_bytes, target.l3_bytes)
        return is_near and fastest_s < LASTING_S

    def judge(self, task: Task, compared: Comparison) -> Comparison:
        """Schedules of a task with the times that count: with warm caches for all of them, or for none."""
        works = [m for _, m in compared if m.status is Status.OK]
        fastest_s = min(map(time_s, works), default=inf)
        if not self.count(task, fastest_s) or any(m.warm_s is None for m in works):
            return compared
        return [(schedule, _with_warm_times(m) if m.status is Status.OK else m) for schedule, m in compared]


def _with_warm_times(measurement: Measurement) -> Measurement:
    """The measurement with its times with warm caches as those that count."""
    samples_s = measurement.warm_samples_s
    low_s, high_s = interval(samples_s)[1:] if samples_s else (None, None)
    return replace(measurement, samples_s=samples_s, median_s=measurement.warm_s, low_s=low_s, high_s=high_s)
