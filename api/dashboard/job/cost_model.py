"""What the cost model is worth on a job: how well it ranks the job's trials, task by task, and which models those are.

It is made at once from a sample of the trials of the heaviest tasks, and takes a second or two: `Descriptions.analyse`
makes it in a thread, and keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median

from pydantic import Field

from tunewright.costmodel.validation import FEWEST
from tunewright.db.job import EventKind, Job
from tunewright.db.store import Store
from tunewright.tuner.explain.calibration import calibrations
from tunewright.tuner.text import counted

from ...http.descriptions import Descriptions
from ...http.schemas.base import Answer
from ..job_line import JobLine
from ..views import CalibrationShown, Text
from .history import JobHistory
from .tasks import TaskLine

MOST_JUDGED = 12
"""Tasks that models are asked about, the heaviest."""

SAMPLED = 240
"""Trials of each that are looked at."""

LISTED = 100
"""Snapshots among which those of a job are sought: the newest."""


class JudgedTask(Answer):
    """How well the models rank a job's trials of a task."""

    key: Text
    op: Text
    trials: int = Field(description="Trials of the job that were looked at.")
    models: list[CalibrationShown] | None = Field(
        description="The base model, and the newest snapshot, as far as present; null while that is being found out."
    )


class Agreement(Answer):
    """How well a model ranks the trials of a job, over its tasks."""

    model: Text
    tasks: int = Field(description="That had enough trials to say.")
    rank_correlation: float = Field(description="The median of theirs: 1 is perfect, 0 is chance.")
    pairwise: float | None = Field(description="Likewise, the share of the pairs that it puts in the right order.")
    has_learned_from_these: bool = Field(description="Whether some of these trials were there when it learned.")


class JobModels(Answer):
    """The cost models of a job."""

    kind: Text = Field(description="Of its target.")
    began_with: int | None = Field(
        description="The newest snapshot that there was when it was taken up first; null: there was none."
    )
    taught: list[int] = Field(description="The snapshots that were made of its trials, the newest first.")
    tasks: list[JudgedTask] = Field(
        description=f"The heaviest tasks with {counted(FEWEST, 'trial')} or more, which may say something, "
        f"{MOST_JUDGED} at most."
    )

    @property
    def is_pending(self) -> bool:
        """Whether some of it is still being found out."""
        return any(task.models is None for task in self.tasks)

    @property
    def agreements(self) -> list[Agreement]:
        """What the tasks come to, by model."""
        by_model: dict[str, list[CalibrationShown]] = {}
        for model in (model for task in self.tasks for model in task.models or ()):
            if model.rank_correlation is not None:
                by_model.setdefault(model.model, []).append(model)
        return [_agreement(name, models) for name, models in by_model.items()]

    @property
    def unseen(self) -> Agreement | None:
        """That of the newest model that has not learned from these trials: it alone tells what to expect of others."""
        return next((one for one in reversed(self.agreements) if not one.has_learned_from_these), None)


def _agreement(name: str, models: Sequence[CalibrationShown]) -> Agreement:
    pairwise = [model.pairwise for model in models if model.pairwise is not None]
    return Agreement(
        model=name,
        tasks=len(models),
        rank_correlation=median(model.rank_correlation or 0.0 for model in models),
        pairwise=median(pairwise) if pairwise else None,
        has_learned_from_these=any(model.has_learned_from_these for model in models),
    )


def job_models(store: Store, job: Job, history: JobHistory, tasks: Sequence[TaskLine]) -> JobModels | None:
    """The models of a job, before they are asked about its tasks; None while it has no target. Raises StoreError."""
    if not job.spec.target_key:
        return None
    kind = store.target(job.spec.target_key).kind
    heads = store.snapshots.list(kind, LISTED)
    begun_at = next((event.created_at for event in history.spine if event.kind is EventKind.STARTED), None)
    before = (head.id for head in heads if begun_at is not None and head.made_at < begun_at)
    judged = [task for task in tasks if task.trials >= FEWEST][:MOST_JUDGED]
    return JobModels(
        kind=kind,
        began_with=next(before, None),
        taught=[head.id for head in heads if head.job_id == job.id],
        tasks=[JudgedTask.show(task, trials=0, models=None) for task in judged],
    )


async def ask_models(store: Store, descriptions: Descriptions, job: JobLine, models: JobModels) -> JobModels:
    """The same with what the models say of the tasks, as far as that is known by now. Raises StoreError."""
    keys = [task.key for task in models.tasks]
    mark = job.trials, job.state, models.began_with, models.taught[:1], keys
    ask = partial(_judge, store, job.id, job.target.key, keys)
    told = await descriptions.analyse(("models", job.id), mark, ask) or {}
    tasks = [
        task.model_copy(update=dict(zip(("trials", "models"), told[task.key], strict=True)))
        if task.key in told
        else task
        for task in models.tasks
    ]
    return models.model_copy(update={"tasks": tasks})


def _judge(
    store: Store, job_id: int, target_key: str, task_keys: Sequence[str]
) -> dict[str, tuple[int, list[CalibrationShown]]]:
    """By task key, the trials that were looked at, and what each model makes of them. Raises StoreError."""
    target = store.target(target_key)
    told = {}
    for key in task_keys:
        lines = store.trials.sample(key, target_key, SAMPLED, job_id)
        models = calibrations(store, store.task(key), target, lines)
        told[key] = len(lines), [CalibrationShown.show(one, trials=len(one.points), best_rank=None) for one in models]
    return told
