"""Groups: the stages of nodes that are computed together, their limits, and the shapes under which they see tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from tunewright.codegen.expr.expr import (
    TRANSCENDENTAL,
    TRANSCENDENTAL_OPS,
    Const,
    Expr,
    Load,
    Op,
    Var,
    const,
    loads,
    narrow_source,
    op,
    transform,
    walk,
)
from tunewright.codegen.expr.index import Linear, linear
from tunewright.codegen.expr.nodes import fact

from ..ops.narrow import drop_rounding
from ..task import Axis, Stage, Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes (by their number in the graph) and the stages that compute them.

    `tensors` has every tensor of the stages; those that no stage writes come from outside. `outputs` go there.
    """

    nodes: frozenset[int]
    tensors: Mapping[str, Tensor]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]

    @property
    def inputs(self) -> list[str]:
        """The tensors from outside, in order of use."""
        written = {stage.output for stage in self.stages}
        read = dict.fromkeys(x.tensor for stage in self.stages for x in loads(stage.body))
        return [name for name in read if name not in written]

    @property
    def pointwise(self) -> Stage | None:
        """The only stage, if there is no other and it reduces nothing."""
        return self.stages[0] if len(self.stages) == 1 and not self.stages[0].reduce else None

    def drop_rounding(self) -> Group:
        """The group without what it rounds only between its stages: see `narrow`."""
        stages, tensors = drop_rounding(self.stages, self.tensors, self.outputs)
        return replace(self, stages=stages, tensors=tensors)


def is_movement(body: Expr) -> bool:
    """Whether a body moves elements, from places that depend on no values, and computes nothing."""
    match body:
        case Const():
            return True
        case Load(index=index):
            return not loads(*index)
        case Op("select", (condition, yes, no)):
            return not loads(condition) and is_movement(yes) and is_movement(no)
    return False


def is_affine(body: Expr) -> bool:
    """Whether a body is one element of a tensor at an affine place."""
    return isinstance(body, Load) and all(linear(at) is not None for at in body.index)


def is_product(stage: Stage) -> bool:
    """Whether a stage sums products of two elements. A sum of squares is none: it has one operand."""
    match stage:
        case Stage(body=Op("mul", (left, right)), combiner="sum"):
            factors = narrow_source(left), narrow_source(right)
            return factors[0] != factors[1] and all(isinstance(factor, Load) for factor in factors)
    return False


# Limits: whatever follows on fusion walks the bodies of a task, some of it by calls within calls, and looks at its
# stages together. So how deep and how many they are may not depend on how deep and how wide a model is.


class Size(NamedTuple):
    """The size of an expression."""

    nodes: int  # when shared parts are written out
    levels: int  # a transcendental op counts as TRANSCENDENTAL_OPS


@fact
def size(node: Expr) -> Size:
    """The size of an expression."""
    parts = [size(part) for part in node.children]
    levels = _own_levels(node) + max([part.levels for part in parts], default=0)
    return Size(1 + sum([part.nodes for part in parts]), levels)


@fact
def depths(node: Expr) -> Mapping[str, int]:
    """The level of the deepest load of each tensor, except for loads in indices. Levels as in `Size`."""
    if isinstance(node, Load):
        return {node.tensor: 1}
    own, levels = _own_levels(node), dict[str, int]()
    for part in node.children:
        for tensor, level in depths(part).items():
            levels[tensor] = max(levels.get(tensor, 0), own + level)
    return levels


def _own_levels(node: Expr) -> int:
    return TRANSCENDENTAL_OPS if isinstance(node, Op) and node.name in TRANSCENDENTAL else 1


MAX_STAGES = 64
"""Stages of a group."""

MAX_BODY = 400
"""Nodes of a body, written out as a tree."""

MAX_LEVELS = 64
"""Levels of a body, as in `Size`."""


def fit(stages: Sequence[Stage]) -> bool:
    """Whether these may be the stages of one group."""
    sizes = [size(stage.body) for stage in stages]
    return len(stages) <= MAX_STAGES and all(s.nodes <= MAX_BODY and s.levels <= MAX_LEVELS for s in sizes)


def is_too_deep(body: Expr, tensor: str, element: Expr) -> bool:
    """Whether a body is sure to be too deep once `element` stands where it loads `tensor`.

    Told from what is computed alone: indices may become simpler. A chain of nodes meets a group that has no more room
    again and again, and this takes a small part of the time that putting both together would.
    """
    above = depths(body).get(tensor, 0)
    return above - 1 + max(depths(element).values(), default=0) > MAX_LEVELS


# Shapes


