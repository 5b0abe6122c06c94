"""`tunewright tune`: search for fast schedules of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from tunewright.graph.binding import plain_names
from tunewright.graph.numerics import Precision

from ..arguments import LEAST_MINUTES, MOST_MINUTES, MOST_TRIALS
from ..errors import Refused
from ..integration import find_integration
from ..settings import settings
from ..text import dims_text, printable, slow_nodes
from .answers import CommandAnswer, CommandInterrupt, messages
from .app import command
from .options import (
    TRIALS_WHERE_NONE,
    BindOption,
    DbOption,
    DimOption,
    ModelArgument,
    PrecisionOption,
    RayAddressOption,
    RuntimeOption,
    SeedOption,
    SizesOption,
    StrategyOption,
    TargetOption,
    ThreadsOption,
    UntilOption,
    VendorOption,
    check_ray_address,
    parse_dims,
    parse_share,
    parse_sizes,
)

if TYPE_CHECKING:
    from ..search.progress import Progress
    from ..search.sizes import Choice

STOPPED_NOTE = "stopped; what was measured is kept, and the same command goes on from there"
"""The message after Ctrl-C in a tuning job."""


@command()
def tune(
    model: ModelArgument,
    target: TargetOption = "auto",
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_TRIALS, help="Most trials of the job, over all its runs.", show_default=TRIALS_WHERE_NONE
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=LEAST_MINUTES, max=MOST_MINUTES, help="Most minutes of searching in this run.", show_default="no limit"
        ),
    ] = None,
    until: UntilOption = None,
    db: DbOption = None,
    pool: Annotated[Literal["local", "ray"], typer.Option(help="Where candidates are measured.")] = "local",
    ray_address: RayAddressOption = None,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    sizes: SizesOption = None,
    bind: BindOption = None,
    precision: PrecisionOption = Precision.AS_GIVEN,
    strategy: StrategyOption = "evolutionary",
    vendor: VendorOption = False,
    runtime: RuntimeOption = None,
) -> CommandAnswer:
    """Search for fast kernels of a model's tasks. The same command goes on where it was stopped."""
    check_ray_address(pool, ray_address)
    options: dict[str, Any] = {
        "db": db,
        "target": target,
        "trials": trials,
        "minutes": minutes,
        "until": parse_share("--until", until),
        "pool": pool,
        "ray_address": ray_address,
        "seed": seed,
        "threads": threads,
        "dims": parse_dims(dims, bind),
        "precision": precision,
        "strategy": strategy,
        "vendor": vendor,
    }
    choices = parse_sizes(sizes)
    groups = _groups(runtime, model, options["dims"], vendor=vendor, bind=bind)
    try:
        data, print_report = _search(model, groups, choices, options)
    except KeyboardInterrupt:
        raise CommandInterrupt(STOPPED_NOTE) from None
    return CommandAnswer(data, print_report, footer=f"every result is kept in {printable(_database_name(db))}")


def _search(
    model: Path, groups: Sequence[Path | str | bytes], choices: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, Callable[..., None]]:
    """Tune the model, its parts or it at several sizes: the data of the answer, and what prints them."""
    from .tune_report import render, render_groups, render_sizes

    if groups != [model]:
        return tune_groups_of(messages(), model, groups, choices, **options), render_groups
    if choices:
        return tune_at_sizes(messages(), model, choices, **options), render_sizes
    return tune_model(messages(), model, **options), partial(render, dims=plain_names(options["dims"]))


def _groups(
    runtime: str | None, model: Path, dims: Mapping[str, int], *, vendor: bool, bind: list[str] | None
) -> Sequence[Path | str | bytes]:
    """What is to be tuned: the model, or the parts of it that a runtime leaves to us.

    Raises Refused where an option asks for what only sessions of ours do, and as `find_integration`.
    """
    if runtime is None:
        return [model]
    for option, is_given in (("--vendor", vendor), ("--bind", bind)):
        if is_given:
            raise Refused(f"{option} is for sessions of ours, and --for {printable(runtime)} is not one: leave one out")
    return find_integration(runtime).models_of_groups(model, dims)


def tune_groups_of(
    console: Console, model: Path, groups: Sequence[Path | str | bytes], choices: Mapping[str, Choice], **settings: Any
) -> dict[str, Any]:
    """The reports of the jobs of a model's groups of nodes as JSON data."""
    from ..search.node_groups import tune_groups
    from ..search.view import progress_view

    if choices:
        name = printable(next(iter(choices)))
        raise Refused(
            f"other nodes than ours are in the model, so it is tuned for one size at a time: --dim {name}=SIZE"
        )

    def begin(number: int, count: int) -> None:
        console.print(f"group {number} of {count}")

    with progress_view(console) as watch:
        jobs = tune_groups(model.stem, groups, begin=begin, watch=watch, **settings)
        reports = [one.to_json() for one in jobs]
    return {"groups": reports}


def tune_at_sizes(console: Console, model: Path, choices: Mapping[str, Choice], **settings: Any) -> dict[str, Any]:
    """The reports of the jobs at several sizes as JSON data. `settings` are those of `search.sizes.tune_sizes`."""
    from ..search.sizes import tune_sizes
    from ..search.view import progress_view

    def begin(dims: Mapping[str, int], number: int, count: int) -> None:
        console.print(f"size {number} of {count}: {dims_text(dims)}")

    with progress_view(console) as watch:
        reports = [one.to_json() for one in tune_sizes(model, choices, begin=begin, watch=watch, **settings)]
    return {"sizes": reports}


def tune_model(console: Console, model: Path, **settings: Any) -> dict[str, Any]:
    """The report of a tuning job as JSON data. `settings` are those of `search.tuning.tune`.

    `console` shows the progress, and the nodes without a kernel as soon as the model is read.
    """
    from ..search.view import progress_view

    with progress_view(console) as watch:
        from ..search.tuning import tune as run_job  # takes a while to import: the view is there before

        def tell(progress: Progress) -> None:
            if progress.fallback:
                console.print(slow_nodes(progress.fallback))
            watch(progress)

        return run_job(model, watch=tell, **settings).to_json()


def _database_name(db: str | None) -> str:
    """The database in use, without its password."""
    from tunewright.db.engine import parse_url, redact

    return redact(parse_url(db or settings().db))
