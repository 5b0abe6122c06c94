"""The report of a tuning job, printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..explain import values
from ..explain.gain import GainBasis, ModelGain, TaskSum, task_gain_interval
from ..explain.peak import why_above_peak
from ..explain.upgrade import retimed_of, upgrade_lines
from ..search.report import ENDINGS, PAYOFFS, VERDICTS, JobOutcome, SearchEnd
from ..text import (
    between,
    between_ms,
    cause,
    counted,
    dims_text,
    duration,
    failures,
    gain_within,
    is_clear,
    mark_noise,
    mark_trial,
    mark_void,
    op_counts,
    printable,
    ratio,
    runtime_nodes_text,
    share,
    sized_name,
    slow_share,
    taken_back,
    times,
    uses,
)
from ..units import in_ms
from .tables import WIDE, OpName, figures, is_too_wide, is_wide, key_letters, new_table, print_legends, print_table

NUMBERS = ("times", "trials", "default", "best", "speed-up", "of peak", "GFLOP/s")
RATES = 2
"""Columns of numbers, and how many of the last are rates: what is left out first where there is little room."""

NO_KERNEL = "no op of the model has a native kernel"
"""The most frequent reason for a model without tasks."""

SUM_WORDS = (
    "a task by itself finds what it reads nearer or farther away than in the model, and the machine at another moment"
)
"""Why the sum of the tasks is not the time of the whole model."""


def render(console: Console, data: Mapping[str, Any], dims: Mapping[str, int] = MappingProxyType({})) -> None:
    """Print each task's default and best time, then the model's, which was tuned for the sizes `dims`."""
    figures_shown: list[str] = []
    peak, peak_noise = data["peak_gflops"], data.get("peak_noise", "")  # a job of before that was told has none
    if data.get("upgrade"):  # a job of before that was told has none
        figures_shown += _print_retimed(console, data)
    elif data["tasks"]:
        figures_shown += _print_tasks(console, data["tasks"], peak_noise)
    else:
        console.print(_no_task_text(data["fallback"]), soft_wrap=True)
    shown_peak = "" if peak is None else f"{mark_noise(f'{peak:.0f}', peak_noise)} GFLOP/s"
    measured = f"; the peak measured on it is {shown_peak}" if shown_peak else ""
    name = sized_name(printable(data["model"]), dims)
    console.print(f"{name} on {data['target']}: {counted(data['trials'], 'trial')}{measured}")
    if (by := data.get("ended_by")) in ENDINGS and data["tasks"]:  # a job of before that was told has none
        again = "; tuning again goes on from there" if by == SearchEnd.MINUTES else ""
        console.print(f"the search ended: {ENDINGS[by]}{again}")
    if data["failed"]:
        console.print(failures(data["failed"]))
    if data.get("voided"):  # a job of before that was told has none
        console.print(taken_back(data["voided"]))
    if data.get("regressed"):  # likewise
        console.print(f"{counted(data['regressed'], 'task is', 'tasks are')} slower than confirmed before")
    figures_shown += [*_print_whole(console, data), shown_peak]
    vendor = ModelGain.of_job(None, data).vendor
    reasons = [
        peak_noise,
        data.get("noise", ""),
        "" if vendor is None else vendor.noise,
        *(task.get("noise", "") for task in data["tasks"]),
    ]
    print_legends(console, figures_shown, reasons)


def render_sizes(console: Console, data: Mapping[str, Any]) -> None:
    """Print what the model gained at each size."""
    reports = [(dims_text(report["dims"]), report) for report in data["sizes"]]
    first = data["sizes"][0]
    last = f"{printable(first['model'])} on {first['target']}: sizes in between take over what is best nearby"
    _print_series(console, "size", reports, last)


def render_groups(console: Console, data: Mapping[str, Any]) -> None:
    """Print what each group of a model's nodes gained."""
    reports = [(printable(report["model"]), report) for report in data["groups"]]
    last = f"on {data['groups'][0]['target']}; the other nodes of the model are not ours"
    _print_series(console, "group", reports, last)


def _print_series(console: Console, noun: str, reports: Sequence[tuple[str, Mapping[str, Any]]], last: str) -> None:
    """Print what several jobs gained, by what `noun` tells of them, and a last line."""
    table = new_table(console, (noun,), ("trials", "default", "tuned", "speed-up"))
    noises: list[str] = []
    said: list[str] = []
    for name, report in reports:
        gain = ModelGain.of_job(None, report)
        speedup = "no gain" if gain.is_kept else f"{times(gain.speedup)}{between(gain.speedup_interval)}"
        figures_ms = (gain.default_ms, gain.default_ms if gain.is_kept else gain.tuned_ms)
        is_tried = gain.of is GainBasis.TRIALS
        shown = [mark_trial(mark_noise(text, gain.noise), is_tried) for text in (*map(duration, figures_ms), speedup)]
        noises.append(cause(gain.noise, *shown))
        table.add_row(Text(name), str(report["trials"]), *shown)
        said += [f"{name}: {text}" for text in (_untimed_text(gain), gain.vendor_text, gain.precision_text) if text]
    print_table(console, table)
    for text in (*said, last):
        console.print(text, soft_wrap=True)
    print_legends(console, figures(table), noises)


