"""Groups: the stages of nodes that are computed together, and how two groups become one.

Fusion is algebra on stages. A stage without reduction can be *inlined*: whoever reads its output computes the element
instead. A stage that reads one element of a tensor for each that it writes can *follow* the stage that makes the
tensor: it runs over the same axes, on values that have just been computed. What an op is called plays no part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tunewright.codegen.expr import (
    TRANSCENDENTAL,
    TRANSCENDENTAL_OPS,
    Const,
    Expr,
    Load,
    Op,
    Var,
    const,
    free_vars,
    loads,
    op,
    substitute,
    transform,
    walk,
    widened,
)
from tunewright.codegen.index import linear

from .constant_factors import factored
from .limits import fit, outgrows
from .narrow import unrounded
from .reindex import reindex
from .task import Axis, Stage, Tensor

RECOMPUTED_OPS = 4
"""Operations an element that may be done again to save writing a tensor and reading it back."""

COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "eq", "ne"})


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

    def unrounded(self) -> Group:
        """The group without what it rounds only between its stages: see `narrow`."""
        stages, tensors = unrounded(self.stages, self.tensors, self.outputs)
        return replace(self, stages=stages, tensors=tensors)


def merged(first: Group, then: Group, tensor: str, is_exact: bool) -> Group | None:
    """Both groups as one, where `tensor`, all that `first` gives, is read by `then` alone. None if that won't do.

    `is_exact`: no rounding may differ from that of the groups apart.
    """
    both = inlined(first, then, tensor, is_exact)
    for way in (followed, divided, prefixed):
        both = both or way(first, then, tensor)
    return both.unrounded() if both else None


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
    """Whether a stage sums products of two elements."""
    match stage:
        case Stage(body=Op("mul", (left, right)), combiner="sum"):
            return isinstance(widened(left), Load) and isinstance(widened(right), Load)
    return False


# A producer's expression in the place of a load


def inlined(first: Group, then: Group, tensor: str, is_exact: bool) -> Group | None:
    """`first`, one stage without reduction, computed where `then` reads its output.

    Products stay products of two loads: they take a producer that only moves elements, and a constant factor moves
    behind the sum, but where that `is_exact`. Elsewhere elements may be computed again if that is cheaper than to keep
    them.
    """
    stage = first.pointwise
    places = None if stage is None else _places(stage)
    pair = _aligned(first, then, tensor)
    if stage is None or places is None or pair is None:
        return None
    first, reader = pair[0], reshaped(pair[1], tensor, first.tensors[tensor].shape)
    if reader is None:
        return None
    (stage,) = first.stages
    reading = [s for s in reader.stages if _reads(s, tensor)]
    if any(outgrows(s.body, tensor, stage.body) for s in reading):
        return None
    products = [s for s in reading if is_product(s)]
    body, factor = factored(stage.body) if products and not is_exact else (stage.body, None)
    if not is_affine(body) and (products or not _cheap([stage], reading, tensor)):
        return None
    stages = [_with_element(s, tensor, places, body if s in products else stage.body) for s in reader.stages]
    if not fit(stages):
        return None
    tensors = {**first.tensors, **reader.tensors}
    del tensors[tensor]
    group = Group(first.nodes | then.nodes, tensors, tuple(stages), then.outputs)
    if factor is not None:
        for product in products:
            read = map(widened, product.body.children)
            left, right = (isinstance(x, Load) and x.tensor == tensor for x in read)
            group = _scaled(group, product.output, factor * factor if left and right else factor)
    return group


def _places(stage: Stage) -> Mapping[str, int] | None:
    """Which dimension of its output each axis of a stage walks along; None if an index is anything but an axis."""
    places: dict[str, int] = {}
    for d, at in enumerate(stage.index):
        if isinstance(at, Var) and at.name not in places:
            places[at.name] = d
        elif at != Const(0, at.dtype):
            return None
    return places if len(places) == len(stage.axes) else None


def _with_element(stage: Stage, tensor: str, places: Mapping[str, int], element: Expr) -> Stage:
    """The stage with loads of `tensor` replaced by `element`, whose axes walk along the tensor as `places` says."""
    done: dict[tuple[Expr, ...], Expr] = {}

    def visit(node: Expr) -> Expr:
        if not isinstance(node, Load) or node.tensor != tensor:
            return node
        if node.index not in done:
            done[node.index] = substitute(element, {axis: node.index[d] for axis, d in places.items()})
        return done[node.index]

    return replace(stage, body=transform(stage.body, visit))


def _scaled(group: Group, tensor: str, factor: Expr) -> Group:
    """The group with every element of a tensor multiplied, once it is complete."""
    shape = group.tensors[tensor]
    if tensor not in group.outputs:
        return replace(group, stages=tuple(_reading(s, tensor, lambda load: load * factor) for s in group.stages))
    inner = replace(shape, name=f"{tensor}.unscaled")
    stages: list[Stage] = []
    for stage in group.stages:
        if stage.output == tensor:
            stages.append(replace(stage, output=inner.name))
            body = op("mul", Load(inner.name, stage.index, inner.dtype), factor)
            stages.append(Stage(tensor, stage.axes, body, index=stage.index))
        else:
            stages.append(stage)
    return replace(group, tensors={**group.tensors, inner.name: inner}, stages=tuple(stages))


def _cheap(makers: Sequence[Stage], readers: Sequence[Stage], tensor: str) -> bool:
    """Whether computing elements where they are read costs little more than computing each once."""
    made = sum(s.points for s in makers)
    reads = sum(s.points * sum(x.tensor == tensor for x in loads(s.body)) for s in readers)
    return max(0, reads - made) * max(_ops(s.body) for s in makers) <= RECOMPUTED_OPS * made


def _ops(body: Expr) -> int:
    """What one element costs: operations, and loads beyond the first."""
    nodes = list(walk(body))
    calls = sum(TRANSCENDENTAL_OPS if n.name in TRANSCENDENTAL else 1 for n in nodes if isinstance(n, Op))
    return calls + max(0, sum(isinstance(n, Load) for n in nodes) - 1)


# A stage that takes up what another has just made


def followed(first: Group, then: Group, tensor: str) -> Group | None:
    """`then`, one stage without reduction that reads each element of `tensor` once, over the axes of its producer.

    Where the producer reduces, `then` becomes a stage after it; else the two bodies become one. Dimensions may come
    out in another order: that shows in the index that is written, while the axes keep the producer's order.
    """
    pair = None if then.pointwise is None else _aligned(first, then, tensor)
    if pair is None:
        return None
    first, then = pair
    (stage,) = then.stages
    earlier = [s for s in first.stages if s.output != tensor]
    makers = [s for s in first.stages if s.output == tensor]
    if len(makers) > 1 and any(s.reduce for s in makers):
        return None
    if any(not made.reduce and outgrows(stage.body, tensor, made.body) for made in makers):
        return None
    tensors = {**then.tensors, **first.tensors}
    shape, seen_as = first.tensors[tensor].shape, then.tensors[tensor].shape
    flat = shape != seen_as and _is_flat(stage, then.tensors)
    if flat:
        for name in {stage.output, *(x.tensor for x in loads(stage.body))} - {tensor}:
            if name in first.tensors and first.tensors[name].shape != shape:
                return None
            tensors[name] = replace(tensors[name], shape=shape)
    stages: list[Stage] = []
    for made in makers:
        moved = _moved_flat(stage, made) if flat else _moved(stage, made, tensor, shape, seen_as)
        if moved is None:
            return None
        stages += _joined(made, replace(moved, body=_led(moved.body, tensor)), tensor)
    if not fit(stages):
        return None
    if any(s.output == tensor for s in stages):
        (maker,) = makers
        tensors[tensor] = replace(tensors[tensor], shape=tuple(a.extent for a in maker.axes) or (1,))
    else:
        del tensors[tensor]
    group = Group(first.nodes | then.nodes, tensors, (*earlier, *stages), then.outputs)
    return _straight(group, stage.output, shape, [made.index for made in makers])


def _is_flat(stage: Stage, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a stage reads every tensor at the place that it writes, and never asks where that is."""
    shape = tensors[stage.output].shape
    reads = loads(stage.body)
    same = all(x.index == stage.index and tensors[x.tensor].shape == shape for x in reads)
    outside = transform(stage.body, lambda node: Const(0, node.dtype) if isinstance(node, Load) else node)
    return same and _places(stage) is not None and not free_vars(outside)


