"""Einsum as products of matrices, two operands at a time from the left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tunewright.graph.draft import Draft
from tunewright.graph.ir import Node

TYPES = frozenset({
    "float32", "float64", "float16", "int32", "int64", "uint32", "uint64",
})  # fmt: skip
"""Types that MatMul and ReduceSum have."""

_DOTS = "0123456789"
"""Labels of the dimensions that an ellipsis stands for, the last one first."""


@dataclass(frozen=True, slots=True)
class _Labelled:
    """A tensor, and a label for each of its dimensions."""

    name: str
    labels: str


def einsum(draft: Draft, node: Node) -> str | None:
    """Add what an Einsum of known shapes comes to; returns the result. None for labels that it doesn't have.

    Before: `y = Einsum(a, b) equation="bij,bjk->bik"`. After: `y = MatMul(a, b)`, between Transposes and Reshapes
    where the labels stand in another order. Of what a label stands for twice in one operand the diagonal counts.
    """
    shapes = [draft.shape(name) or () for name in node.inputs]
    equation = _equation(str(node.attrs["equation"]), [len(shape) for shape in shapes])
    if equation is None or draft.types[node.inputs[0]].dtype not in TYPES:
        return None
    terms, result = equation
    extents: dict[str, int] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        for label, extent in zip(labels, shape, strict=True):
            extents[label] = max(extents.get(label, 1), extent)
        if any(shape[labels.index(label)] != extent for label, extent in zip(labels, shape, strict=True)):
            return None
    if 0 in extents.values():
        return None
    operands = [_Labelled(name, labels) for name, labels in zip(node.inputs, terms, strict=True)]
    operands = [_diagonals(draft, operand) for operand in operands]
    operands = [_expand(draft, operand, extents) for operand in operands]
    first, *others = operands
    for number, other in enumerate(others):
        kept = set(result).union(*(later.labels for later in others[number + 1 :]))
        first = _product(
            draft,
            _sum(draft, first, kept | set(other.labels)),
            _sum(draft, other, kept | set(first.labels)),
            kept,
            extents,
        )
    first = _sum(draft, first, set(result))
    return _transpose(draft, first, result).name


def _equation(text: str, ranks: Sequence[int]) -> tuple[list[str], str] | None:
    """The labels of each operand and of the result, an ellipsis as labels of its own. None where that repeats one."""
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        return None
    dots = ""
    for place, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        count = rank - len(term.replace("...", ""))
        if count < 0 or count > len(_DOTS) or (count and "..." not in term):
            return None
        own = _DOTS[:count][::-1]
        dots = max(dots, own, key=len)
        terms[place] = term.replace("...", own)
    if not arrow:
        letters = "".join(terms)
        right = "..." + "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c not in _DOTS))
    result = right.replace("...", dots)
    if len(set(result)) < len(result) or not set(result) <= set("".join(terms)):
        return None
    return terms, result


def _diagonals(draft: Draft, x: _Labelled) -> _Labelled:
    """The operand with each label once: every extent + 1st element of both dimensions of a label is on the diagonal."""
    for label in dict.fromkeys(x.labels):
        while x.labels.count(label) > 1:
            first, second = [axis for axis, other in enumerate(x.labels) if other == label][:2]
            others = [axis for axis in range(len(x.labels)) if axis not in (first, second)]
            shape = draft.shape(x.name) or ()
            extent, outer = shape[first], tuple(shape[axis] for axis in others)
            moved = draft.emit("Transpose", x.name, perm=(*others, first, second))
            flat = draft.emit("Reshape", moved, shape=(*outer, extent**2))
            step, axes = (extent + 1,), (len(outer),)
            diagonal = draft.emit("Slice", flat, starts=(0,), ends=(extent**2,), axes=axes, steps=step)
            x = _Labelled(diagonal, "".join(x.labels[axis] for axis in others) + label)
    return x


def _expand(draft: Draft, x: _Labelled, extents: Mapping[str, int]) -> _Labelled:
    """The operand with all extents as large as those of the others."""
    shape = tuple(extents[label] for label in x.labels)
    return x if draft.shape(x.name) == shape else _Labelled(draft.emit("Expand", x.name, shape=shape), x.labels)


def _sum(draft: Draft, x: _Labelled, kept: set[str]) -> _Labelled:
    """The operand summed over the dimensions that nothing else has."""
    axes = tuple(axis for axis, label in enumerate(x.labels) if label not in kept)
    if not axes:
        return x
    labels = "".join(label for label in x.labels if label in kept)
    return _Labelled(draft.emit("ReduceSum", x.name, axes=axes, keepdims=0), labels)


def _transpose(draft: Draft, x: _Labelled, labels: str) -> _Labelled:
    order = tuple(x.labels.index(label) for label in labels)
    if order == tuple(range(len(order))):
        return x
    return _Labelled(draft.emit("Transpose", x.name, perm=order), labels)


def _product(draft: Draft, a: _Labelled, b: _Labelled, kept: set[str], extents: Mapping[str, int]) -> _Labelled:
    """The product of two operands, summed over the dimensions that both have and that nobody keeps."""
    both = [label for label in a.labels if label in b.labels]
    batch, inner = ("".join(label for label in both if (label in kept) is is_kept) for is_kept in (True, False))
    rows = "".join(label for label in a.labels if label not in both)
    columns = "".join(label for label in b.labels if label not in both)

    def matrix(x: _Labelled, first: str, second: str) -> str:
        ordered = _transpose(draft, x, batch + first + second)
        shape = (*(extents[label] for label in batch), _size(first, extents), _size(second, extents))
        return draft.emit("Reshape", ordered.name, shape=shape)

    product = draft.emit("MatMul", matrix(a, rows, inner), matrix(b, inner, columns))
    labels = batch + rows + columns
    return _Labelled(draft.emit("Reshape", product, shape=tuple(extents[label] for label in labels)), labels)


def _size(labels: str, extents: Mapping[str, int]) -> int:
    return prod(extents[label] for label in labels)
