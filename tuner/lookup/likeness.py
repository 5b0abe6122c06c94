"""Likeness: which targets and tasks are near enough that what is best for one may serve another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.target import Target
from tunewright.graph.task import Task

Numbers = NDArray[np.float64]

LARGEST = 1e300
"""What stands for infinity."""


def siblings(target: Target, others: Iterable[Target]) -> list[Target]:
    """Those of the others on which the same kernels run, the nearest first.

    They have the same kind, system and vector registers. Those of the same processor come before the others; then
    counts the distance in threads and cache sizes.
    """

    def distance(other: Target) -> tuple[bool, float, str]:
        sizes = ("threads", "l1_bytes", "l2_bytes", "l3_bytes")
        apart = sum(abs(log((1 + getattr(other, name)) / (1 + getattr(target, name)))) for name in sizes)
        return (other.cpu, other.features) != (target.cpu, target.features), apart, other.key

    return sorted((other for other in others if other != target and _runs_alike(target, other)), key=distance)


def _runs_alike(one: Target, other: Target) -> bool:
    names = ("kind", "triple", "vector_bits", "vector_registers")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def numbers(definition: dict[str, Any]) -> Numbers:
    """The numbers of a task's JSON data, in an order that tasks of one family share, as signed logarithms.

    So the difference of two is the logarithm of their ratio, or nearly so for the small ones; 0 has a place too.
    """
    data = {name: definition[name] for name in sorted(definition) if name != "op"}
    values = np.nan_to_num(np.fromiter(_numbers(data), np.float64), nan=0.0)
    return np.asarray(np.sign(values) * np.log1p(np.abs(values)), np.float64)


def _numbers(data: Any) -> Iterator[float]:
    match data:
        case bool() | str() | None:
            return
        case int() | float():
            yield float(max(min(data, LARGEST), -LARGEST))
        case list() | tuple():
            for item in data:
                yield from _numbers(item)
        case _:
            for name in sorted(data):
                yield from _numbers(data[name])


def distances(one: Numbers, others: Iterable[Numbers]) -> Numbers:
    """How far tasks are from one of their family: the sum of the logarithms of the ratios of their numbers."""
    return np.array([np.abs(one - other).sum() if one.shape == other.shape else np.inf for other in others])


def work_ratio(task: Task, measured: Task) -> float:
    """The work of a task among that of a task of its family: by operations, or by bytes where there are none."""
    if task.flops and measured.flops:
        return task.flops / measured.flops
    return task.traffic_bytes / max(measured.traffic_bytes, 1)