def _moved_flat(stage: Stage, made: Stage) -> Stage:
    """A flat stage over the axes of `made`."""

    def visit(node: Expr) -> Expr:
        return replace(node, index=made.index) if isinstance(node, Load) else node

    return Stage(stage.output, made.axes, transform(stage.body, visit), index=made.index)


def _moved(stage: Stage, made: Stage, tensor: str, shape: tuple[int, ...], seen_as: tuple[int, ...]) -> Stage | None:
    """A stage that reads `tensor` once an element, over the axes of `made`, which writes it. None if it isn't such."""
    reads = {x.index for x in loads(stage.body) if x.tensor == tensor}
    place = reindex(made.index, shape, seen_as, _extents(made))
    if len(reads) != 1 or place is None:
        return None
    extents = _extents(stage)
    axes: dict[str, Expr] = {}
    for at, mine, extent in zip(reads.pop(), place, seen_as, strict=True):
        if isinstance(at, Var) and at.name not in axes and extents[at.name] == extent:
            axes[at.name] = mine
        elif extent > 1:
            return None
    if len(axes) < len(stage.axes):
        return None
    index = tuple(substitute(at, axes) for at in stage.index)
    return Stage(stage.output, made.axes, substitute(stage.body, axes), index=index)


def _led(body: Expr, tensor: str) -> Expr:
    """The body with what reads `tensor` first in sums and the like, so that x + f(t) and f(t) + x are one task."""

    def visit(node: Expr) -> Expr:
        if isinstance(node, Op) and node.name in COMMUTATIVE:
            left, right = ((any(x.tensor == tensor for x in loads(arg))) for arg in node.args)
            if right and not left:
                return Op(node.name, node.args[::-1], node.dtype)
        return node

    return transform(body, visit)


