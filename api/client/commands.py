"""`tunewright submit` and `jobs`: submit models to a server, follow and steer jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from tunewright.tuner.cli import tune_report
from tunewright.tuner.cli.answers import CommandInterrupt, messages
from tunewright.tuner.cli.tables import figures, new_table, print_legends, print_table
from tunewright.tuner.errors import Refused
from tunewright.tuner.explain import values
from tunewright.tuner.explain.gain import GainBasis, ModelGain, TaskSum
from tunewright.tuner.search.report import verdict
from tunewright.tuner.search.stage import stage_words
from tunewright.tuner.search.view import moment_view
from tunewright.tuner.text import (
    cause,
    counted,
    duration,
    gain_within,
    is_clear,
    limits,
    mark_noise,
    mark_trial,
    percent,
    printable,
    search_time,
    short,
    sized_name,
    times,
    trials_done,
    until_words,
)

from . import Client, Job, ServiceError
from .address import server_address
from .watch import JobMonitor

NO_DEVICE = "no device yet"
"""The target of a job that waits for one."""

NO_JOB_OF_TUNE = "a job that tunewright tune began has none: the same tune command goes on with it"
"""Note about jobs of `tune`, where no server is named."""

MOST_AHEAD = 1000
"""Jobs looked at to say how many go before one."""

OPTIONS = {f"#/{name}": f"--{name}" for name in ("target", "threads", "trials", "minutes", "until", "priority", "seed")}
OPTIONS |= {
    "#/tags": "--tag",
    "#/add_tags": "--tag",
    "#/remove_tags": "--untag",
    "#/notes": "--note",
    "#/label": "--name",
}
"""Pointers into a request, as the command line calls what is there."""


def connect(server: str | None, otherwise: str = "tunewright serve starts one") -> Client:
    """The client of the server named, or else of TUNEWRIGHT_SERVER.

    Raises Refused where there is none; `otherwise` is what it says of that.
    """
    return Client(server_address(server, otherwise), waits=told_once())


def told_once() -> Callable[[ServiceError], None]:
    """A function that says why a request is repeated, each reason once."""
    notes: set[str] = set()

    def waits(error: ServiceError) -> None:
        text = f"{error}; trying again"
        if text not in notes:
            notes.add(text)
            messages().print(text)

    return waits


def watch_job(console: Console, client: Client, job: Job, server: str | None) -> Job:
    """Show how a job goes; the job when it is finished. Raises Interrupted, after which the job goes on."""
    if job.is_finished:
        return job
    view = JobMonitor(job, _ahead(client, job) if job.state == "queued" and job.target else 0)
    try:
        with moment_view(console) as show:
            show(view.moment())
            for event in client.events(job.id):
                view.update(event)
                show(view.moment())
        return client.job(job.id)
    except KeyboardInterrupt:
        how = f"the job is paused; to let it go on: {_command('resume', job, server)}" if view.is_paused else ""
        raise CommandInterrupt(
            f"{how or 'the job goes on'}; to watch it again: {_command('watch', job, server)}"
        ) from None


def _ahead(client: Client, job: Job) -> int:
    """How many jobs go before one that waits: those under way for its target, and those that are taken sooner."""
    place = (-job.priority, job.id)
    waiting = client.jobs("queued", target=job.target, limit=MOST_AHEAD)
    running = client.jobs("running", target=job.target, limit=MOST_AHEAD)
    others = sum(other.id != job.id for other in running)  # it may have been taken up by now
    return sum((-other.priority, other.id) < place for other in waiting) + others


@contextmanager
def option_names() -> Iterator[None]:
    """Report faults of a request by the names of the command line's options."""
    try:
        yield
    except ServiceError as error:
        faults = [(re.sub(r"/\d+$", "", pointer), detail) for pointer, detail in error.faults]  # of a list, its place
        if not faults or any(pointer not in OPTIONS for pointer, _ in faults):
            raise
        raise Refused("; ".join(f"{OPTIONS[at]}: {printable(detail)}" for at, detail in faults)) from error


def _command(verb: str, job: Job, server: str | None) -> str:
    address = "" if server is None else f" --server {server}"
    return f"tunewright jobs {verb} {job.id}{address}"