def reshape(group: Group, tensor: str, shape: tuple[int, ...]) -> Group | None:
    """The group with a tensor seen under another shape; None where an index would take a division."""
    old = group.tensors[tensor].shape
    if old == shape:
        return group
    stages: list[Stage] = []
    for stage in group.stages:
        places = {x.index: reindex(x.index, old, shape, stage.extents) for x in loads(stage.body) if x.tensor == tensor}
        index = reindex(stage.index, old, shape, stage.extents) if stage.output == tensor else stage.index
        if index is None or None in places.values():
            return None
        new_stage = replace_loads(stage, tensor, lambda x, places=places: replace(x, index=places[x.index]))  # type: ignore[misc]
        stages.append(replace(new_stage, index=index))
    tensors = {**group.tensors, tensor: replace(group.tensors[tensor], shape=shape)}
    return replace(group, tensors=tensors, stages=tuple(stages))


def align_shapes(first: Group, second: Group, tensor: str) -> tuple[Group, Group] | None:
    """Both groups with each tensor that they share, except `tensor`, under one shape."""
    for name in first.tensors.keys() & second.tensors.keys() - {tensor}:
        view = reshape(second, name, first.tensors[name].shape)
        if view is not None:
            second = view
            continue
        other = reshape(first, name, second.tensors[name].shape)
        if other is None:
            return None
        first = other
    return first, second


def replace_loads(stage: Stage, tensor: str, visit: Callable[[Load], Expr]) -> Stage:
    """The stage with its loads of a tensor replaced."""
    body = transform(stage.body, lambda n: visit(n) if isinstance(n, Load) and n.tensor == tensor else n)
    return replace(stage, body=body)


# Indices of the same place in memory under another shape


def reindex(
    index: Sequence[Expr], source: Sequence[int], target: Sequence[int], extents: Mapping[str, int]
) -> tuple[Expr, ...] | None:
    """The element `index` of a dense tensor of shape `source`, as an index under the shape `target`.

    `extents` are those of the axes. None where the result would not be exact without a division.
    """
    if tuple(source) == tuple(target):
        return tuple(index)
    source_dims = [(at, extent) for at, extent in zip(index, source, strict=True) if extent > 1]
    target_extents = [extent for extent in target if extent > 1]
    indices: list[Expr] = []
    for source_run, target_run in _align([extent for _, extent in source_dims], target_extents):
        parts = _split(_flatten([source_dims[d] for d in source_run]), [target_extents[d] for d in target_run], extents)
        if parts is None:
            return None
        indices += parts
    remaining = iter(indices)
    return tuple(const(0) if extent == 1 else next(remaining) for extent in target)


