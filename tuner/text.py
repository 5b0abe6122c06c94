"""Text for people: numbers with their units, and text out of models, which may be hostile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import floor, log10

from tunewright.search_space.counts import MOST_PERCENT
from tunewright.search_space.counts import counted as counted
from tunewright.search_space.counts import percentage as percentage

NOISE = 0.01
"""Relative difference of two times up to which they count as equal."""

TRIAL_MARK = "°"
"""Suffix of a figure that follows from trials and is not confirmed yet."""

TRIAL_LEGEND = "by trials, not confirmed"
"""The meaning of `TRIAL_MARK`."""

ONNX_RUNTIME = "ONNX Runtime"
"""The vendor's runtime that may run what we don't, or run it faster."""

IMPORTED = "imported: timed elsewhere, not here yet"
"""What is said of a time that another database told, and that no machine here took."""

NOISE_MARK = "~"
"""Prefix of a figure that was measured while the machine was too busy to rely on it."""

NOISE_LEGEND = "taken while the machine was too busy to rely on it"
"""The meaning of `NOISE_MARK`."""

VOID_MARK = "†"
"""Suffix of a figure of a job whose schedule was taken back since."""

VOID_LEGEND = "taken back since, and used no more: what is told of the whole is from before that"
"""The meaning of `VOID_MARK`."""

MOST_MORE = 3
"""Digits that the ends of an interval have more than their figure, at most."""

Interval = tuple[float, float]
"""Both ends of an interval."""

BARS = "▁▂▃▄▅▆▇█"
"""Characters of sparklines, the lowest first."""


def printable(text: object) -> str:
    """The text on one line, with every unprintable character escaped: no terminal obeys it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def shorten(text: str, most: int) -> str:
    """The text, or as much of the begin of a longer one that with "..." it has `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def printable_lines(text: str) -> str:
    """Lines of text, each `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def rounded(value: float, digits: int) -> float:
    """A number to so many digits, for what is told as data of which there is much."""
    return float(f"{value:.{digits}g}")


def ms(value: float | None) -> str:
    """Milliseconds with four digits that count, "-" where nothing is known."""
    return "-" if value is None else f"{value:#.4g}".rstrip(".")


def duration(value_ms: float | None, digits: int = 3) -> str:
    """Milliseconds in the unit that suits them, e.g. "1.49 ms", "374 µs" or "12.0 ns"; "-" where nothing is known."""
    if value_ms is None:
        return "-"
    for unit, factor in (("s", 1e-3), ("ms", 1.0), ("µs", 1e3)):
        number = f"{value_ms * factor:#.{digits}g}".rstrip(".")
        if float(number) >= 1:
            return f"{float(number):.0f} {unit}" if "e" in number else f"{number} {unit}"
    return f"{f'{value_ms * 1e6:#.{digits}g}'.rstrip('.')} ns" if value_ms else "0 ns"


def times(factor: float | None, more: int = 0) -> str:
    """A ratio with two decimals, and below 1 at least two digits that count, e.g. "1.62x" or "0.0099x".

    `more` digits than that.
    """
    if factor is None:
        return "-"
    decimals = 1 - floor(log10(factor)) if 0 < factor < 1 else 2
    return f"{factor:.{decimals + more}f}x"


def mark_noise(text: str, noise: str) -> str:
    """A figure, marked where `noise` says why it can't be relied on, e.g. "~1.49 ms"."""
    return f"{NOISE_MARK}{text}" if noise and text[:1].isdigit() else text


def mark_trial(text: str, is_tried: bool = True) -> str:
    """A figure, marked where it is of trials, e.g. "1.49 ms°"."""
    return f"{text}{TRIAL_MARK}" if is_tried and text.lstrip(NOISE_MARK)[:1].isdigit() else text


def mark_void(text: str, is_voided: bool) -> str:
    """A figure, marked where its schedule was taken back since, e.g. "274 µs†"."""
    return f"{text}{VOID_MARK}" if is_voided and text != "-" else text


def cause(noise: str, *figures: str) -> str:
    """The noise of figures that are marked for it; empty where none is: "no gain" of noisy times has no mark."""
    return noise if any(NOISE_MARK in figure for figure in figures) else ""


def moments(reasons: Iterable[str]) -> str:
    """Why the machine was too busy for several times of one schedule, each taken at a moment of its own."""
    return "; or, at another time, ".join(dict.fromkeys(filter(None, reasons)))


def legends(figures: Iterable[str], reasons: Iterable[str] = ()) -> list[str]:
    """A line for each mark that is at any of these figures, and for no other.

    `reasons` say why the machine was too busy, each the `cause` of a mark: the first of several is an example.
    """
    figures, causes = list(figures), list(dict.fromkeys(reason for reason in reasons if reason))
    lines = [f"{TRIAL_MARK} {TRIAL_LEGEND}"] if any(TRIAL_MARK in figure for figure in figures) else []
    if any(NOISE_MARK in figure for figure in figures):
        because = f"{', for example' if len(causes) > 1 else ''}: {printable(causes[0])}" if causes else ""
        lines.append(f"{NOISE_MARK} {NOISE_LEGEND}{because}")
    if any(VOID_MARK in figure for figure in figures):
        lines.append(f"{VOID_MARK} {VOID_LEGEND}")
    return lines


def edges(interval: Interval | None, unit: Callable[[float, int], str]) -> tuple[str, str] | None:
    """Both ends of a 95% interval, with as many digits more as tell them apart.

    None where it is not known, or has no width: no time is known so well, so that is of one sample.
    """
    if interval is None or interval[0] == interval[1]:
        return None
    ends = [(unit(interval[0], more), unit(interval[1], more)) for more in range(MOST_MORE + 1)]
    return next(((low, high) for low, high in ends if low != high), None)


def between(interval: Interval | None, unit: Callable[[float, int], str] = times) -> str:
    """A 95% interval of a ratio, e.g. " (1.38x to 1.45x)", to stand behind its figure; empty where `edges` has none."""
    ends = edges(interval, unit)
    return f" ({ends[0]} to {ends[1]})" if ends else ""


def between_ms(interval: Interval | None) -> str:
    """A 95% interval of a time in milliseconds, e.g. " (374 µs to 380 µs)"; see `between`."""
    return between(interval, lambda value_ms, more: duration(value_ms, 3 + more))


def gain_within(factor: float | None, interval: Interval | None) -> str:
    """A gain as a table has room for it, e.g. "1.62x [1.59, 1.64]", as `gain` where `edges` has no interval."""
    ends = edges(interval, times)
    return f"{times(factor)} [{ends[0][:-1]}, {ends[1][:-1]}]" if ends else gain(factor)


def is_clear(factor: float) -> bool:
    """Whether a ratio of times differs from 1 by more than noise."""
    return abs(factor - 1.0) > NOISE


def gain(factor: float | None) -> str:
    """The ratio of an old time to a new one, e.g. "1.62x", or "no gain"; "-" where it is not known."""
    return "no gain" if factor is not None and not is_clear(factor) else times(factor)


def ratio_within(before: Interval | None, after: Interval | None) -> Interval | None:
    """The interval of the ratio of two times within these intervals; None where one is missing or reaches zero.

    It is wider than a 95% interval: that both times are off to opposite sides is rarer than that one is. An interval
    without width is as good as missing, as `edges` has it.
    """
    if before is None or after is None or not min(after) or before[0] == before[1] or after[0] == after[1]:
        return None
    return before[0] / after[1], before[1] / after[0]


def is_certain(interval: Interval | None) -> bool:
    """Whether a ratio's interval lies on one side of 1: else the two times can't be told apart."""
    return interval is not None and (interval[0] > 1.0 or interval[1] < 1.0)


def is_slower(interval: Interval | None) -> bool:
    """Whether all of a gain's interval is below 1: what it is the gain of is slower for certain."""
    return interval is not None and interval[1] < 1.0


def change(factor: float, decimals: int = 0) -> str:
    """A change by a factor as a percentage with its sign, e.g. "-30%"; one that rounds to none is "+0%".

    A factor where that is easier to read, e.g. "407x".
    """
    if factor > MOST_PERCENT:
        return f"{factor:,.0f}x"
    return f"{100 * (factor - 1):+z.{decimals}f}%"


def beside_trial(expected_ms: float, trial_ms: float, noise: str = "") -> str:
    """How far a predicted time is off the trial of the schedule, e.g. "-30% beside its trial's 5.71 ms°".

    Models learn from trials, so what they expect is a time of a trial too, not one that was confirmed. `noise` is the
    trial's.
    """
    trial = mark_trial(mark_noise(duration(trial_ms), noise))
    return f"{change(expected_ms / trial_ms)} beside its trial's {trial}"


def ratio(before: float | None, after: float | None) -> float | None:
    """How often `after` goes into `before`; None where one is missing."""
    return before / after if before is not None and after else None


def uses(chosen: int, occurrences: int) -> str:
    """How often a model runs a task of those where it might, e.g. "12" or "0 of 12"."""
    return str(occurrences) if chosen == occurrences else f"{chosen} of {occurrences}"


def share(part: float | None) -> str:
    """A part of one as a percentage; a factor where that is easier to read, as in `change`."""
    if part is not None and part > MOST_PERCENT:
        return f"{part:,.0f}x"
    return "-" if part is None else f"{100 * part:z.1f}%"


def small_share(part: float | None) -> str:
    """A part of one that may be small, e.g. "0.042%"."""
    return share(part) if part is None or part >= 0.1 else f"{100 * part:.2g}%"


def faster(expected: float | None) -> str:
    """An expected gain, of which 0.03 is 3%, e.g. "3.0% faster"."""
    if expected is None or expected < 1:
        return "-" if expected is None else f"{share(expected)} faster"
    return f"{times(1 + expected)} as fast"


def percent(part: float) -> str:
    """A part of one as it would be given for a percentage, e.g. "2%" or "0.5%"."""
    return f"{100 * part:g}%"


def limits(trials: int | None, minutes: float | None, until: float | None, before_s: float = 0.0) -> list[str]:
    """The limits of a search, whichever comes first; `before_s` were spent before its minutes count."""
    more = f" more than the {clock(before_s)} spent before" if before_s else ""
    return [
        *([] if trials is None else [counted(trials, "trial")]),
        *([] if minutes is None else [f"{counted(minutes, 'minute')}{more}"]),
        *([] if until is None else [until_words(until)]),
    ]


def until_words(part: float) -> str:
    """The limit that a search ends where a minute brings too little."""
    return f"until a minute brings less than {percent(part)}"


KEY_LETTERS = 12
"""Letters of a key or digest in output for people."""


def short(key: str) -> str:
    """The begin of a key or digest, by which people know it again."""
    return key[:KEY_LETTERS]


def trials_done(done: int, most: int | None) -> str:
    """The trials of a search, e.g. "12 of 200 trials"; "12 trials" without a bound.

    "72 trials, 40 asked for" where an earlier run of the job was to do more.
    """
    if most is None:
        return counted(done, "trial")
    return f"{done} of {counted(most, 'trial')}" if done <= most else f"{counted(done, 'trial')}, {most} asked for"


def failures(failed: Mapping[str, int], where: str = "") -> str:
    """How many trials failed, and in which way, the most frequent first, from status -> trials; empty for none."""
    if not failed:
        return ""
    by_count = dict(sorted(failed.items(), key=lambda entry: -entry[1]))
    return f"{counted(sum(failed.values()), f'trial{where}', f'trials{where}')} failed: {op_counts(by_count)}"


def taken_back(voided: int) -> str:
    """How many trials people took back, e.g. "2 trials were taken back"."""
    return f"{counted(voided, 'trial was', 'trials were')} taken back"


def large(count: float, unit: str = "") -> str:
    """A count with the letter of its thousands, e.g. "3.63 GFLOP"."""
    for letter in ("", "k", "M", "G", "T"):
        if abs(count) < 1000:
            return f"{count:.3g} {letter}{unit}".rstrip()
        count /= 1000
    return f"{count:.3g} P{unit}"


def clock(seconds: float) -> str:
    """A duration, e.g. "1:05" or "2:03:00"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def about(seconds: float) -> str:
    """A duration that was not measured but is expected, e.g. "about 25 min" or "90 s"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes <= 90:
        return f"about {round(minutes) if minutes < 10 else 5 * round(minutes / 5)} min"
    hours = round(minutes / 60)
    return f"about {hours} h" if hours <= 48 else f"about {round(hours / 24)} days"


def search_time(seconds: float, most_s: float | None, before_s: float = 0.0) -> str:
    """The time of a search and its bound, e.g. "0:27 of 1:00", and what was spent before that bound counts."""
    if most_s is None:
        return clock(seconds)
    before = f", after {clock(before_s)} before" if before_s else ""
    return f"{clock(seconds - before_s)} of {clock(most_s)}{before}"


def sparkline(values: Sequence[float]) -> str:
    """A character a value, the higher the larger it is; "" for none."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    top = len(BARS) - 1
    return "".join(BARS[round(top * (value - low) / (high - low)) if high > low else 0] for value in values)


def shape(extents: object) -> str:
    """A shape, e.g. "1x3x224x224"; "scalar" for none, "?" where only running tells."""
    match extents:
        case None:
            return "?"
        case tuple() | list():
            return "x".join(map(str, extents)) or "scalar"
        case _:
            raise TypeError(f"{extents!r} is no shape")


def dims_text(dims: Mapping[str, int]) -> str:
    """Dimensions and their sizes, e.g. "batch=1, width=320"."""
    return ", ".join(f"{printable(name)}={size}" for name, size in dims.items())


def sized_name(name: str, dims: Mapping[str, int]) -> str:
    """A model's name with the sizes that it is for, e.g. "net.onnx, batch=1"."""
    return ", ".join(filter(None, (name, dims_text(dims))))


def op_counts(fallback: Mapping[str, int]) -> str:
    """How many nodes of each op, from op -> nodes, e.g. "1 Resize, 2 Sin"."""
    return ", ".join(f"{count} {printable(op)}" for op, count in fallback.items())


def runtime_nodes_text(count: int) -> str:
    """Why the time of kernels is more than that of tasks, e.g. "1 node is no task: ..."; empty where it is not."""
    if not count:
        return ""
    return f"{counted(count, 'node is', 'nodes are')} no task: the runtime itself does {'them' if count > 1 else 'it'}"


def slow_share(fallback: Mapping[str, int], part: float | None, noise: str = "") -> str:
    """The ops without a kernel, from op -> nodes, and their part of a run, if known.

    Marked where `noise` says why its times can't be relied on.
    """
    if part is None:
        return slow_nodes(fallback)
    where = f"{mark_noise(f'{100 * part:z.0f}%', noise)} of the model's time is in {op_counts(fallback)}"
    return f"{where}, which have no kernel; tuning can't help with that"


def slow_nodes(fallback: Mapping[str, int], reasons: Iterable[str] = ()) -> str:
    """The ops without a kernel, from op -> nodes; with reasons, which begin with the op, a line an op."""
    begin = "nodes without a kernel, run by ONNX Runtime or, slower, by ONNX's reference evaluator:"
    why: dict[str, list[str]] = {}
    for reason in reasons:
        op, _, rest = reason.partition(": ")
        why.setdefault(op, []).append(rest)
    if not why:
        return f"{begin} {op_counts(fallback)}"
    lines = [begin]
    for op, count in fallback.items():
        because = printable("; ".join(why.get(op, [])))
        lines.append(f"  {op_counts({op: count})}: {because}" if because else f"  {op_counts({op: count})}")
    return "\n".join(lines)
