"""`tunewright submit` and `jobs`: models sent to a server, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from tunewright.tuner.cli.answers import Interrupted, messages
from tunewright.tuner.commands import tune
from tunewright.tuner.commands.tables import new_table, print_table
from tunewright.tuner.errors import Refused
from tunewright.tuner.insight import told
from tunewright.tuner.insight.gain import Gain, GainOf
from tunewright.tuner.jobs.report import Outcome
from tunewright.tuner.jobs.view import showing
from tunewright.tuner.settings import settings
from tunewright.tuner.text import TRIED, clock, counted, gain, percent, printable, rough, short, trials_done

from .client import Client, Job, ServiceError
from .watching import FOR_A_DEVICE, Watched

KEY_DIGITS = 64
"""Of a whole target's key."""

NO_DEVICE = "no device yet"
"""The target of a job that waits for one."""

MOST_AHEAD = 1000
"""Jobs looked at to say how many go before one."""

OPTIONS = {f"#/{name}": f"--{name}" for name in ("target", "threads", "trials", "minutes", "until", "priority", "seed")}
"""Pointers into a submission, as the command line calls what is there."""


def connected(server: str | None) -> Client:
    """The client of the server named, or else of TUNEWRIGHT_SERVER. Raises Refused where there is none."""
    address = settings().server if server is None else server
    if not address.strip():
        raise Refused("which server? Give --server URL or set TUNEWRIGHT_SERVER; tunewright serve starts one")
    said: set[str] = set()

    def waits(error: ServiceError) -> None:
        text = f"{error}; trying again"
        if text not in said:
            said.add(text)
            messages().print(text)

    return Client(address, waits=waits)


def watched(console: Console, client: Client, job: Job, server: str | None) -> Job:
    """Show how a job goes; the job when it is finished. Raises Interrupted, after which the job goes on."""
    if job.is_finished:
        return job
    view = Watched(job, _ahead(client, job) if job.state == "queued" and job.target else 0)
    try:
        with showing(console) as show:
            show(view.moment())
            for event in client.events(job.id):
                view.tell(event)
                show(view.moment())
        return client.job(job.id)
    except KeyboardInterrupt:
        how = f"the job is paused; to let it go on: {_command('resume', job, server)}" if view.is_paused else ""
        raise Interrupted(f"{how or 'the job goes on'}; to watch it again: {_command('watch', job, server)}") from None


def _ahead(client: Client, job: Job) -> int:
    """How many jobs go before one that waits: those under way for its target, and those that are taken sooner."""
    place = (-job.priority, job.id)
    waiting = client.jobs("queued", target=job.target, limit=MOST_AHEAD)
    running = client.jobs("running", target=job.target, limit=MOST_AHEAD)
    return sum((-one.priority, one.id) < place for one in waiting) + sum(1 for _ in running)


def target_key(client: Client, given: str | None) -> str | None:
    """The key of a target given by its key, the begin of it, or its name. Raises Refused where that is not one."""
    if given is None or len(given) == KEY_DIGITS:
        return given
    known = client.targets()
    found = [key for key, name in known.items() if name == given] or [key for key in known if key.startswith(given)]
    if given and len(found) == 1:
        return found[0]
    listed = ", ".join(f"{printable(name)} ({short(key)})" for key, name in known.items()) or "none"
    what = "several targets begin so" if given and found else "no such target is at work"
    mend = "" if known else "; without --target, or with a whole key, the job waits for a device"
    raise Refused(f"--target {printable(given)}: {what}; at work: {listed}{mend}")


@contextmanager
def naming_options() -> Iterator[None]:
    """Tell of faults of a submission in the words of the command line."""
    try:
        yield
    except ServiceError as error:
        if not error.faults or any(pointer not in OPTIONS for pointer, _ in error.faults):
            raise
        raise Refused("; ".join(f"{OPTIONS[at]}: {printable(detail)}" for at, detail in error.faults)) from error


def _command(verb: str, job: Job, server: str | None) -> str:
    address = "" if server is None else f" --server {server}"
    return f"tunewright jobs {verb} {job.id}{address}"


def already(job: Job, trials: int | None, minutes: float | None, until: float | None, priority: int) -> str:
    """What a job comes to that was there before it was submitted with these bounds and this priority."""
    from tunewright.db.jobs import Budget

    asked = {
        "trials": Budget.of(trials, minutes, until).trials,
        "minutes": minutes,
        "until": until,
        "priority": priority,
    }
    has = {"trials": job.trials, "minutes": job.minutes, "until": job.until, "priority": job.priority}
    text = f"job {job.id} was there already: {', '.join(_bounds(job))}, priority {job.priority}"
    other = [name for name, value in has.items() if asked[name] != value]
    if not other:
        return text
    return f"{text}; not taken: {', '.join(f'--{name} {_given(name, asked[name])}' for name in other)}"


