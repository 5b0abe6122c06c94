"""Help texts: what each figure of the pages is, and how it was measured, in two sentences."""

from __future__ import annotations

_TEXTS = {
    "speed-up": "How many times as fast as on its default schedules the model runs on the best schedules found. At the "
    "end of a job both are timed in turn, in fresh processes on a checked machine, and the interval is that of 95%.",
    "time of a run": "How long one inference of the whole model takes. It is the median of runs in fresh processes; "
    "before the job's end it is the sum of what its tasks took as trials.",
    "trials": "Schedules that were compiled, checked against the reference and timed. Failed ones are counted too: "
    "the search learns from them.",
    "searched for": "The time in which a tuner process was at work on the job, without pauses and without waiting. It "
    "is taken from the job's events.",
    "began with": "The cost model that the job asked first which schedules to try: the newest snapshot that there was "
    "when it began, above the base model. It follows from when both were stored.",
    "curve of a task": "How many times as fast as by default the task was, as the job went on; the figure at the curve "
    "is the highest point of it. The curve is of trials of this job, the gain below it what the table has.",
    "importance of knobs": "Which part of the differences between the times of trials each knob explains by itself. "
    "The log of the time is fitted by one effect a knob on half of the trials and judged on the others, with intervals "
    "of 95%.",
    "share of a node": "What part of one run of the model a node takes. It is the time of its task by itself, as "
    "confirmed or timed as a trial, over that of the run; what all together lack is time between tasks.",
    "quiet": "The part of the time in which the machine had its processors for what was timed: less than 5% stolen, "
    "and others on less than a tenth of them. A sample is taken every 10 seconds, by the process at work on the job.",
    "steal": "Time in which the processors of a virtual machine ran something else. The kernel counts it in "
    "/proc/stat; from 5% on times can't be relied on.",
    "other load": "What part of the processors that are timed on other processes than the tuner's took, those that "
    "are left free not counted. It is what /proc/stat counts as busy without what the tuner's processes used.",
    "clock": "How fast the processors that are timed on ran, or the GPU. It is read now and then; a virtual machine "
    "may tell the same number all the time.",
    "busy trials": "Trials that ended in a sample of 10 seconds in which the machine was not quiet. Their times may be "
    "too long; what was found is confirmed afterwards, side by side with the default.",
    "marked trials": "Trials whose own time has the mark ~: its samples lie too far apart, or what it was timed beside "
    "was held up. That can be so on a machine that looks quiet.",
    "spread of times": "How far the times of one schedule lay apart, as a part of their median: the middle one of "
    "the trials of a moment. From a tenth on a time has the mark ~.",
    "drift": "How many times its own time the schedule took that trials were timed beside. Times are divided by it, so "
    "what holds up both alike does no harm.",
    "load of the machine": "What part of all its processors was busy, with the tuner's own work and everybody else's. "
    "The kernel counts it in /proc/stat.",
    "pressure": "The part of the time in which some process waited for a processor. The kernel counts it in "
    "/proc/pressure/cpu, and the tuner's own builds are in it.",
    "throttled": "The part of the time in which a quota held processors of the container up. Of a GPU: how often "
    "its clock was down by heat or lack of power.",
    "temperature": "That of the hottest processor, or of the GPU. It is read from the machine's own thermometer.",
    "gain over all": "The geometric mean of how many times as fast as by default the models run, each by its newest "
    "job on a kind of machine. Only models that were timed as a whole, on a quiet machine, count; those that stayed on "
    "their defaults do too.",
    "regression": "A task that a job confirmed to be slower than the same task was before on that kind of machine. "
    "Both are medians of runs in fresh processes, and their 95% intervals do not overlap.",
    "saved": "How much less time one run of each model takes than on its default schedules, added up. It is of the "
    "same models and measurements as the gain over all.",
    "expected of more": "How much faster more searching should make the model, by how fast its tasks improved. "
    "It is an estimate by the search itself, not a measurement.",
    "expected of the rest": "How much faster the rest of the budget should make the model. It is an estimate by the "
    "search itself, of how fast its tasks improved, not a measurement.",
    "failed trials": "Candidates that did not compile, computed something wrong, or did not end well. "
    "They are data: the search learns from them, and nothing of them is ever used.",
    "rank correlation": "How alike the cost model's order of this job's trials and the measured one are: 1 is the same "
    "order, 0 is chance. It is Spearman's, of a sample of the trials of each task.",
    "trust": "Whether the speed-up would be found again. It can be relied on where the whole model was timed in turn "
    "with its default, on a machine that was quiet, and the 95% interval of the gain is clear of 1.",
    "worth more time": "Whether more searching should bring 1% or more. It is an estimate by the search itself, of how "
    "fast its tasks improved.",
    "slower for certain": "A time is slower or faster for certain where the 95% intervals of both do not meet. Both "
    "must be confirmed on the same target, on quiet machines, and both with warm caches or both with cold ones.",
}


def help_text(term: str) -> str:
    """The help of a term. Raises KeyError where it has none, which is a bug."""
    return _TEXTS[term]


def terms() -> tuple[str, ...]:
    """All terms with a help."""
    return tuple(_TEXTS)
