"""Collapse: the same computation over as few dimensions as possible.

Dimensions of extent 1 go, and neighbouring dimensions that every stage walks together become one: an activation is a
flat loop, a 1x1 convolution a matrix product. Memory stays as it is; only the shapes under which it is seen change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from tunewright.codegen.expr import Const, Expr, Load, Var, const, transform, walk

from .task import Axis, Stage, Tensor

Tensors = Mapping[str, Tensor]
Pair = tuple[int, str, str]  # stage number, outer axis, inner axis
Dims = tuple[str, int]  # tensor, the outer one of two neighbouring dimensions


def collapse(tensors: Tensors, stages: Sequence[Stage]) -> tuple[dict[str, Tensor], list[Stage]]:
    """The tensors under their new shapes, and the stages over them."""
    fresh, done = _squeezed(tensors, stages)
    while merge := _mergeable(fresh, done):
        fresh, done = _merged(fresh, done, *merge)
    return fresh, done


def _squeezed(tensors: Tensors, stages: Sequence[Stage]) -> tuple[dict[str, Tensor], list[Stage]]:
    """Without dimensions of extent 1; a tensor of one element, whatever its rank, has one."""
    keep = {name: [d for d, extent in enumerate(tensor.shape) if extent > 1] for name, tensor in tensors.items()}
    fresh = {name: replace(t, shape=tuple(t.shape[d] for d in keep[name]) or (1,)) for name, t in tensors.items()}

    def index_of(name: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(index[d] for d in keep[name]) or (const(0),)

    return fresh, [_reindexed(stage, index_of) for stage in stages]


def _mergeable(tensors: Tensors, stages: Sequence[Stage]) -> tuple[set[Pair], set[Dims]] | None:
    """Axes and dimensions that can be merged with each other, if there are any left."""
    accesses = [_accesses(stage) for stage in stages]
    for name, tensor in tensors.items():
        for d in range(len(tensor.shape) - 1):
            closure = _closure(tensors, stages, accesses, (name, d))
            if closure is not None:
                return closure
    return None


def _accesses(stage: Stage) -> list[tuple[str, tuple[Expr, ...]]]:
    """Every place that a stage reads or writes."""
    reads = [(n.tensor, n.index) for n in walk(stage.body) if isinstance(n, Load)]
    return [(stage.output, stage.index), *reads]


def _closure(
    tensors: Tensors, stages: Sequence[Stage], accesses: Sequence[Sequence[tuple[str, tuple[Expr, ...]]]], first: Dims
) -> tuple[set[Pair], set[Dims]] | None:
    """Everything that must be merged along with two dimensions; None if something stands in the way."""
    pairs: set[Pair] = set()
    dims: set[Dims] = {first}
    todo: list[Dims] = [first]
    while todo:
        name, d = todo.pop()
        for number, stage in enumerate(stages):
            for tensor, index in accesses[number]:
                if tensor != name:
                    continue
                outer, inner = index[d], index[d + 1]
                if not _walks(stage, outer, inner, tensors[name].shape[d : d + 2]):
                    return None
                assert isinstance(outer, Var)
                assert isinstance(inner, Var)
                pair = number, outer.name, inner.name
                if pair not in pairs:
                    pairs.add(pair)
                    more = _together(stage, accesses[number], outer.name, inner.name)
                    if more is None:
                        return None
                    todo += [m for m in more if m not in dims]
                    dims.update(more)
    axes = [(number, axis) for number, *names in pairs for axis in names]
    ends = [(name, d + offset) for name, d in dims for offset in (0, 1)]
    return (pairs, dims) if pairs and len(set(axes)) == len(axes) and len(set(ends)) == len(ends) else None


def _walks(stage: Stage, outer: Expr, inner: Expr, extents: tuple[int, ...]) -> bool:
    """Whether two indices are axes of one kind that cover two dimensions wholly."""
    match outer, inner:
        case Var(a), Var(b):
            return any(
                [axis.extent for axis in axes if axis.name == a] == [extents[0]]
                and [axis.extent for axis in axes if axis.name == b] == [extents[1]]
                for axes in (stage.axes, stage.reduce)
            )
    return False


def _together(
    stage: Stage, accesses: Sequence[tuple[str, tuple[Expr, ...]]], outer: str, inner: str
) -> list[Dims] | None:
    """The dimensions that two axes index; None if one is ever used without the other right beside it."""
    found: list[Dims] = []
    for tensor, index in accesses:
        for d, expr in enumerate(index):
            if expr == Var(outer) and d + 1 < len(index) and index[d + 1] == Var(inner):
                found.append((tensor, d))
            elif expr == Var(inner) and d > 0 and index[d - 1] == Var(outer):
                continue
            elif any(n == Var(outer) or n == Var(inner) for n in walk(expr)):
                return None
    return None if _used_as_value(stage.body, {outer, inner}) else found


def _used_as_value(body: Expr, names: set[str]) -> bool:
    """Whether a variable occurs outside the indices of loads."""
    cut = transform(body, lambda n: Const(0, n.dtype) if isinstance(n, Load) else n)
    return any(isinstance(n, Var) and n.name in names for n in walk(cut))


def _merged(
    tensors: Tensors, stages: Sequence[Stage], pairs: set[Pair], dims: set[Dims]
) -> tuple[dict[str, Tensor], list[Stage]]:
    fresh = {}
    for name, tensor in tensors.items():
        inner = {d + 1 for t, d in dims if t == name}
        shape = [prod(tensor.shape[d : d + 2]) if d + 1 in inner else e for d, e in enumerate(tensor.shape)]
        fresh[name] = replace(tensor, shape=tuple(e for d, e in enumerate(shape) if d not in inner))

    def index_of(name: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(e for d, e in enumerate(index) if (name, d - 1) not in dims)

    done = []
    for number, stage in enumerate(stages):
        joined = {outer: inner for n, outer, inner in pairs if n == number}
        stage = replace(stage, axes=_joined(stage.axes, joined), reduce=_joined(stage.reduce, joined))
        done.append(_reindexed(stage, index_of))
    return fresh, done


def _joined(axes: Sequence[Axis], joined: Mapping[str, str]) -> tuple[Axis, ...]:
    extents = {axis.name: axis.extent for axis in axes}
    gone = set(joined.values())
    return tuple(
        Axis(a.name, a.extent * extents[joined[a.name]]) if a.name in joined else a for a in axes if a.name not in gone
    )


def _reindexed(stage: Stage, index_of: Callable[[str, tuple[Expr, ...]], tuple[Expr, ...]]) -> Stage:
    def visit(node: Expr) -> Expr:
        if isinstance(node, Load):
            return Load(node.tensor, index_of(node.tensor, node.index), node.dtype)
        return node

    return replace(stage, body=transform(stage.body, visit), index=index_of(stage.output, stage.index))
