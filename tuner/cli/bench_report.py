"""What `tunewright bench` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tunewright.codegen.host import available_cores
from tunewright.codegen.target import CUDA

from ..peers.peak_memory import OURS
from ..text import counted, duration, mark_noise, printable, ratio, runtime_nodes_text, slow_share, times
from .comparison import DEFAULT, REFERENCE, SUSPECT_ERROR
from .tables import figures, is_wide, new_table, print_legends, print_table


def render(console: Console, data: Mapping[str, Any]) -> None:
    """A line a runtime, the fastest first, and what is to be known of it."""
    noise, device = data["noise"], data["device"]
    table = _table(console, data) if device is None else _device_table(console, data)
    print_table(console, table)
    print_legends(console, figures(table), [noise])
    if not is_wide(console) or device is not None:
        console.print("versions: " + ", ".join(f"{name} {version}" for name, version in data["versions"].items()))
    for name, failure in data["failures"].items():
        console.print(f"{name} can't run this model: {printable(failure)}")
    console.print(f"{printable(data['model'])}, {_place(data)}")
    if data["runtime"]:
        kernels = mark_noise(duration(data["kernels_ms"]), noise)
        console.print(f"{OURS} ran it in {printable(data['runtime'])}; our kernels take {kernels}")
    elif device is None:
        console.print(_kernels_text(data))
    else:
        console.print("a run brings inputs to the device and outputs back; on the device they are there already")
    if data["fallback"] and not data["runtime"]:
        console.print(slow_share(data["fallback"], data["fallback_share"], noise))
    if data["peak_mb"]:
        peaks = ", ".join(f"{name} {peak_mb:.0f} MB" for name, peak_mb in data["peak_mb"].items())
        console.print(f"peak memory of a process that loads the model and runs it: {peaks}")
    _render_outputs(console, data)


def _kernels_text(data: Mapping[str, Any]) -> str:
    """What kernels take of a run."""
    kernels, whole_ms = mark_noise(duration(data["kernels_ms"]), data["noise"]), data["tunewright_ms"]
    if data["kernels_ms"] <= whole_ms:
        more = runtime_nodes_text(data["runtime_nodes"])
        return f"of tunewright's time, kernels take {kernels}" + (f"; {more}, in that time" if more else "")
    # Timed in turn with runs, they can take longer only by chance.
    return (
        f"kernels take all of tunewright's time, as far as can be told: {kernels} in a loop without the rest of a run"
    )


def _render_outputs(console: Console, data: Mapping[str, Any]) -> None:
    """Whether the outputs are right, and what is not tuned."""
    if data["mismatch"]:
        console.print(f"the outputs are not those of {data['reference']}: {printable(data['mismatch'])}")
    elif data["reference"]:
        console.print(f"largest error against {data['reference']}: {data['max_rel_err']:.2g} of an output's magnitude")
        if data["reference_saturates"] and (data["max_rel_err"] or 0.0) > SUSPECT_ERROR:
            console.print(
                f"{data['reference']} adds up products of bytes in 16 bits on this processor, where they may saturate; "
                "ours are exact, so its outputs don't tell who is off",
                soft_wrap=True,
            )
        if all(error is not None for error in data["plain_rel_err"].values()) and data["plain_rel_err"]:
            console.print(_who_is_off(data["plain_rel_err"]), soft_wrap=True)
    if data["runtime"]:
        return
    tasks = data["tasks"]
    untuned = tasks["transferred"] + tasks["default"] - tasks["kept"]
    if untuned:
        total = tasks["tuned"] + tasks["kept"] + untuned
        which = f"{untuned} of {counted(total, 'task is', 'tasks are')} not tuned for {data['target']}"
        console.print(f"{which}: {_tune_command(data['threads'])}", soft_wrap=True)


def _tune_command(threads: int | None) -> str:
    """The command that tunes for what was measured: so many threads, or where that is None the GPU."""
    if threads is None:
        return f"tunewright tune --target {CUDA}"
    return "tunewright tune" if threads == len(available_cores()) else f"tunewright tune --threads {threads}"


def _who_is_off(errors: Mapping[str, float]) -> str:
    """Which of two that differ is off, by their errors against the reference without its graph optimisations."""
    (ours, ours_off), (reference, reference_off) = ((name, errors[name]) for name in (OURS, REFERENCE))
    if reference_off > SUSPECT_ERROR >= ours_off:
        verdict = f"so it is {reference}'s optimised kernels that are off"
    elif ours_off > SUSPECT_ERROR >= reference_off:
        verdict = f"so it is {ours} that is off: tell the maintainers, with the model"
    else:
        verdict = "so they don't tell who is off"
    both = f"{ours} {ours_off:.2g}, {reference} itself {reference_off:.2g}"
    return f"against {reference} without its graph optimisations: {both}; {verdict}"


def _table(console: Console, data: Mapping[str, Any]) -> Table:
    """Times of runs on a processor."""
    extra = ("least", "version") if is_wide(console) else ()
    table = new_table(console, ("runtime",), ("time", "95% interval", "time / ours", *extra))
    runs_ms, noise = _runs_ms(data), data["noise"]
    for name, value_ms in sorted(runs_ms.items(), key=lambda row: row[1]):
        cells = [
            mark_noise(_time_text(value_ms), noise),
            _interval_text(data["intervals_ms"][name]),
            mark_noise(times(ratio(value_ms, runs_ms[OURS])), noise),
            mark_noise(_time_text(data["least_ms"][name]), noise),
            data["versions"].get(name, ""),
        ]
        table.add_row(name, *cells[: len(table.columns) - 1])
    return table


def _device_table(console: Console, data: Mapping[str, Any]) -> Table:
    """Times on a GPU, and of runs with what they bring there and back."""
    extra = ("run / ours",) if is_wide(console) else ()
    table = new_table(console, ("runtime",), ("on device", "95% interval", "/ ours", "run", *extra))
    device, runs_ms, noise = data["device"], _runs_ms(data), data["noise"]
    for name, value_ms in sorted(device["ms"].items(), key=lambda row: row[1]):
        cells = [
            mark_noise(_time_text(value_ms), noise),
            _interval_text(device["intervals_ms"][name]),
            mark_noise(times(ratio(value_ms, device["ms"][OURS])), noise),
            mark_noise(_time_text(runs_ms[name]), noise),
            mark_noise(times(ratio(runs_ms[name], runs_ms[OURS])), noise),
        ]
        table.add_row(name, *cells[: len(table.columns) - 1])
    return table


def _runs_ms(data: Mapping[str, Any]) -> dict[str, float]:
    """The time of a run by runtime."""
    rows = {OURS: data["tunewright_ms"], **data["peers"]}
    return rows if data["default_ms"] is None else {**rows, DEFAULT: data["default_ms"]}


def _place(data: Mapping[str, Any]) -> str:
    """Where the times were taken, and how many samples."""
    device = data["device"]
    if device is None:
        samples = f"medians of {counted(data['samples'], 'sample')} each, taken in turns"
        return f"{counted(data['threads'], 'thread')} on {data['machine']['processor']}, {samples}"
    facts = [device["name"], f"driver {device['driver']}" if device["driver"] else "", f"CUDA {device['cuda']}"]
    if device["clock_mhz"]:
        least, most = device["clock_mhz"]
        facts.append(f"{most} MHz" if least == most else f"{least} to {most} MHz")
    samples = f"medians of {counted(device['samples'], 'sample')} on the device, {data['samples']} of runs"
    return f"on {', '.join(filter(None, facts))}, {samples}, taken in turns"


def _interval_text(interval_ms: tuple[float, float]) -> str:
    low_ms, high_ms = interval_ms
    return f"{_time_text(low_ms)} to {_time_text(high_ms)}"


def _time_text(value_ms: float) -> str:
    return duration(value_ms, 4)  # intervals are often narrower than a percent
