"""Text for people: numbers with their units, and text out of models, which may be hostile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import floor, log10

NOISE = 0.01
"""Parts of one that a ratio of times must be off one to be worth a number."""

TRIED = "°"
"""Behind a figure that follows from trials: nothing was confirmed beside the default yet."""

BARS = "▁▂▃▄▅▆▇█"
"""What sparklines are made of, the lowest first."""


def printable(text: object) -> str:
    """The text on one line, with every unprintable character escaped: no terminal obeys it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def shortened(text: str, most: int) -> str:
    """The text, or as much of the begin of a longer one that with "..." it has `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def printable_lines(text: str) -> str:
    """Lines of text, each `printable`."""
    return "\n".join(map(printable, text.split("\n")))


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


def times(factor: float | None) -> str:
    """A ratio with two decimals, and below 1 at least two digits that count, e.g. "1.62x" or "0.0099x"."""
    if factor is None:
        return "-"
    decimals = 1 - floor(log10(factor)) if 0 < factor < 1 else 2
    return f"{factor:.{decimals}f}x"


def rough(text: str, noise: str) -> str:
    """A figure, marked where `noise` says why it can't be relied on, e.g. "~1.49 ms"."""
    return f"~{text}" if noise and text[:1].isdigit() else text


def between(interval: tuple[float, float] | None, unit: Callable[[float], str] = times) -> str:
    """A 95% interval, e.g. " (1.38x to 1.45x)", to stand behind its figure; empty where it is not known."""
    return "" if interval is None else f" ({unit(interval[0])} to {unit(interval[1])})"


def is_clear(factor: float) -> bool:
    """Whether a ratio of times is more than noise."""
    return abs(factor - 1.0) > NOISE


def gain(factor: float | None) -> str:
    """The ratio of an old time to a new one, e.g. "1.62x", or "no gain"; "-" where it is not known."""
    return "no gain" if factor is not None and not is_clear(factor) else times(factor)


def ratio(before: float | None, after: float | None) -> float | None:
    """How often `after` goes into `before`; None where one is missing."""
    return before / after if before is not None and after else None


def uses(chosen: int, occurrences: int) -> str:
    """How often a model runs a task of those where it might, e.g. "12" or "0 of 12"."""
    return str(occurrences) if chosen == occurrences else f"{chosen} of {occurrences}"


def share(part: float | None) -> str:
    """A part of one as a percentage."""
    return "-" if part is None else f"{100 * part:.1f}%"


def percent(part: float) -> str:
    """A part of one as it would be given for a percentage, e.g. "2%" or "0.5%"."""
    return f"{100 * part:g}%"


KEY_LETTERS = 12
"""Of a key or digest that people are shown."""


def short(key: str) -> str:
    """The begin of a key or digest, by which people know it again."""
    return key[:KEY_LETTERS]


def counted(count: float, noun: str, nouns: str = "") -> str:
    """So many of a noun, e.g. "1 trial" or "12 trials"; `nouns` is its plural where that is not made by an s."""
    digits = f"{count:,}" if count >= 10_000 else f"{count:g}"
    return f"{digits} {noun if count == 1 else nouns or f'{noun}s'}"


def trials_done(done: int, most: int | None) -> str:
    """How far a search is, e.g. "12 of 200 trials"; "12 trials" where nothing bounds them."""
    return counted(done, "trial") if most is None else f"{done} of {counted(most, 'trial')}"


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


def counted_ops(fallback: Mapping[str, int]) -> str:
    """How many nodes of each op, from op -> nodes, e.g. "1 Resize, 2 Sin"."""
    return ", ".join(f"{count} {printable(op)}" for op, count in fallback.items())


def slow_share(fallback: Mapping[str, int], part: float | None) -> str:
    """What runs without a kernel, from op -> nodes, and what part of a run it takes, as far as that is known."""
    if part is None:
        return slow_nodes(fallback)
    where = f"{100 * part:.0f}% of the model's time is in {counted_ops(fallback)}"
    return f"{where}, run by ONNX's reference evaluator; tuning can't help with that"


def slow_nodes(fallback: Mapping[str, int], reasons: Iterable[str] = ()) -> str:
    """What runs without a kernel, from op -> nodes; with the reasons, which begin with the op, a line an op."""
    begin = "nodes without a kernel, run by the slower reference evaluator:"
    why: dict[str, list[str]] = {}
    for reason in reasons:
        op, _, rest = reason.partition(": ")
        why.setdefault(op, []).append(rest)
    if not why:
        return f"{begin} {counted_ops(fallback)}"
    lines = [begin]
    for op, count in fallback.items():
        because = printable("; ".join(why.get(op, [])))
        lines.append(f"  {counted_ops({op: count})}: {because}" if because else f"  {counted_ops({op: count})}")
    return "\n".join(lines)