def _untimed_text(gain: ModelGain) -> str:
    """What of a model was not timed, and why; empty where all of it was."""
    if not gain.is_timed:
        return f"the whole model was not timed{_because(gain.why_untimed)}; its times are the sums of its tasks"
    return "" if gain.default_ms else f"the whole model was not timed by default{_because(gain.default_fault)}"


def _no_task_text(fallback: Mapping[str, int]) -> str:
    """The reason for a model without tasks."""
    if not fallback:
        return "nothing to tune: no op of the model needs a kernel"
    return f"nothing to tune: {NO_KERNEL}: {op_counts(fallback)}"


def _print_whole(console: Console, data: Mapping[str, Any]) -> list[str]:
    """Print the time of a run of the model, and its part without kernels; return the figures."""
    gain, fallback = ModelGain.of_job(None, data), data["fallback"]
    noise, part = gain.noise or TaskSum.of_job(None, data).noise, data.get("fallback_share")  # a job of before has none
    slow = slow_share(fallback, part, noise) if fallback else ""
    whole = ""
    if gain.is_timed:
        whole = _gain_text(gain) if data["tasks"] else _default_text(gain)
        where = " on our kernels" if gain.is_vendor else ""
        console.print(f"the whole model{where}: {whole}", soft_wrap=True)
    else:
        console.print(f"the whole model was not timed{_because(gain.why_untimed)}", soft_wrap=True)
    if gain.vendor_text:
        console.print(gain.vendor_text, soft_wrap=True)
    if gain.precision_text:
        console.print(gain.precision_text, soft_wrap=True)
    if by_tasks := _sum_text(gain, data):
        more = runtime_nodes_text(data.get("runtime_nodes", 0))  # a job of before that was told has none
        console.print(f"the sum of its tasks: {'; '.join(filter(None, (by_tasks, SUM_WORDS, more)))}", soft_wrap=True)
    if slow:
        console.print(slow, soft_wrap=True)
    return [whole, gain.vendor_text, by_tasks, slow.partition(" ")[0]]


def _because(why: str) -> str:
    return f": {printable(why)}" if why else ""  # of a job of before that was told none is known


def _default_text(gain: ModelGain) -> str:
    return mark_noise(duration(gain.default_ms), gain.noise) + between_ms(gain.default_interval_ms)


def _gain_text(gain: ModelGain) -> str:
    """The times of a run, by default and tuned, and their ratio."""
    default = _default_text(gain)
    begin = f"{default} by default"
    if gain.is_kept and gain.rejected_ms is None:
        return f"{begin}: nothing faster was found, so it keeps its defaults"
    if gain.is_kept:
        other = mark_noise(duration(gain.rejected_ms), gain.noise)
        speedup_text = (
            f"{mark_noise(times(gain.rejected_speedup), gain.noise)} as fast{between(gain.rejected_interval)}"
        )
        how = "slower" if gain.is_slower else "no gain for certain"
        return f"{begin}, {other} with what was found: {speedup_text}, {how}, so it keeps its defaults"
    tuned = mark_noise(duration(gain.tuned_ms), gain.noise) + between_ms(gain.tuned_interval_ms)
    if gain.default_ms is None:
        return f"{tuned} tuned; it was not timed by default{_because(gain.default_fault)}"
    if gain.speedup is None:
        return f"{begin}, {tuned} tuned"
    if gain.outcome is None and not is_clear(gain.speedup):  # a job of before its gain had an interval
        return f"{begin}, {tuned} tuned: no gain"
    speedup_text = f"{mark_noise(times(gain.speedup), gain.noise)} as fast{between(gain.speedup_interval)}"
    unsure = f", {VERDICTS[gain.outcome]}" if gain.outcome is JobOutcome.TOO_NOISY else ""
    return f"{begin}, {tuned} tuned: {speedup_text}{unsure}"