def _joined(made: Stage, moved: Stage, tensor: str) -> list[Stage]:
    """A stage and the one that takes up its result, which runs over the same axes.

    A mere permutation is one stage that writes elsewhere. But if another dimension comes last, it stays a stage of its
    own, so that a kernel sees both along what it computes and along what it writes memory is contiguous.
    """
    if not made.reduce:
        body = transform(moved.body, lambda n: made.body if isinstance(n, Load) and n.tensor == tensor else n)
        return [replace(moved, body=body)]
    if isinstance(moved.body, Load) and moved.body.tensor == tensor and moved.index[-1:] == made.index[-1:]:
        return [replace(made, output=moved.output, index=moved.index)]
    own: tuple[Expr, ...] = tuple(Var(axis.name) for axis in made.axes) or (const(0),)
    return [replace(made, index=own), _reading(moved, tensor, lambda load: replace(load, index=own))]


def _straight(group: Group, tensor: str, shape: tuple[int, ...], indices: Sequence[tuple[Expr, ...]]) -> Group:
    """The group with an output seen under `shape`, if then it is written at `indices`, stage by stage."""
    if prod(group.tensors[tensor].shape) != prod(shape):  # a part of it is written
        return group
    writers = [s for s in group.stages if s.output == tensor]
    same = all(
        reindex(s.index, group.tensors[tensor].shape, shape, _extents(s)) == index
        for s, index in zip(writers, indices, strict=True)
    )
    return (reshaped(group, tensor, shape) or group) if same else group


# A tensor made in parts


def divided(first: Group, then: Group, tensor: str) -> Group | None:
    """`first`, stages without reduction that each make a part of `tensor`, computed where `then` reads them.

    For padding, or anything else pointwise, after a concatenation: its stage becomes one for each part.
    """
    pair = _aligned(first, then, tensor)
    if pair is None or len(first.stages) < 2 or any(s.reduce or s.output != tensor for s in first.stages):
        return None
    first, reader = pair[0], reshaped(pair[1], tensor, pair[0].tensors[tensor].shape)
    if reader is None:
        return None
    stages: list[Stage] = []
    for stage in reader.stages:
        if not _reads(stage, tensor):
            stages.append(stage)
            continue
        shape = reader.tensors[tensor].shape
        parts = [part for made in first.stages if (part := _part(stage, made, tensor, shape)) is not None]
        if stage.reduce or len(parts) < len(first.stages) or not _cheap(first.stages, [stage], tensor):
            return None
        stages += parts
    if not fit(stages):
        return None
    tensors = {**first.tensors, **reader.tensors}
    del tensors[tensor]
    return Group(first.nodes | then.nodes, tensors, tuple(stages), then.outputs)


