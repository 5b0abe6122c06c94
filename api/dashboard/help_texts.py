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
    "expected of more": "How much faster more searching should make the model, by how fast its tasks improved. "
    "It is an estimate by the search itself, not a measurement.",
}


def help_text(term: str) -> str:
    """The help of a term. Raises KeyError where it has none, which is a bug."""
    return _TEXTS[term]


def terms() -> tuple[str, ...]:
    """All terms with a help."""
    return tuple(_TEXTS)
