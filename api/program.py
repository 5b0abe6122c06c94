"""The program `tunewright`: the commands of `tunewright.tuner.cli`, and those that need the service or ask one.

Nothing here imports the service or its client before one of its commands is called.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tunewright.codegen.target import MAX_THREADS
from tunewright.db.bounds import LARGEST_ID
from tunewright.graph.numerics import Precision
from tunewright.tuner.arguments import LEAST_MINUTES, LEAST_PRIORITY, MOST_MINUTES, MOST_PRIORITY, MOST_TRIALS, RETIMED
from tunewright.tuner.cli import app, execute, exit_code, messages
from tunewright.tuner.cli.answers import CommandAnswer, confirm
from tunewright.tuner.cli.app import FAULT, command
from tunewright.tuner.cli.keys import key_app
from tunewright.tuner.cli.options import (
    TRIALS_WHERE_NONE,
    BindOption,
    DbOption,
    DimOption,
    JsonOption,
    ModelArgument,
    PrecisionOption,
    RayAddressOption,
    SeedOption,
    StrategyOption,
    UntilOption,
    VendorOption,
    check_ray_address,
    parse_bind,
    parse_dims,
    parse_share,
)
from tunewright.tuner.errors import Refused
from tunewright.tuner.settings import settings

from . import log_program, webhook_program
from .command_options import ServerOption, YesOption, require

if TYPE_CHECKING:
    from .client import Client, Job
    from .http.webhook_hosts import WebhookHosts
    from .serve import ServiceAddress

__all__ = ["app", "execute", "exit_code"]

OTHERS = log_program, webhook_program
"""The modules that add commands besides this one."""

jobs_app = typer.Typer(help="The jobs of a server.", no_args_is_help=True)
app.add_typer(jobs_app, name="jobs")

JobArgument = Annotated[
    int, typer.Argument(metavar="ID", min=1, max=LARGEST_ID, help="Number of the job.", show_default=False)
]
PriorityOption = Annotated[int, typer.Option(min=LEAST_PRIORITY, max=MOST_PRIORITY, help="The higher goes first.")]
TargetKeyOption = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET",
        help="The target to tune for: its name, key, or the begin of it.",
        show_default="the one that is at work",
    ),
]
TrialsOption = Annotated[
    int | None, typer.Option(min=1, max=MOST_TRIALS, help="Most trials of the job.", show_default=TRIALS_WHERE_NONE)
]
MinutesOption = Annotated[
    float | None,
    typer.Option(min=LEAST_MINUTES, max=MOST_MINUTES, help="Most minutes of searching.", show_default="no limit"),
]
TagOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tag", metavar="TAG", help="A word to find the job by; may be given several times.", show_default="none"
    ),
]
NoteOption = Annotated[
    str | None, typer.Option("--note", metavar="TEXT", help="What else people are to know of it.", show_default="none")
]
TargetThreadsOption = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_THREADS, help="Threads that kernels run on.", show_default="all of the target's"),
]
RetimeOption = Annotated[
    bool,
    typer.Option("--retime", help="Search nothing, but time the best of what other versions had tuned again."),
]


@command()
def submit(
    model: ModelArgument,
    server: ServerOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show how it goes, until the job is finished.")] = False,
    with_weights: Annotated[
        bool, typer.Option("--with-weights", help="Send the whole model instead of its structure.")
    ] = False,
    target: TargetKeyOption = None,
    trials: TrialsOption = None,
    minutes: MinutesOption = None,
    until: UntilOption = None,
    seed: SeedOption = 0,
    threads: TargetThreadsOption = None,
    dims: DimOption = None,
    bind: BindOption = None,
    strategy: StrategyOption = "evolutionary",
    vendor: VendorOption = False,
    precision: PrecisionOption = Precision.AS_GIVEN,
    priority: PriorityOption = 0,
    tag: TagOption = None,
    note: NoteOption = None,
    retime: RetimeOption = False,
) -> CommandAnswer:
    """Have a server tune a model. Only its structure is sent: no weights, and no names but those of its inputs."""
    from .client import commands

    least = parse_share("--until", until)
    with commands.connect(server) as client:
        with commands.option_names():
            job = client.submit(
                model,
                with_weights=with_weights,
                dims=parse_dims(dims),
                bind=parse_bind(bind),
                trials=trials,
                minutes=minutes,
                until=least,
                target=client.target_key(target, "--target"),
                threads=threads,
                seed=seed,
                strategy=strategy,
                vendor=vendor,
                precision=precision,
                priority=priority,
                tags=tag or (),
                notes=note,
                retime=RETIMED if retime else None,
            )
        if job.is_new is False:
            existing = commands.note_existing(job, trials, minutes, least, priority, tag or (), note)
            messages().print(existing, soft_wrap=True)
        if watch:
            return _final_answer(commands.watch_job(messages(), client, job, server))
    return CommandAnswer(job.to_json(), lambda console, _: commands.render_submission(console, job, server))


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes one that is free.")] = 8433,
    db: DbOption = None,
    tuners: Annotated[int, typer.Option(min=0, max=64, help="Tuner processes to run beside it.")] = 1,
    pool: Annotated[Literal["local", "ray"], typer.Option(help="Where these measure.")] = "ray",
    ray_address: RayAddressOption = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name that clients may use for this server; may be given several times."),
    ] = None,
    upload_mb: Annotated[
        int, typer.Option(min=1, max=2047, metavar="MB", help="Largest model that may be sent.")
    ] = 512,
    proxies: Annotated[
        str, typer.Option(metavar="ADDRESS,...", help="Proxies whose word on who asks is taken.", show_default="none")
    ] = "",
    redis: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve the log to clients of Redis too, on this port; 0 takes one that is free.",
            show_default="not served",
        ),
    ] = None,
    linger: Annotated[
        float, typer.Option(min=0, max=600, metavar="SECONDS", help="How long to answer still when asked to end.")
    ] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Serve: take models and jobs over HTTP, have them tuned, answer lookups. Ends on Ctrl-C or SIGTERM."""
    check_ray_address(pool, ray_address)
    if ray_address is not None and not tuners:
        raise Refused("--tuners 0 takes no --ray-address: nothing would join the cluster")
    require("serve", "fastapi", "uvicorn")
    from . import serve as service
    from .http.service import Options

    service.serve(
        service.ServeOptions(
            db=db,
            port=port,
            redis_port=redis,
            tuners=tuners,
            pool=pool,
            ray_address=ray_address,
            linger_s=linger,
            proxies=proxies,
            service=Options(
                host=host,
                allow_hosts=tuple(allow_host or ()),
                upload_bytes=upload_mb << 20,
                webhook_hosts=_webhook_hosts(),
                retention=settings().retention,
            ),
        ),
        lambda address: _announce(address, as_json),
    )