def note_existing(
    job: Job,
    trials: int | None,
    minutes: float | None,
    until: float | None,
    priority: int,
    tags: Sequence[str] = (),
    notes: str | None = None,
) -> str:
    """The note that an equal job existed already, and which of these it does not take over."""
    from tunewright.db.job import RETIME, SearchBudget

    is_search = RETIME not in job.settings
    bounds = {
        "trials": SearchBudget.of(trials, minutes, until).trials if is_search else trials,
        "minutes": minutes,
        "until": until,
        "priority": priority,
    }
    own = {"trials": job.trials, "minutes": job.minutes, "until": job.until, "priority": job.priority}
    standing = ", ".join([*limits(job.trials, job.minutes, job.until, job.before_s), f"priority {job.priority}"])
    text = f"job {job.id} was there already: {standing}"
    other = [f"--{name} {_option_text(name, bounds[name])}" for name, value in own.items() if bounds[name] != value]
    other += [f"--tag {printable(tag)}" for tag in tags if tag not in job.tags]
    other += ["--note"] if notes and notes.strip() != job.notes else []
    return f"{text}; not taken: {', '.join(other)}" if other else text


def _option_text(option: str, value: float | None) -> str:
    return "none" if value is None else percent(value) if option == "until" else format(value, "g")


def render_submission(console: Console, job: Job, server: str | None) -> None:
    """Print the number of a job and how to follow it."""
    render_state(console, job)
    if not job.is_finished:
        console.print(f"to watch it: {_command('watch', job, server)}", soft_wrap=True)


def name_of(job: Job) -> str:
    """A job's name for people: its label, or the begin of its model's digest, and its sizes, as pages have it."""
    name = printable(job.label) or short(job.model) or "tasks without a model"
    return sized_name(name, job.dims)


def render_state(console: Console, job: Job) -> None:
    """Print the state of a job, in one line."""
    wish = f", asked to {printable(job.wish)}" if job.wish else ""
    wish += (
        f", waiting for {printable(job.waits_for or 'a device')}" if job.state == "queued" and not job.target else ""
    )
    console.print(f"job {job.id} is {printable(job.state)}{wish}: {name_of(job)}", soft_wrap=True)


def render_extension(console: Console, job_id: int, job: Job) -> None:
    """Print which job goes on where the one of a number was extended, and by which limits."""
    if job.id != job_id:
        how = "a new job goes on from its trials" if job.is_new else "a job that was there already goes on"
        console.print(f"job {job_id} is finished: {how}", soft_wrap=True)
    render_state(console, job)
    console.print(f"it ends by: {', '.join(limits(job.trials, job.minutes, job.until, job.before_s))}", soft_wrap=True)


def _render_names(console: Console, job: Job) -> None:
    """Print what people say of a job, and who submitted it."""
    if job.tags:
        console.print(f"tags: {', '.join(map(printable, job.tags))}", soft_wrap=True)
    if job.owner is not None:
        console.print(f"submitted by {printable(job.owner.name or job.owner.id)}", soft_wrap=True)
    for line in job.notes.splitlines():
        console.print(f"  {printable(line)}", soft_wrap=True)


def render_job(console: Console, job: Job, machine: str = "") -> None:
    """Print a job, its result as `tune` prints it, and what its `machine` did meanwhile, in words."""
    if job.result is not None:
        _render_result(console, job.result, job.dims)
        _render_names(console, job)
    else:
        _render_standing(console, job)
    if machine:
        console.print(printable(machine), soft_wrap=True)


def _render_standing(console: Console, job: Job) -> None:
    """Print a job that has no result."""
    render_state(console, job)
    _render_names(console, job)
    if job.error:
        console.print(printable(job.error), soft_wrap=True)
    done = trials_done(_done(job), job.trials)
    time = search_time(job.spent_s, None if job.minutes is None else 60 * job.minutes, job.before_s)
    until = "" if job.until is None else f", {until_words(job.until)}"
    console.print(f"{done}, {time} of searching{until}, priority {job.priority}")
    target = printable(job.target_name or short(job.target)) or NO_DEVICE
    console.print(f"{counted(len(job.tasks), 'task')} for {target}")
    confirmed, to_confirm = (int(values.number(job.progress, name) or 0) for name in ("confirmed", "to_confirm"))
    stage = printable(stage_words(values.word(job.progress, "stage"), confirmed, to_confirm))
    if job.holder:
        console.print(f"at work on it: {printable(job.holder)}{f'; {stage}' if stage else ''}", soft_wrap=True)
    elif job.state == "paused" and stage:
        console.print(f"it was paused while {stage}", soft_wrap=True)
    _print_task_sum(console, job)