def _align(source: Sequence[int], target: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Runs of dimensions of two shapes that hold equally many elements, as short as can be. No extent is 1."""
    a = b = 0
    while a < len(source):
        first_a, first_b, size_a, size_b = a, b, source[a], target[b]
        a, b = a + 1, b + 1
        while size_a != size_b:
            if size_a < size_b:
                size_a, a = size_a * source[a], a + 1
            else:
                size_b, b = size_b * target[b], b + 1
        yield range(first_a, a), range(first_b, b)


def _flatten(parts: Sequence[tuple[Expr, int]]) -> Expr:
    """The flat index of several dimensions, from the index and extent of each."""
    total: Expr = const(0)
    for at, extent in parts:
        total = op("add", op("mul", total, extent), at)
    form = linear(total)
    return total if form is None or len(parts) == 1 else form.expr()


def _split(flat: Expr, shape: Sequence[int], extents: Mapping[str, int]) -> list[Expr] | None:
    """The index of each of several dimensions, from their flat index. None where that would take a division."""
    if len(shape) == 1:
        return [flat]
    form = linear(flat)
    if form is None:
        return None
    indices: list[Expr] = []
    for extent in reversed(shape[1:]):
        whole = {axis: c // extent for axis, c in form.coefficients.items() if c % extent == 0}
        rest = Linear({axis: c for axis, c in form.coefficients.items() if c % extent}, form.constant % extent)
        low, high = rest.bounds(extents)
        if low < 0 or high >= extent:
            return None
        indices.append(rest.expr())
        form = Linear(whole, form.constant // extent)
    return [form.expr(), *reversed(indices)]


# Collapse: the same computation over as few dimensions as possible. Dimensions of extent 1 go, and neighbouring
# dimensions that every stage walks together become one: an activation is a flat loop, a 1x1 convolution a matrix
# product. Memory stays as it is; only the shapes under which it is seen change.

Tensors = Mapping[str, Tensor]
Pair = tuple[int, str, str]  # stage number, outer axis, inner axis
Dims = tuple[str, int]  # tensor, the outer one of two neighbouring dimensions


def collapse(tensors: Tensors, stages: Sequence[Stage]) -> tuple[dict[str, Tensor], list[Stage]]:
    """The tensors under their new shapes, and the stages over them."""
    new_tensors, new_stages = _squeeze(tensors, stages)
    while merge := _find_merge(new_tensors, new_stages):
        new_tensors, new_stages = _merge(new_tensors, new_stages, *merge)
    return new_tensors, new_stages


def _squeeze(tensors: Tensors, stages: Sequence[Stage]) -> tuple[dict[str, Tensor], list[Stage]]:
    """Remove dimensions of extent 1; a tensor of one element keeps one."""
    keep = {name: [d for d, extent in enumerate(tensor.shape) if extent > 1] for name, tensor in tensors.items()}
    new_tensors = {name: replace(t, shape=tuple(t.shape[d] for d in keep[name]) or (1,)) for name, t in tensors.items()}

    def index_of(name: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(index[d] for d in keep[name]) or (const(0),)

    return new_tensors, [_reindex(stage, index_of) for stage in stages]


def _find_merge(tensors: Tensors, stages: Sequence[Stage]) -> tuple[set[Pair], set[Dims]] | None:
    """Axes and dimensions that can be merged with each other, if there are any left."""
    accesses = [  # every place that a stage reads or writes
        [(stage.output, stage.index), *((n.tensor, n.index) for n in walk(stage.body) if isinstance(n, Load))]
        for stage in stages
    ]
    for name, tensor in tensors.items():
        for d in range(len(tensor.shape) - 1):
            closure = _closure(tensors, stages, accesses, (name, d))
            if closure is not None:
                return closure
    return None


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
                if not _covers_dims(stage, outer, inner, tensors[name].shape[d : d + 2]):
                    return None
                assert isinstance(outer, Var)
                assert isinstance(inner, Var)
                pair = number, outer.name, inner.name
                if pair not in pairs:
                    pairs.add(pair)
                    more = _paired_dims(stage, accesses[number], outer.name, inner.name)
                    if more is None:
                        return None
                    todo += [m for m in more if m not in dims]
                    dims.update(more)
    axes = [(number, axis) for number, *names in pairs for axis in names]
    ends = [(name, d + offset) for name, d in dims for offset in (0, 1)]
    return (pairs, dims) if pairs and len(set(axes)) == len(axes) and len(set(ends)) == len(ends) else None


def _covers_dims(stage: Stage, outer: Expr, inner: Expr, extents: tuple[int, ...]) -> bool:
    """Whether two indices are axes of one kind that cover two dimensions wholly."""
    match outer, inner:
        case Var(a), Var(b):
            return any(
                [axis.extent for axis in axes if axis.name == a] == [extents[0]]
                and [axis.extent for axis in axes if axis.name == b] == [extents[1]]
                for axes in (stage.axes, stage.reduce)
            )
    return False


def _paired_dims(
    stage: Stage, accesses: Sequence[tuple[str, tuple[Expr, ...]]], outer: str, inner: str
) -> list[Dims] | None:
    """The dimensions that two axes index; None if one is ever used without the other right beside it."""
    dims: list[Dims] = []
    for tensor, index in accesses:
        for d, expr in enumerate(index):
            if expr == Var(outer) and d + 1 < len(index) and index[d + 1] == Var(inner):
                dims.append((tensor, d))
            elif expr == Var(inner) and d > 0 and index[d - 1] == Var(outer):
                continue
            elif any(n == Var(outer) or n == Var(inner) for n in walk(expr)):
                return None
    return None if _has_value_use(stage.body, {outer, inner}) else dims


def _has_value_use(body: Expr, names: set[str]) -> bool:
    """Whether a variable occurs outside the indices of loads."""
    match body:
        case Load():
            return False
        case Var(name):
            return name in names
    return any(_has_value_use(part, names) for part in body.children)


def _merge(
    tensors: Tensors, stages: Sequence[Stage], pairs: set[Pair], dims: set[Dims]
) -> tuple[dict[str, Tensor], list[Stage]]:
    new_tensors = {}
    for name, tensor in tensors.items():
        inner = {d + 1 for t, d in dims if t == name}
        shape = [prod(tensor.shape[d : d + 2]) if d + 1 in inner else e for d, e in enumerate(tensor.shape)]
        new_tensors[name] = replace(tensor, shape=tuple(e for d, e in enumerate(shape) if d not in inner))

    def index_of(name: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(e for d, e in enumerate(index) if (name, d - 1) not in dims)

    new_stages = []
    for number, stage in enumerate(stages):
        inner_of = {outer: inner for n, outer, inner in pairs if n == number}
        stage = replace(stage, axes=_merge_axes(stage.axes, inner_of), reduce=_merge_axes(stage.reduce, inner_of))
        new_stages.append(_reindex(stage, index_of))
    return new_tensors, new_stages


def _merge_axes(axes: Sequence[Axis], inner_of: Mapping[str, str]) -> tuple[Axis, ...]:
    extents = {axis.name: axis.extent for axis in axes}
    merged_axes = set(inner_of.values())
    return tuple(
        Axis(a.name, a.extent * extents[inner_of[a.name]]) if a.name in inner_of else a
        for a in axes
        if a.name not in merged_axes
    )


def _reindex(stage: Stage, index_of: Callable[[str, tuple[Expr, ...]], tuple[Expr, ...]]) -> Stage:
    def visit(node: Expr) -> Expr:
        if isinstance(node, Load):
            return Load(node.tensor, index_of(node.tensor, node.index), node.dtype)
        return node

    return replace(stage, body=transform(stage.body, visit), index=index_of(stage.output, stage.index))
