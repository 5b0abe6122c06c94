"""What a run has found: findings in groups, reasons of the differences that are none, and what was drawn."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_whole
from .case import Case, saved
from .crew import Result
from .drawing import GENERATOR
from .drawn.table import UNDRAWN, drawable
from .judging import Finding

MOST_SHRUNK = 4
"""Findings of a signature that are made smaller; of values that differ, each is, as the ops in it are what tells."""

MOST_KEPT = 3
"""Seeds of a group that are kept for later runs."""

SHOWN = 6
"""Seeds of a group that are shown."""


@dataclass
class Group:
    """Findings of one origin, as far as can be told."""

    title: str
    seeds: list[int] = field(default_factory=list)
    smallest: Case | None = None
    told: str = ""
    text: str = ""

    def add(self, result: Result) -> None:
        """One more."""
        finding = result.judged.verdict.finding
        assert finding is not None
        self.seeds.append(result.seed)
        if result.smaller is not None and (self.smallest is None or _size(result.smaller) < _size(self.smallest)):
            self.smallest, self.told = result.smaller, result.told
        self.told = self.told or finding.detail
        self.text = self.text or finding.text

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"title": self.title, "count": len(self.seeds), "seeds": self.seeds[:MOST_KEPT], "told": self.told}


def _size(case: Case) -> tuple[int, int]:
    return len(case.ops()), len(case.model)


@dataclass
class Report:
    """Everything there is to say of a run."""

    models: int = 0
    seconds: float = 0.0
    answered: Counter[str] = field(default_factory=Counter)  # "ours, onnxruntime, evaluator" -> how many models
    reasons: Counter[str] = field(default_factory=Counter)
    drawn: Counter[str] = field(default_factory=Counter)  # op -> models that have it
    compared: Counter[str] = field(default_factory=Counter)  # op -> models of those that had two answers
    groups: dict[str, Group] = field(default_factory=dict)
    _shrunk: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def findings(self) -> int:
        """How many models showed a fault."""
        return sum(len(group.seeds) for group in self.groups.values())

    def wants_smaller(self, finding: Finding) -> bool:
        """Whether one more of this signature is worth making smaller."""
        with self._lock:
            self._shrunk[finding.signature] += 1
            return finding.signature.startswith("values") or self._shrunk[finding.signature] <= MOST_SHRUNK

    def hear(self, result: Result) -> None:
        """Take in what became of a seed."""
        verdict, ops = result.judged.verdict, set(result.judged.ops)
        self.models += 1
        self.reasons.update(verdict.reasons)
        self.drawn.update(ops)
        if len(verdict.answered) > 1:
            self.compared.update(ops)
        if verdict.finding is None:
            self.answered[", ".join(verdict.answered) or "nobody"] += 1
            return
        title = verdict.finding.signature
        if result.smaller is not None:
            title += f" of {', '.join(sorted(set(result.smaller.ops())))}"
        self.groups.setdefault(title, Group(title)).add(result)

    def undrawn(self) -> list[str]:
        """Ops of the opsets that no model had, but for those that none can have."""
        return sorted(drawable() - set(UNDRAWN) - set(self.drawn))

    def lines(self) -> Iterator[str]:
        """For people."""
        for group in sorted(self.groups.values(), key=lambda one: -len(one.seeds)):
            seeds = ", ".join(map(str, group.seeds[:SHOWN])) + (", ..." if len(group.seeds) > SHOWN else "")
            yield f"\n{len(group.seeds)} x {group.title}; seeds {seeds}"
            yield f"  {group.told}"
            if group.smallest is not None:
                yield from (f"    {line}" for line in group.smallest.lines())
            if group.text:
                yield from (f"    {line}" for line in group.text.strip().splitlines()[-6:])
        yield ""
        rate = self.models / self.seconds if self.seconds else 0.0
        yield f"{self.models:,} models in {self.seconds:.0f} s, {rate:.1f} a second; {self.findings:,} with a finding"
        yield from (f"  {count:8,} answered alike by {who}" for who, count in self.answered.most_common())
        yield from (f"  {count:8,} differ, explained: {reason}" for reason, count in self.reasons.most_common())
        if self.models > 1:
            yield f"  {len(self.drawn)} ops drawn; never drawn: {', '.join(self.undrawn()) or 'none'}"

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "generator": GENERATOR,
            "models": self.models,
            "seconds": round(self.seconds, 1),
            "answered": dict(self.answered.most_common()),
            "explained": dict(self.reasons.most_common()),
            "findings": [group.to_json() for group in self.groups.values()],
            "ops": {op: [count, self.compared[op]] for op, count in sorted(self.drawn.items())},
            "undrawn": self.undrawn(),
        }  # fmt: skip


def keep(report: Report, folder: Path) -> None:
    """Write the smallest case of each group into a folder: the model, its inputs and what is wrong."""
    for number, group in enumerate(sorted(report.groups.values(), key=lambda one: -len(one.seeds))):
        if group.smallest is not None:
            place = folder / f"{number:02}"
            write_whole(place / "model.onnx", group.smallest.model)
            np.savez(place / "inputs.npz", allow_pickle=False, **saved(group.smallest))
            said = "\n".join([group.title, group.told, *group.smallest.lines(), group.text])
            write_whole(place / "finding.txt", f"{said}\n".encode())


def kept_seeds(path: Path) -> dict[int, str]:
    """Seeds that showed something in earlier runs, and what; none of those that mean other models by now."""
    if not path.exists():
        return {}
    data = json.loads(path.read_text())
    return {int(seed): what for seed, what in data["seeds"].items()} if data["generator"] == GENERATOR else {}


def keep_seeds(path: Path, report: Report) -> None:
    """Add the seeds of a run to those that are kept."""
    seeds = kept_seeds(path)
    for group in report.groups.values():
        for seed in group.seeds[:MOST_KEPT]:
            seeds.setdefault(seed, group.title)
    data = {"generator": GENERATOR, "seeds": {str(seed): seeds[seed] for seed in sorted(seeds)}}
    write_whole(path, f"{json.dumps(data, indent=1)}\n".encode())
