"""`tunewright submit` and `jobs`: models sent to a server, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from tunewright.tuner.cli.answers import Interrupted, messages
from tunewright.tuner.commands import tune
from tunewright.tuner.commands.tables import new_table, print_table
from tunewright.tuner.errors import Refused
from tunewright.tuner.progress import showing
from tunewright.tuner.settings import settings
from tunewright.tuner.text import clock, printable

from .client import Client, Job, ServiceError
from .watching import Watched

TARGET_LETTERS = 12
"""Of a target's key, in tables."""


def connected(server: str | None) -> Client:
    """The client of the server named, or else of TUNEWRIGHT_SERVER. Raises Refused where there is none."""
    address = settings().server if server is None else server
    if not address.strip():
        raise Refused("which server? Give --server URL or set TUNEWRIGHT_SERVER; tunewright serve starts one")
    said: set[str] = set()

    def waits(error: ServiceError) -> None:
        if str(error) not in said:
            said.add(str(error))
            messages().print(f"{error}; trying again")

    return Client(address, waits=waits)


def watched(console: Console, client: Client, job: Job, server: str | None) -> Job:
    """Show how a job goes; the job when it is finished. Raises Interrupted, after which the job goes on."""
    if job.is_finished:
        return job
    try:
        with showing(console, None if not settings().debug else False) as show:
            view = Watched(job)
            show(view.snapshot())
            for event in client.events(job.id):
                view.tell(event)
                show(view.snapshot())
        return client.job(job.id)
    except KeyboardInterrupt:
        raise Interrupted(f"the job goes on; to watch it again: {_command('watch', job, server)}") from None


def _command(verb: str, job: Job, server: str | None) -> str:
    address = "" if server is None else f" --server {server}"
    return f"tunewright jobs {verb} {job.id}{address}"


def render_submitted(console: Console, job: Job, server: str | None) -> None:
    """What a job is called and how to follow it."""
    render_state(console, job)
    if not job.is_finished:
        console.print(f"to watch it: {_command('watch', job, server)}", soft_wrap=True)


def render_state(console: Console, job: Job) -> None:
    """Where a job stands, in a line."""
    wish = f", asked to {printable(job.wish)}" if job.wish else ""
    console.print(f"job {job.id} is {printable(job.state)}{wish}: {printable(job.label)}", soft_wrap=True)


def render_job(console: Console, job: Job) -> None:
    """A job in lines, and its result as `tune` prints it."""
    if job.result is not None:
        _render_result(console, job.result)
        return
    render_state(console, job)
    if job.error:
        console.print(printable(job.error), soft_wrap=True)
    trials = (job.progress or {}).get("trials", 0)
    limit = "" if job.minutes is None else f" or {job.minutes:g} minutes"
    console.print(f"{trials} of {job.trials} trials{limit}, {clock(job.spent_s)} of searching, priority {job.priority}")
    console.print(f"{len(job.tasks)} tasks for target {printable(job.target)[:TARGET_LETTERS]}")
    if job.holder:
        console.print(f"at work on it: {printable(job.holder)}", soft_wrap=True)


def _render_result(console: Console, result: Mapping[str, Any]) -> None:
    try:
        tune.render(console, result)
    except (KeyError, TypeError, ValueError) as error:
        raise ServiceError(f"the server's result is of another version of Tunewright: {error!r}") from error


def summary(job: Job) -> dict[str, Any]:
    """A job in a list."""
    progress = job.progress or {}
    return {
        "id": job.id,
        "state": job.state,
        "label": job.label,
        "target": job.target,
        "tasks": len(job.tasks),
        "trials": progress.get("trials", 0),
        "most_trials": job.trials,
        "speedup": progress.get("speedup"),
        "priority": job.priority,
        "created_at": job.created_at.isoformat(),
        "updated_at": job.updated_at.isoformat(),
    }


def render_jobs(console: Console, data: Mapping[str, Any]) -> None:
    """A table of jobs."""
    if not data["jobs"]:
        console.print("no jobs")
        return
    table = new_table(console, ("state", "model", "target"), ("job", "tasks", "trials", "priority"))
    for job in data["jobs"]:
        table.add_row(
            printable(job["state"]),
            Text(printable(job["label"])),
            printable(job["target"])[:TARGET_LETTERS],
            str(job["id"]),
            str(job["tasks"]),
            f"{job['trials']}/{job['most_trials']}",
            str(job["priority"]),
        )
    print_table(console, table)