def _bounds(job: Job) -> list[str]:
    """What ends the search of a job, whichever comes first."""
    trials = None if job.trials is None else counted(job.trials, "trial")
    minutes = None if job.minutes is None else counted(job.minutes, "minute")
    until = None if job.until is None else _until(job.until)
    return [bound for bound in (trials, minutes, until) if bound is not None]


def _until(part: float) -> str:
    return f"until a minute brings less than {percent(part)}"


def _given(option: str, value: float | None) -> str:
    return "none" if value is None else percent(value) if option == "until" else format(value, "g")


def render_submitted(console: Console, job: Job, server: str | None) -> None:
    """What a job is called and how to follow it."""
    render_state(console, job)
    if not job.is_finished:
        console.print(f"to watch it: {_command('watch', job, server)}", soft_wrap=True)


def render_state(console: Console, job: Job) -> None:
    """Where a job stands, in a line."""
    wish = f", asked to {printable(job.wish)}" if job.wish else ""
    wish += f", {FOR_A_DEVICE}" if job.state == "queued" and not job.target else ""
    console.print(f"job {job.id} is {printable(job.state)}{wish}: {printable(job.label)}", soft_wrap=True)


def render_job(console: Console, job: Job) -> None:
    """A job in lines, and its result as `tune` prints it."""
    if job.result is not None:
        _render_result(console, job.result)
        return
    render_state(console, job)
    if job.error:
        console.print(printable(job.error), soft_wrap=True)
    done = trials_done((job.progress or {}).get("trials", 0), job.trials)
    limit = "" if job.minutes is None else f" of {clock(60 * job.minutes)}"
    until = "" if job.until is None else f", {_until(job.until)}"
    console.print(f"{done}, {clock(job.spent_s)}{limit} of searching{until}, priority {job.priority}")
    target = printable(job.target_name or short(job.target)) or NO_DEVICE
    console.print(f"{counted(len(job.tasks), 'task')} for {target}")
    if job.holder:
        console.print(f"at work on it: {printable(job.holder)}", soft_wrap=True)


def _render_result(console: Console, result: Mapping[str, Any]) -> None:
    try:
        tune.render(console, _escaped(result))
    except (KeyError, TypeError, ValueError) as error:
        raise ServiceError(f"the server's result is of another version of Tunewright: {error!r}") from error


def _escaped(data: Any) -> Any:
    """Plain data whose texts no terminal obeys."""
    match data:
        case str():
            return printable(data)
        case Mapping():
            return {printable(name): _escaped(value) for name, value in data.items()}
        case list():
            return [_escaped(item) for item in data]
        case _:
            return data


def shown(job: Job) -> dict[str, Any]:
    """A job as plain data, with what it gained."""
    found = Gain.told(job.progress, job.result)
    return job.to_json() | {
        "speedup": found.speedup,
        "speedup_of": found.of.value,
        "speedup_interval": found.speedup_interval,
        "outcome": None if found.outcome is None else found.outcome.value,
        "noise": found.noise,
    }


def render_jobs(console: Console, jobs: Sequence[Job]) -> None:
    """A table of jobs."""
    if not jobs:
        console.print("no jobs")
        return
    table = new_table(console, ("job", "state", "model", "target"), ("tasks", "trials", "speedup", "priority", "age"))
    now = datetime.now(UTC)
    for job in jobs:
        found = Gain.told(job.progress, job.result)
        done = int(told.number(job.result, "trials") or told.number(job.progress, "trials") or 0)
        table.add_row(
            str(job.id),
            "defaults kept" if found.outcome == Outcome.DEFAULTS_KEPT else printable(job.state),
            Text(printable(job.label)),
            Text(printable(job.target_name or short(job.target) or NO_DEVICE)),
            str(len(job.tasks)),
            str(done) if job.trials is None else f"{done}/{job.trials}",
            _told_gain(found),
            str(job.priority),
            _age((now - job.created_at).total_seconds()),
        )
    print_table(console, table)
    if any(_is_tried(Gain.told(job.progress, job.result)) for job in jobs):
        console.print(f"{TRIED} by trials, not confirmed")


def _is_tried(found: Gain) -> bool:
    """Whether only trials promise a speed-up."""
    return found.of == GainOf.TRIALS and found.speedup is not None


def _told_gain(found: Gain) -> str:
    """The speed-up, with a mark where only trials promise it."""
    return rough(gain(found.speedup), found.noise) + (TRIED if _is_tried(found) else "")


def _age(seconds: float) -> str:
    """How long ago, e.g. "5 min"."""
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{int(seconds / length_s)} {unit}"
    return f"{int(max(seconds, 0.0))} s"