def _webhook_hosts() -> WebhookHosts:
    """The hosts of the environment. Raises Refused."""
    from .http.webhook_hosts import WebhookHosts

    try:
        return WebhookHosts.of(settings().webhook_hosts)
    except ValueError as error:
        raise Refused(f"TUNEWRIGHT_WEBHOOK_HOSTS: {error}") from error


@command()
def report(
    job: Annotated[
        int, typer.Argument(metavar="JOB", min=1, max=LARGEST_ID, help="Number of the job.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="PATH", help="The folder for the files, or the HTML file.", show_default="here"
        ),
    ] = Path(),
    compare: Annotated[
        list[int] | None,
        typer.Option(
            "--compare",
            metavar="OTHER",
            min=1,
            max=LARGEST_ID,
            help="Compare it with this job, the baseline; repeated: with more, 7 at most.",
            show_default=False,
        ),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="The job's model: tell its nodes by the names that they have in this file.",
            show_default="by op and shape",
        ),
    ] = None,
    db: DbOption = None,
) -> CommandAnswer:
    """Write what the dashboard says of a job as one HTML file that needs nothing else, and plots of it as PNG."""
    require("report", "fastapi", "jinja2")
    from .dashboard.report import command as report_command

    return CommandAnswer(report_command.report(job, output, db, compare or (), names), report_command.render_report)


def _announce(address: ServiceAddress, as_json: bool) -> None:
    """Say where the service is; as JSON it is the one line, and comes before the end."""
    if as_json:
        data = {
            "url": address.url,
            "db": address.db,
            "key_file": None if address.key_file is None else str(address.key_file),
            "login_url": address.login_url,
            "redis_url": address.redis_url,
        }
        print(json.dumps(data), flush=True)
    else:
        print(*address.lines(), sep="\n", flush=True)


@command(key_app)
def link(
    server: Annotated[
        str | None,
        typer.Option(
            "--server", metavar="URL", help="The server, as the browser reaches it.", show_default="TUNEWRIGHT_SERVER"
        ),
    ] = None,
    db: DbOption = None,
) -> CommandAnswer:
    """Make a link that opens a server's dashboard once, and print it alone on standard output."""
    from .dashboard import links

    return CommandAnswer(links.create(server, db), links.render, alone="link")


