"""Help texts: what each figure of the pages is, and how it was measured, in two sentences."""

from __future__ import annotations

_TEXTS = {
    "added to a run": "How much more or less time a run takes by what changed of the task. It is the difference of "
    "both times, as often as the model runs the task, over what all tasks of the baseline take together.",
    "began with": "The cost model that the job asked first which schedules to try: the newest snapshot that there "
    "was when it began, above the base model. It follows from when both were stored.",
    "best of five": "The speed of the fastest of the five schedules that a model ranks first, as a part of that of "
    "the fastest of all. It is by their measured times, and a model that has learned from these knows more than of "
    "others.",
    "best time": "How long one run of the task takes on the fastest schedule known. A confirmed one is a median of "
    "runs in fresh processes, in turn with the default; one of a trial is the median of its samples.",
    "busy trials": "Trials that ended in a sample of 10 seconds in which the machine was not quiet. Their times may "
    "be too long; what was found is confirmed afterwards, side by side with the default.",
    "clock": "How fast the processors that are timed on ran, or the GPU. It is read now and then; a virtual machine "
    "may tell the same number all the time.",
    "coverage": "How many measured times are within two deviations of what the model predicted, but for one factor a "
    "task: 95% is right, less is too sure of itself. It is counted on tasks that the model has not learned from.",
    "curve of a job": "How the speed-up went from the begin of the job to its end; the dashes are 1. It is of the "
    "times of trials, which the search goes by.",
    "curve of a task": "How many times as fast as by default the task was, as the job went on. The curve is of trials "
    "of this job, the gain below it what the table has; the border is thick where most is expected of more trials.",
    "default time": "How long one run of the task takes on the schedule that its sketch prefers without any "
    "measurement. It is timed in turn with the best, in fresh processes, and before that as a trial like the others.",
    "devices": "Processors and GPUs that candidates are timed on, one at a time on each. Tuner processes tell theirs "
    "as long as they are at work.",
    "drift": "How many times its own time the schedule took that trials were timed beside. Times are divided by it, "
    "so what holds up both alike does no harm.",
    "error of a trial": "The largest error of the outputs beside the reference, as a part of the largest magnitude. "
    "It is computed before the schedule is timed, on made-up inputs.",
    "failed trials": "Candidates that did not compile, computed something wrong, or did not end well. They are data: "
    "the search learns from them, and nothing of them is ever used.",
    "first pick": "The speed of the schedule that a model ranks first, as a part of that of the fastest of all. It "
    "is by their measured times, and a model that has learned from these knows more than of others.",
    "gain of a task": "How many times as fast as by default one run of the task is. It follows from both times, and "
    "so does its 95% interval: one that reaches down to 1 is none for certain.",
    "gain over all": "The geometric mean of how many times as fast as by default the models run, each by its newest "
    "job on a kind of machine. Only models that were timed as a whole, on a quiet machine, count; those that stayed "
    "on their defaults do too.",
    "importance of knobs": "Which part of the differences between the times of trials each knob explains by itself. "
    "The log of the time is fitted by one effect a knob on half of the trials and judged on the others, with "
    "intervals of 95%.",
    "interval": "Where the median lies with a probability of 95%. It follows from the samples of the trial alone, so "
    "it says nothing of what changes from one process to the next.",
    "jobs begin with": "The cost model that a job of now asks first which schedules to try. It is the newest "
    "snapshot that this version can use, above the base model.",
    "load of the machine": "What part of all its processors was busy, with the tuner's own work and everybody "
    "else's. The kernel counts it in /proc/stat.",
    "lookups pick by": "The cost model that answers lookups of tasks that nobody measured. It is the newest snapshot "
    "if that is no worse than what it stands on, on tasks that it has not learned from.",
    "marked trials": "Trials whose own time has the mark ~: its samples lie too far apart, or what it was timed "
    "beside was held up. That can be so on a machine that looks quiet.",
    "more expected": "How much faster more searching should make the model: the rest of the budget while it searches, "
    "afterwards the same time once more. It is an estimate by the search itself, of how fast its tasks improved, not a "
    "measurement.",
    "new trials": "Trials that no snapshot in use has learned from. They are counted in the database, of all kinds "
    "of targets.",
    "of what is allowed": "How near the best schedule is to the arithmetic or the bandwidth that limits it. "
    "Operations and bytes follow from the task by rule; the peak was measured on the machine or is estimated, "
    "bandwidths are estimated.",
    "other load": "What part of the processors that are timed on other processes than the tuner's took, those that "
    "are left free not counted. It is what /proc/stat counts as busy without what the tuner's processes used.",
    "pairwise accuracy": "Of two schedules whose intervals don't meet, how often the model ranks the faster one "
    "higher: 50% is chance. Both were measured, and their times are compared with the model's order.",
    "part of all time lost or saved": "What part of the time that all slower tasks lose, or all faster ones save, is "
    "this task's. It is its part of a run over the sum of those of all tasks that changed the same way.",
    "predicted time": "What the newest cost model expects of the schedule. It is computed from features of the "
    "loops, and nothing was run.",
    "pressure": "The part of the time in which some process waited for a processor. The kernel counts it in "
    "/proc/pressure/cpu, and the tuner's own builds are in it.",
    "quiet": "The part of the time in which the machine had its processors for what was timed: less than 5% stolen, "
    "and others on less than a tenth of them. A sample is taken every 10 seconds, by the process at work on the job.",
    "rank correlation": "How alike the cost model's order of this job's trials and the measured one are: 1 is the "
    "same order, 0 is chance. It is Spearman's, of a sample of the trials of each task.",
    "regression": "A task that a job confirmed to be slower than the same task was before on that kind of machine. "
    "Both are medians of runs in fresh processes, and their 95% intervals do not overlap.",
    "running": "Jobs that a process works on now. Their leases in the database tell, which a process renews as long "
    "as it is alive.",
    "saved": "How much less time one run of each model takes than on its default schedules, added up. It is of the "
    "same models and measurements as the gain over all.",
    "searched for": "The time of searching, which a limit of time is of, without pauses. It ends where the search "
    "does: what is confirmed and timed behind it takes nothing of the limit.",
    "share of a node": "What part of one run of the model a node takes. It is the time of its task by itself, as "
    "confirmed or timed as a trial, over that of the run; what all together lack is time between tasks.",
    "share of a run": "What part of one run of the model the task takes. It is its best time, as often as the model "
    "runs it, over that of a run, or over the sum of all tasks where the model was not timed as a whole.",
    "share of what was saved": "What part of the time that all tasks save is this task's. It follows from the "
    "default and the best time of each, as often as the model runs it.",
    "slower for certain": "A time is slower or faster for certain where the 95% intervals of both do not meet. Both "
    "must be confirmed on the same target, on quiet machines, and both with warm caches or both with cold ones.",
    "snapshots": "Layers of the cost model that were fitted to trials of this database and stored. They are counted "
    "as listed below.",
    "speed of a schedule": "Floating-point operations a second. It is what the task is counted with, over the time "
    "of the trial.",
    "speed-up": "How many times as fast as on its default schedules the model runs on the best schedules found. At "
    "the end of a job both are timed in turn, in fresh processes on a checked machine, and the interval is that of "
    "95%.",
    "spread of times": "How far the times of one schedule lay apart, as a part of their median: the middle one of "
    "the trials of a moment. From a tenth on a time has the mark ~.",
    "steal": "Time in which the processors of a virtual machine ran something else. The kernel counts it in "
    "/proc/stat; from 5% on times can't be relied on.",
    "still expected": "What part of a run more searching should save at this task. It is an estimate by the search "
    "itself, of how fast the task improved, not a measurement.",
    "sum of tasks": "What all tasks of the model take together, each as often as the model runs it. Each was timed "
    "by itself, so that is another figure than one run.",
    "temperature": "That of the hottest processor, or of the GPU. It is read from the machine's own thermometer.",
    "throttled": "The part of the time in which a quota held processors of the container up. Of a GPU: how often its "
    "clock was down by heat or lack of power.",
    "time as a trial": "The median of the samples that the search took of the schedule, against a candidate that "
    "stays loaded. The best of many is partly the luckiest, so winners are timed again in fresh processes.",
    "time error": "How far predicted times are from the measured ones, in the median. It is of tasks that the model "
    "has no trial of.",
    "time left": "How long the search will go on by its budget. Where trials are what bounds it, that is an estimate "
    "by the pace of the last minutes.",
    "time of a record": "The median of what the best schedule known of the task takes, with its 95% interval. It was "
    "timed in turn with the default in fresh processes, or as a trial, or elsewhere, as the line says.",
    "time of a run": "How long one inference of the whole model takes. It is the median of runs in fresh processes; "
    "before the job's end it is the sum of what its tasks took as trials.",
    "time of a schedule": "How long one run of the task takes on this schedule. A confirmed one is a median of runs in "
    "fresh processes, in turn with the default; one of a trial is the median of its samples.",
    "trials": "Schedules that were compiled, checked against the reference and timed. Failed ones are counted too: "
    "the search learns from them.",
    "trials of a task": "Schedules of the task that were compiled, checked against the reference and timed, by all "
    "jobs on this target. Failed ones are counted too; imported ones are told apart.",
    "trust": "Whether the speed-up would be found again. It can be relied on where the whole model was timed in turn "
    "with its default, on a machine that was quiet, and the 95% interval of the gain is clear of 1.",
    "tuner processes": "Processes that take jobs and have devices. Each says again and again that it is alive, and "
    "one that was not heard of for a minute is not counted.",
    "utilisation": "Which part of the time tuner processes had a job. It follows from the events of jobs, and is the "
    "mean of the processes by how long each was there.",
    "waiting": "Jobs that no process has taken yet. They are counted in the queue, and the time is that of the one "
    "that waits longest.",
    "worth more time": "Whether more searching should bring 1% or more, and a minute of it 0.05% or more: less is "
    "little. It is an estimate by the search itself, of how fast its tasks improved, and noisy trials, which make more "
    "of it than there is, tell no more than that it is little.",
}


def help_text(term: str) -> str:
    """The help of a term. Raises KeyError where it has none, which is a bug."""
    return _TEXTS[term]


def terms() -> tuple[str, ...]:
    """All terms with a help."""
    return tuple(_TEXTS)
