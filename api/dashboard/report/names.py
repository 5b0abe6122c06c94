"""Names of a model's nodes, from its file on this machine: they are in no database, but where the model was sent with
them.
"""

from __future__ import annotations

from pathlib import Path

from tunewright.db.job import Job
from tunewright.db.store import Store
from tunewright.graph.numerics import Precision
from tunewright.graph.onnx_import.structure import strip
from tunewright.tuner.errors import Refused
from tunewright.tuner.models.graph_of_model import graph_of_model
from tunewright.tuner.models.model import open_for
from tunewright.tuner.models.task_graph import TaskGraph
from tunewright.tuner.text import printable


def named_graph(store: Store, job_id: int, model: Path) -> TaskGraph:
    """The graph of a job's model, read from a file, with the names of its nodes.

    It is the job's where it has the same tasks as often, in the same order: weights make no difference. Raises Refused
    where it is not, ModelError where it can't be read, NotFound, StoreError.
    """
    job = store.jobs.get(job_id)
    if not job.spec.model_sha256:
        raise Refused(f"job {job_id} is of tasks alone, without a model: leave --names out")
    if job.spec.precision not in set(Precision):
        raise Refused(f"job {job_id} is in precision {printable(job.spec.precision)}, which this version does not know")
    target = store.target(job.spec.target_key) if job.spec.target_key else None
    dims = job.spec.settings.get("dims", {})
    network = open_for(target, model, dims, precision=Precision(job.spec.precision))
    tasks = [(key, count) for key, (_, count) in network.tasks.items()]
    if tasks != [(task.task_key, task.occurrences) for task in job.spec.tasks]:
        raise Refused(_why_not(job, model, network.sha256))
    return graph_of_model(network, with_names=True)


def _why_not(job: Job, model: Path, sha256: str) -> str:
    file = printable(model)
    if job.spec.model_sha256 in (sha256, strip(model).sha256):
        return f"{file} is the model of job {job.id}, but this version cuts it into other tasks: leave --names out"
    label = printable(job.label) or job.spec.model_sha256[:12]
    return f"{file} is not the model of job {job.id} ({label}): it has other tasks"