@command(jobs_app, "list")
def list_(
    server: ServerOption = None,
    state: Annotated[
        Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"] | None,
        typer.Option(help="Only those in this state.", show_default="any"),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag", metavar="TAG", help="Only those with this tag; given several times, with all.", show_default="any"
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Only those that this key submitted: its id, or me.", show_default="any"),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only those with this in name, tags or notes.", show_default="any"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most jobs to list.")] = 20,
) -> CommandAnswer:
    """List the jobs of a server, the newest first."""
    from .client import commands

    with commands.connect(server, commands.NO_JOB_OF_TUNE) as client:
        found = list(client.jobs(state, tags=tag or (), owner=owner, search=search, limit=limit + 1))
    jobs, more = found[:limit], len(found) > limit
    data = {"jobs": [job.to_json() for job in jobs], "more": more}
    return CommandAnswer(data, lambda console, _: commands.render_jobs(console, jobs, more))


@command(jobs_app)
def show(job_id: JobArgument, server: ServerOption = None) -> CommandAnswer:
    """Show a job, and its result where it has one."""
    from .client import commands

    with commands.connect(server, commands.NO_JOB_OF_TUNE) as client:
        job, machine = client.job(job_id), client.machine_words(job_id)
    data = job.to_json() | {"machine": machine}
    return CommandAnswer(data, lambda console, _: commands.render_job(console, job, machine))


@command(jobs_app)
def watch(job_id: JobArgument, server: ServerOption = None) -> CommandAnswer:
    """Show how a job goes, until it is finished."""
    from .client import commands

    with commands.connect(server, commands.NO_JOB_OF_TUNE) as client:
        return _final_answer(commands.watch_job(messages(), client, client.job(job_id), server))


def _final_answer(job: Job) -> CommandAnswer:
    """What a job that was watched came to; FAULT where it did not succeed."""
    from .client import commands

    code = 0 if job.state == "succeeded" else FAULT
    return CommandAnswer(job.to_json(), lambda console, _: commands.render_job(console, job), exit_code=code)


@command(jobs_app)
def cancel(job_id: JobArgument, server: ServerOption = None) -> CommandAnswer:
    """Ask for the end of a job. What it has measured is kept."""
    return _steer(server, lambda client: client.cancel(job_id))


@command(jobs_app)
def pause(job_id: JobArgument, server: ServerOption = None) -> CommandAnswer:
    """Ask for a pause of a job."""
    return _steer(server, lambda client: client.pause(job_id))


@command(jobs_app)
def resume(job_id: JobArgument, server: ServerOption = None) -> CommandAnswer:
    """Let a paused job go on."""
    return _steer(server, lambda client: client.resume(job_id))


@command(jobs_app, "delete")
def delete_jobs(
    job_ids: Annotated[
        list[int],
        typer.Argument(metavar="ID...", min=1, max=LARGEST_ID, help="Numbers of the jobs.", show_default=False),
    ],
    yes: YesOption = False,
    server: ServerOption = None,
) -> CommandAnswer:
    """Delete finished jobs with their events and reports. What they have measured is kept."""
    from .client import commands

    numbers = list(dict.fromkeys(job_ids))
    confirm(commands.question_of_deletion(numbers), is_confirmed=yes)
    with commands.connect(server, commands.NO_JOB_OF_TUNE) as client:
        data = commands.delete_jobs(client, numbers)
    return CommandAnswer(data, commands.render_deletion, exit_code=FAULT if data["notes"] else 0)


@command(jobs_app, context_settings={"ignore_unknown_options": True})  # so that -5 is a number
def prioritise(
    job_id: JobArgument,
    priority: Annotated[
        int,
        typer.Argument(
            metavar="PRIORITY",
            min=LEAST_PRIORITY,
            max=MOST_PRIORITY,
            help="The higher goes first.",
            show_default=False,
        ),
    ],
    server: ServerOption = None,
) -> CommandAnswer:
    """Change the priority of a job."""
    return _steer(server, lambda client: client.prioritise(job_id, priority))


@command(jobs_app)
def change(
    job_id: JobArgument,
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="Its name for people.", show_default="as it is")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="Adds a tag; may be given several times.", show_default="none"),
    ] = None,
    untag: Annotated[
        list[str] | None,
        typer.Option("--untag", metavar="TAG", help="Removes a tag; may be given several times.", show_default="none"),
    ] = None,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="Its notes, in whole.", show_default="as they are")
    ] = None,
    server: ServerOption = None,
) -> CommandAnswer:
    """Change what people call a job, also a finished one."""
    from .client import commands

    if name is None and note is None and not tag and not untag:
        raise Refused("nothing is to be changed: give --name, --tag, --untag or --note")
    with commands.option_names():
        return _steer(
            server,
            lambda client: client.change(job_id, label=name, add_tags=tag or (), remove_tags=untag or (), notes=note),
        )


@command(jobs_app)
def extend(
    job_id: JobArgument,
    minutes: Annotated[
        float | None,
        typer.Option(min=LEAST_MINUTES, max=MOST_MINUTES, help="More minutes of searching.", show_default="none"),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, max=MOST_TRIALS, help="More trials.", show_default="none")
    ] = None,
    server: ServerOption = None,
) -> CommandAnswer:
    """Have a job go on for longer; where it is finished, a new one goes on from its trials."""
    from .client import commands

    if minutes is None and trials is None:
        raise Refused("how much longer is the job to go on? give --minutes or --trials")
    with commands.connect(server, commands.NO_JOB_OF_TUNE) as client, commands.option_names():
        job = client.extend(job_id, minutes=minutes, trials=trials)
    return CommandAnswer(job.to_json(), lambda console, _: commands.render_extension(console, job_id, job))


def _steer(server: str | None, change: Callable[[Client], Job]) -> CommandAnswer:
    from .client import commands

    with commands.connect(server, commands.NO_JOB_OF_TUNE) as client:
        job = change(client)
    return CommandAnswer(job.to_json(), lambda console, _: commands.render_state(console, job))
