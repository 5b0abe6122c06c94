"""The report of a run: findings in groups, explanations of other differences, and the drawn ops."""

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
from .case import FuzzCase, first_feed_arrays
from .generator import GENERATOR
from .judge import Finding
from .recipes.table import UNSUPPORTED, opset_ops
from .worker_pool import SeedResult

MOST_SHRUNK = 4
"""The most findings of a signature that are shrunk. Of differing values all are, as their ops group them."""

MOST_KEPT = 3
"""The most seeds of a group that are kept for later runs."""

SHOWN = 6
"""The most seeds of a group that are shown."""


@dataclass
class FindingGroup:
    """Findings of one origin, as far as is known."""

    title: str
    seeds: list[int] = field(default_factory=list)
    smallest: FuzzCase | None = None
    detail: str = ""
    text: str = ""

    def add(self, result: SeedResult) -> None:
        """Add a finding."""
        finding = result.judgement.verdict.finding
        assert finding is not None
        self.seeds.append(result.seed)
        if result.smaller is not None and (self.smallest is None or _size(result.smaller) < _size(self.smallest)):
            self.smallest, self.detail = result.smaller, result.detail
        self.detail = self.detail or finding.detail
        self.text = self.text or finding.text

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"title": self.title, "count": len(self.seeds), "seeds": self.seeds[:MOST_KEPT], "told": self.detail}


def _size(case: FuzzCase) -> tuple[int, int]:
    return len(case.ops()), len(case.model)


@dataclass
class FuzzReport:
    """The counts and findings of a run."""

    models: int = 0
    seconds: float = 0.0
    runtimes: Counter[str] = field(default_factory=Counter)  # "ours, onnxruntime, evaluator" -> how many models
    reasons: Counter[str] = field(default_factory=Counter)
    models_by_op: Counter[str] = field(default_factory=Counter)  # op -> models that have it
    compared_by_op: Counter[str] = field(default_factory=Counter)  # op -> models of those that had two answers
    groups: dict[str, FindingGroup] = field(default_factory=dict)
    _shrink_counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def findings(self) -> int:
        """The number of models with a finding."""
        return sum(len(group.seeds) for group in self.groups.values())

    def wants_smaller(self, finding: Finding) -> bool:
        """Whether a finding is to be shrunk."""
        with self._lock:
            self._shrink_counts[finding.signature] += 1
            return finding.signature.startswith("values") or self._shrink_counts[finding.signature] <= MOST_SHRUNK

    def hear(self, result: SeedResult) -> None:
        """Add the result of a seed."""
        verdict, ops = result.judgement.verdict, set(result.judgement.ops)
        self.models += 1
        self.reasons.update(verdict.reasons)
        self.models_by_op.update(ops)
        if len(verdict.runtimes) > 1:
            self.compared_by_op.update(ops)
        if verdict.finding is None:
            self.runtimes[", ".join(verdict.runtimes) or "nobody"] += 1
            return
        title = verdict.finding.signature
        if result.smaller is not None:
            title += f" of {', '.join(sorted(set(result.smaller.ops())))}"
        self.groups.setdefault(title, FindingGroup(title)).add(result)

    def missing_ops(self) -> list[str]:
        """Supported ops of the opsets that no model had."""
        return sorted(opset_ops() - set(UNSUPPORTED) - set(self.models_by_op))

    def lines(self) -> Iterator[str]:
        """The report as lines of text."""
        for group in sorted(self.groups.values(), key=lambda group: -len(group.seeds)):
            seeds = ", ".join(map(str, group.seeds[:SHOWN])) + (", ..." if len(group.seeds) > SHOWN else "")
            yield f"\n{len(group.seeds)} x {group.title}; seeds {seeds}"
            yield f"  {group.detail}"
            if group.smallest is not None:
                yield from (f"    {line}" for line in group.smallest.lines())
            if group.text:
                yield from (f"    {line}" for line in group.text.strip().splitlines()[-6:])
        yield ""
        rate = self.models / self.seconds if self.seconds else 0.0
        yield f"{self.models:,} models in {self.seconds:.0f} s, {rate:.1f} a second; {self.findings:,} with a finding"
        yield from (f"  {count:8,} answered alike by {who}" for who, count in self.runtimes.most_common())
        yield from (f"  {count:8,} differ, explained: {reason}" for reason, count in self.reasons.most_common())
        if self.models > 1:
            yield f"  {len(self.models_by_op)} ops drawn; never drawn: {', '.join(self.missing_ops()) or 'none'}"

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "generator": GENERATOR,
            "models": self.models,
            "seconds": round(self.seconds, 1),
            "answered": dict(self.runtimes.most_common()),
            "explained": dict(self.reasons.most_common()),
            "findings": [group.to_json() for group in self.groups.values()],
            "ops": {op: [count, self.compared_by_op[op]] for op, count in sorted(self.models_by_op.items())},
            "undrawn": self.missing_ops(),
        }  # fmt: skip


def write_cases(report: FuzzReport, folder: Path) -> None:
    """Write the smallest case of each group into a folder: the model, its inputs and the finding."""
    for number, group in enumerate(sorted(report.groups.values(), key=lambda group: -len(group.seeds))):
        if group.smallest is not None:
            case_folder = folder / f"{number:02}"
            write_whole(case_folder / "model.onnx", group.smallest.model)
            np.savez(case_folder / "inputs.npz", allow_pickle=False, **first_feed_arrays(group.smallest))
            text = "\n".join([group.title, group.detail, *group.smallest.lines(), group.text])
            write_whole(case_folder / "finding.txt", f"{text}\n".encode())


def read_seeds(path: Path) -> dict[int, str]:
    """Seeds with findings of earlier runs, and their titles; none if another version of the generator made them."""
    if not path.exists():
        return {}
    data = json.loads(path.read_text())
    return {int(seed): title for seed, title in data["seeds"].items()} if data["generator"] == GENERATOR else {}


def add_seeds(path: Path, report: FuzzReport) -> None:
    """Add the seeds of a run's findings to the file."""
    seeds = read_seeds(path)
    for group in report.groups.values():
        for seed in group.seeds[:MOST_KEPT]:
            seeds.setdefault(seed, group.title)
    data = {"generator": GENERATOR, "seeds": {str(seed): seeds[seed] for seed in sorted(seeds)}}
    write_whole(path, f"{json.dumps(data, indent=1)}\n".encode())