def _done(job: Job) -> int:
    """The trials of a job."""
    return int(values.number(job.progress, "trials") or 0)


def _print_task_sum(console: Console, job: Job) -> None:
    """Print what the tasks of a job without a result come to."""
    tasks = TaskSum.of_job(job.progress, None)
    if tasks.speedup is None:
        return
    default, tuned, speedup = (
        mark_trial(mark_noise(figure, tasks.noise), is_tried)
        for figure, is_tried in (
            (duration(tasks.default_ms), tasks.is_default_tried),
            (duration(tasks.best_ms), tasks.is_tried),
            (times(tasks.speedup), tasks.is_tried),
        )
    )
    faster = f"{speedup} as fast" if is_clear(tasks.speedup) else "no gain"
    after = "on the best found" if job.is_finished else "so far"
    console.print(f"the sum of its tasks: {default} by default, {tuned} {after}: {faster}", soft_wrap=True)
    print_legends(console, [default, tuned], [tasks.noise])


def _render_result(console: Console, result: Mapping[str, Any], dims: Mapping[str, int]) -> None:
    try:
        tune_report.render(console, _escape(result), dims)
    except (KeyError, TypeError, ValueError) as error:
        raise ServiceError("the server's result is of another version of Tunewright; install that here") from error


def _escape(data: Any) -> Any:
    """Plain data whose texts no terminal obeys."""
    match data:
        case str():
            return printable(data)
        case Mapping():
            return {printable(name): _escape(value) for name, value in data.items()}
        case list():
            return [_escape(item) for item in data]
        case _:
            return data


def question_of_deletion(job_ids: Sequence[int]) -> str:
    """What is asked before jobs are deleted."""
    return f"Delete {'job' if len(job_ids) == 1 else 'jobs'} {', '.join(map(str, job_ids))}?"


def delete_jobs(client: Client, job_ids: Sequence[int]) -> dict[str, Any]:
    """Delete jobs, each that can be; of the others a note says why."""
    deleted, notes = [], []
    for job_id in job_ids:
        try:
            client.delete(job_id)
        except ServiceError as error:
            if error.kind not in ("no-such-job", "job-unfinished"):
                raise
            notes.append(str(error))
        else:
            deleted.append(job_id)
    return {"deleted": deleted, "notes": notes}


def render_deletion(console: Console, data: Mapping[str, Any]) -> None:
    """Print how many jobs are gone."""
    console.print(f"{counted(len(data['deleted']), 'job')} deleted")


SUM_LEGEND = "a speed-up with neither ° nor an interval: by its tasks, each confirmed"
"""What a figure is of while the whole model was not timed: a sum has no interval."""


def render_jobs(console: Console, jobs: Sequence[Job], more: bool = False) -> None:
    """Print a table of jobs, and whether there are more."""
    if not jobs:
        console.print("no jobs")
        return
    has_tags = any(job.tags for job in jobs)
    names = ("job", "state", "model", *(["tags"] if has_tags else []), "target")
    table = new_table(console, names, ("tasks", "trials", "speed-up", "priority", "age"))
    now, causes, has_sums = datetime.now(UTC), [], False
    for job in jobs:
        gain = ModelGain.of_job(job.progress, job.result)
        speedup = mark_noise(gain_within(gain.speedup, gain.speedup_interval), gain.noise)
        causes.append(cause(gain.noise, speedup))
        has_sums |= gain.of == GainBasis.TASKS and gain.speedup is not None and is_clear(gain.speedup)
        done = _done(job)
        table.add_row(
            str(job.id),
            verdict(printable(job.state), gain.outcome),
            Text(name_of(job)),
            *([Text(", ".join(map(printable, job.tags)))] if has_tags else []),
            Text(printable(job.target_name or short(job.target) or NO_DEVICE)),
            str(len(job.tasks)),
            str(done) if job.trials is None else f"{done}/{job.trials}",
            mark_trial(speedup, gain.of == GainBasis.TRIALS),
            str(job.priority),
            _age((now - job.created_at).total_seconds()),
        )
    print_table(console, table)
    print_legends(console, figures(table), causes)
    if has_sums:
        console.print(SUM_LEGEND, soft_wrap=True)
    if more:
        console.print("there are more: --limit says how many are listed", soft_wrap=True)


def _age(seconds: float) -> str:
    """How long ago, e.g. "5 min"."""
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{int(seconds / length_s)} {unit}"
    return f"{int(max(seconds, 0.0))} s"