def _part(stage: Stage, made: Stage, tensor: str, shape: tuple[int, ...]) -> Stage | None:
    """The points of a stage that read what `made` makes, computing that too. None unless they are ranges of axes."""
    reads = {x.index for x in loads(stage.body) if x.tensor == tensor}
    axes, extents = _extents(stage), _extents(made)
    moves: dict[str, Expr] = {}  # axis of `stage` that gets shorter -> the places along it that read this part
    inside: dict[str, Expr] = {}  # axis of `made` -> the axis of `stage` that runs along it from now on
    places: dict[str, Expr] = {}  # other axis of `made` -> the place that is read
    for at, mine, extent in zip(reads.pop(), made.index, shape, strict=True):
        form = linear(mine)
        if form is None or len(form.coefficients) > 1 or any(c != 1 for c in form.coefficients.values()):
            return None
        own = next(iter(form.coefficients), "")
        if extents.get(own, 1) == extent:
            places[own] = at
        elif isinstance(at, Var) and at.name not in moves and axes[at.name] == extent:
            moves[at.name] = op("add", at, form.constant) if own else form.expr()
            inside[own] = at
            axes[at.name] = extents.get(own, 1)
        else:
            return None
    if reads:
        return None
    element = substitute(made.body, {own: substitute(at, moves) for own, at in places.items()} | inside)
    moved = replace(stage, body=substitute(stage.body, moves))
    kept = tuple(Axis(axis.name, axes[axis.name]) for axis in stage.axes if axes[axis.name] > 1)
    index = tuple(substitute(at, moves) for at in stage.index)
    return Stage(stage.output, kept, _reading(moved, tensor, lambda _: element).body, index=index)


# A producer that stays a stage of its own


def prefixed(first: Group, then: Group, tensor: str) -> Group | None:
    """`first`, one stage without reduction, kept as the first stage of `then`.

    For padding before windows, and for what is read again and again by the passes of a normalisation.
    """
    stage = first.pointwise
    pair = None if stage is None else _aligned(first, then, tensor)
    if stage is None or pair is None:
        return None
    reader = reshaped(pair[1], tensor, pair[0].tensors[tensor].shape)
    if reader is None:
        return None
    reading = [s for s in reader.stages if _reads(s, tensor)]
    windows = is_movement(stage.body) and any(s.reduce and s.points > stage.points for s in reading)
    passes = len(reading) > 1 and any(s.reduce and s.points == stage.points for s in reading)
    if not windows and (not passes or any(is_product(s) for s in reading)):
        return None
    stages = (*pair[0].stages, *reader.stages)
    if not fit(stages):
        return None
    return Group(first.nodes | then.nodes, {**pair[0].tensors, **reader.tensors}, stages, then.outputs)


# Groups one after the other


def chained(first: Group, then: Group, tensor: str) -> Group | None:
    """The stages of both as they are, `tensor` between them. None where they see it in shapes that don't agree."""
    pair = _aligned(first, then, tensor)
    if pair is None:
        return None
    first, then = pair
    reader = reshaped(then, tensor, first.tensors[tensor].shape)
    maker = first if reader is not None else reshaped(first, tensor, then.tensors[tensor].shape)
    if maker is None:
        return None
    reader = reader or then
    return Group(
        first.nodes | then.nodes,
        {**reader.tensors, **maker.tensors},
        (*maker.stages, *reader.stages),
        then.outputs,
    )


# Shapes


def reshaped(group: Group, tensor: str, shape: tuple[int, ...]) -> Group | None:
    """The group with a tensor seen under another shape; None where an index would take a division."""
    old = group.tensors[tensor].shape
    if old == shape:
        return group
    stages: list[Stage] = []
    for stage in group.stages:
        places = {
            x.index: reindex(x.index, old, shape, _extents(stage)) for x in loads(stage.body) if x.tensor == tensor
        }
        index = reindex(stage.index, old, shape, _extents(stage)) if stage.output == tensor else stage.index
        if index is None or None in places.values():
            return None
        fresh = _reading(stage, tensor, lambda x, places=places: replace(x, index=places[x.index]))  # type: ignore[misc]
        stages.append(replace(fresh, index=index))
    tensors = {**group.tensors, tensor: replace(group.tensors[tensor], shape=shape)}
    return replace(group, tensors=tensors, stages=tuple(stages))


def _aligned(first: Group, then: Group, tensor: str) -> tuple[Group, Group] | None:
    """Both groups with each tensor that they share, except `tensor`, under one shape."""
    for name in first.tensors.keys() & then.tensors.keys() - {tensor}:
        fresh = reshaped(then, name, first.tensors[name].shape)
        if fresh is not None:
            then = fresh
            continue
        other = reshaped(first, name, then.tensors[name].shape)
        if other is None:
            return None
        first = other
    return first, then


def _reading(stage: Stage, tensor: str, visit: Callable[[Load], Expr]) -> Stage:
    """The stage with its loads of a tensor replaced."""
    body = transform(stage.body, lambda n: visit(n) if isinstance(n, Load) and n.tensor == tensor else n)
    return replace(stage, body=body)


def _reads(stage: Stage, tensor: str) -> bool:
    return any(x.tensor == tensor for x in loads(stage.body))


def _extents(stage: Stage) -> dict[str, int]:
    return {axis.name: axis.extent for axis in stage.axes + stage.reduce}
