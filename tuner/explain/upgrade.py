"""What an upgrade did to stale tasks, in words: the same on pages and by commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tunewright.codegen.codec import from_json

from ..noise import total_noise
from ..search.report import Payoff, Retimed, Upgrade
from ..text import clock, counted, duration, mark_noise, printable, share, times
from ..units import in_ms
from . import values

LETTERS = 40
"""Letters of a version that are told at most."""

WITHOUT_GAIN = {
    Payoff.DEFAULT: "no longer for {}, where the default is as fast now",
    Payoff.UNSURE: "it is too close to tell for {}",
    Payoff.FAILS: "no schedule works any more for {}",
}
"""What is said of so many other tasks."""


def upgrade_of(result: Mapping[str, Any] | None) -> Upgrade | None:
    """What the report of a job says of an upgrade; None where it re-timed nothing, or that can't be read."""
    with suppress(ValueError):
        data = None if result is None else result.get("upgrade")
        return data and from_json(Upgrade, data)
    return None


def retimed_of(task: Mapping[str, Any]) -> Retimed | None:
    """What a task of such a report says of it; None where it was not stale."""
    with suppress(ValueError):
        data = task.get("retimed")
        return data and from_json(Retimed, data)
    return None


def versions_text(versions: Mapping[str, str]) -> str:
    """Versions for people, e.g. "tunewright 1.0.0, llvmlite 0.47.0"."""
    return ", ".join(f"{name} {printable(version)[:LETTERS]}" for name, version in versions.items()) or "not known"


def upgrade_lines(result: Mapping[str, Any] | None) -> list[str]:
    """What a job that re-times says of the whole, a sentence each; none for other jobs."""
    upgrade = upgrade_of(result)
    if upgrade is None:
        return []
    versions = versions_text(upgrade.versions)
    if not upgrade.tasks:
        return [f"nothing was stale: what is known was found by the present versions, {versions}"]
    noise = total_noise(values.word(task, "noise") for task in values.entries(result, "tasks") if task.get("retimed"))
    lines = [payoff_text(upgrade), *_change_lines(upgrade, noise), f"the versions now: {versions}"]
    return [*lines, _cost_text(upgrade)]


def payoff_text(upgrade: Upgrade) -> str:
    """For how many of the stale tasks tuning still pays, and what is with the others."""
    counts = {payoff: upgrade.payoffs.get(payoff, 0) for payoff in Payoff}
    stale = counted(upgrade.tasks, "task that was stale", "tasks that were stale")
    if counts[Payoff.DEFAULT] == upgrade.tasks:
        return f"tuning no longer pays: the default is as fast now for {stale}"
    pays = counts[Payoff.PAYS] + counts[Payoff.OTHER]
    others = [words.format(counts[payoff]) for payoff, words in WITHOUT_GAIN.items() if counts[payoff]]
    another = f", for {counts[Payoff.OTHER]} by another schedule" if counts[Payoff.OTHER] else ""
    return "; ".join([f"tuning still pays for {pays} of {stale}{another}", *others])


def _change_lines(upgrade: Upgrade, noise: str) -> Sequence[str]:
    """What the stale tasks took and take, in all."""

    def pair(before_s: float | None, after_s: float | None, factor: float | None) -> str:
        figures = (duration(in_ms(before_s)), duration(in_ms(after_s)), times(factor))
        before, after, how = (mark_noise(figure, noise) for figure in figures)
        return f"{before} before, {after} now: {how} as fast"

    parts = []
    if upgrade.change is not None:
        parts.append(f"on their best {pair(upgrade.before_s, upgrade.best_s, upgrade.change)}")
    if upgrade.default_change is not None:
        parts.append(f"on their defaults {pair(upgrade.before_default_s, upgrade.default_s, upgrade.default_change)}")
    lines = [f"these tasks take of a run {'; '.join(parts)}"] if parts else []
    if upgrade.gain is not None:
        lines.append(f"tuning now makes them {mark_noise(times(upgrade.gain), noise)} as fast as their defaults")
    return lines


def _cost_text(upgrade: Upgrade) -> str:
    took = f"timing them again took {clock(upgrade.seconds)}"
    if upgrade.share is None:
        return f"{took}; how long their tuning had taken is not known"
    return f"{took}, {share(upgrade.share)} of the {clock(upgrade.tuning_s)} that their tuning had taken"
