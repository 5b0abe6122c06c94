"""Extents: the whole numbers that shapes and ranges are made of, some of which only a run tells, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tunewright.graph.ir import Node

from ..evaluation.sizes import FIND, UNIQUE
from .edit import Edit
from .sized_axes import SizedTensors

MAX_NUMBERS = 64
"""Most numbers of a tensor that are told apart."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A whole number: `most`, or what the tensor int64 [1] of the name `size` has, from 0 to `most`."""

    most: int
    size: str = ""

    def of(self, edit: Edit) -> str:
        """The tensor int64 [1] that has it."""
        return self.size or edit.constant(np.array([self.most], np.int64))


def extents(sized: SizedTensors, name: str) -> list[Extent] | None:
    """The numbers of a tensor of rank 0 or 1, in order; None where one of them has no known bound."""
    edit = sized.edit
    shape = edit.shape(name)
    if shape is None or len(shape) > 1 or edit.types[name].dtype not in ("int32", "int64"):
        return None
    array = edit.array(name)
    if array is not None:
        return [Extent(int(number)) for number in array.reshape(-1)] if array.size <= MAX_NUMBERS else None
    node = edit.producers.get(name)
    if node is None or node.domain:
        return None
    if node.op in (FIND, UNIQUE) and name == node.outputs[1]:
        return [Extent((edit.shape(node.inputs[0]) or (0,))[0], name)]
    return _RULES[node.op](sized, node) if node.op in _RULES else None


_Rule = Callable[[SizedTensors, Node], list[Extent] | None]


def _same(sized: SizedTensors, node: Node) -> list[Extent] | None:
    return extents(sized, node.inputs[0])


def _concat(sized: SizedTensors, node: Node) -> list[Extent] | None:
    numbers: list[Extent] = []
    for name in node.inputs:
        part = extents(sized, name)
        if part is None:
            return None
        numbers += part
    return numbers


def _gather(sized: SizedTensors, node: Node) -> list[Extent] | None:
    data, places = extents(sized, node.inputs[0]), sized.edit.array(node.inputs[1])
    wanted: list[int] = [] if places is None else places.reshape(-1).tolist()
    if data is None or places is None or not all(-len(data) <= place < len(data) for place in wanted):
        return None
    return [data[place] for place in wanted]


def _slice(sized: SizedTensors, node: Node) -> list[Extent] | None:
    data = extents(sized, node.inputs[0])
    if data is None or len(node.inputs) > 1:
        return None
    start, end, step = (node.attrs[name][0] for name in ("starts", "ends", "steps"))
    return data[start : None if end < 0 else end : step]


def _arithmetic(most: Callable[[Sequence[Extent]], int | None]) -> _Rule:
    """The rule for a number that is computed from others, none of them negative; None from `most` is no bound."""

    def rule(sized: SizedTensors, node: Node) -> list[Extent] | None:
        operands: list[Extent] = []
        for name in node.inputs:
            numbers = extents(sized, name)
            if numbers is None or len(numbers) != 1 or numbers[0].most < 0:
                return None
            operands += numbers
        bound = most(operands)
        return None if bound is None else [Extent(bound, sized.size(node.outputs[0]))]

    return rule


def _quotient(operands: Sequence[Extent]) -> int | None:
    number, divisor = operands
    return None if divisor.size or not divisor.most else number.most // divisor.most


def _remainder(sized: SizedTensors, node: Node) -> list[Extent] | None:
    """Of a number that nothing need be known of."""
    divisor = extents(sized, node.inputs[1])
    if divisor is None or len(divisor) != 1 or divisor[0].size or divisor[0].most <= 0 or node.attrs.get("fmod", 0):
        return None
    return [Extent(divisor[0].most - 1, sized.size(node.outputs[0]))]


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"), _same),
    "Add": _arithmetic(lambda operands: sum(operand.most for operand in operands)),
    "Concat": _concat,
    "Div": _arithmetic(_quotient),
    "Gather": _gather,
    "Max": _arithmetic(lambda operands: max(operand.most for operand in operands)),
    "Min": _arithmetic(lambda operands: min(operand.most for operand in operands)),
    "Mod": _remainder,
    "Mul": _arithmetic(lambda operands: prod(operand.most for operand in operands)),
    "Slice": _slice,
}
"""Op -> the numbers of what it makes."""