def _sum_text(gain: ModelGain, data: Mapping[str, Any]) -> str:
    """The times of the tasks in all, and what segments save of them; empty where that is not known.

    Of a model that keeps its defaults by these alone.
    """
    apart_ms = values.number(data, "tasks_apart_ms")  # a job of before has none
    tasks = TaskSum.of_job(None, data)
    default_ms, tuned_ms = tasks.default_ms, tasks.best_ms

    def marked(figure: str) -> str:
        return mark_trial(mark_noise(figure, tasks.noise), tasks.is_tried)

    if gain.is_kept:
        return f"{marked(duration(default_ms))} by default" if default_ms else ""
    if default_ms is None and tuned_ms:
        return f"{marked(duration(tuned_ms))} tuned"
    if gain.speedup is None or not default_ms or not tuned_ms or not apart_ms:
        return ""

    def speedup(before_ms: float, after_ms: float) -> str:
        return marked(times(before_ms / after_ms))

    default, tuned = marked(duration(default_ms)), marked(duration(tuned_ms))
    total = f"{default} by default, {tuned} tuned: {speedup(default_ms, tuned_ms)} as fast"
    if tuned_ms == apart_ms:
        return total
    return f"{total}, {speedup(default_ms, apart_ms)} by schedules and {speedup(apart_ms, tuned_ms)} by segments"


def _table(console: Console, tasks: Sequence[Mapping[str, Any]], rates: int, peak_noise: str) -> Table:
    """A table with a line a task, with so many of the rates."""
    numbers = NUMBERS[: len(NUMBERS) - RATES + rates]
    table = new_table(console, ("task", "op"), numbers)
    for task in tasks:
        key, op = task["key"][: key_letters(console)], OpName(task["op"])
        table.add_row(key, op, *_numbers(task, peak_noise)[: len(numbers)])
    return table


def _numbers(task: Mapping[str, Any], peak_noise: str) -> list[str]:
    """The cells of a task, in the order of `NUMBERS`. `peak_noise`: why the peak can't be relied on."""
    default_ms, best_ms, gflops = task["default_ms"], task["best_ms"], task["gflops"]
    noise, is_tried = task.get("noise", ""), not task.get("confirmed", True)
    intervals = values.interval(task, "default_interval_ms"), values.interval(task, "best_interval_ms")
    gain_interval = task_gain_interval(default_ms, best_ms, *intervals, not is_tried)
    is_default_voided, is_voided = task.get("default_voided", False), task.get("best_voided", False)
    cells = [
        (duration(default_ms), is_default_voided),
        (duration(best_ms), is_voided),
        (gain_within(ratio(default_ms, best_ms), gain_interval), is_voided or is_default_voided),
        (mark_noise(share(task["fraction_of_peak"] or None), peak_noise), is_voided),
        (f"{gflops:.1f}" if gflops else "-", is_voided),  # what only moves data has no operations to count
    ]
    return [
        uses(task.get("chosen", task["occurrences"]), task["occurrences"]),
        "-" if (trials := task.get("job_trials")) is None else str(trials),  # a job of before that was told has none
        *(mark_void(mark_trial(mark_noise(figure, noise), is_tried), is_gone) for figure, is_gone in cells),
    ]


def _print_retimed(console: Console, data: Mapping[str, Any]) -> list[str]:
    """Print the table of a job that re-times, and what it says of the whole; return its figures."""
    table = new_table(console, ("task", "op", "tuning"), ("times", "before", "now", "default now"))
    for task in data["tasks"]:
        retimed = retimed_of(task)
        noise, is_tried = task.get("noise", ""), not task.get("confirmed", True)
        before = "-" if retimed is None else duration(in_ms(retimed.best_s))
        now, default = (
            mark_trial(mark_noise(duration(values.number(task, name)), noise), is_tried)
            for name in ("best_ms", "default_ms")
        )
        what = Text("not stale" if retimed is None else PAYOFFS[retimed.payoff])
        used = uses(task.get("chosen", task["occurrences"]), task["occurrences"])
        table.add_row(task["key"][: key_letters(console)], OpName(task["op"]), what, used, before, now, default)
    if data["tasks"]:
        print_table(console, table)
    lines = upgrade_lines(data)
    for line in lines:
        console.print(line, soft_wrap=True)
    return [*figures(table), *lines]


def _print_tasks(console: Console, tasks: Sequence[Mapping[str, Any]], peak_noise: str) -> list[str]:
    """Print the table of the tasks; return its figures."""
    table = _table(console, tasks, RATES if is_wide(console) else 0, peak_noise)
    if is_wide(console) and is_too_wide(table):
        table = _table(console, tasks, RATES - 1, peak_noise)
        table.width = WIDE if is_too_wide(table) else None
    print_table(console, table)
    why = dict.fromkeys(
        why_above_peak(task["fraction_of_peak"], values.word(task["schedule"], "sketch")) for task in tasks
    )
    if is_wide(console):
        for reason in filter(None, why):
            console.print(f"above 100% of peak: {reason}", soft_wrap=True)
    return figures(table)
