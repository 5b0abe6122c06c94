"""How two groups become one.

Fusion is algebra on stages. A stage without reduction can be *inlined*: whoever reads its output computes the element
instead. A stage that reads one element of a tensor for each that it writes can *follow* the stage that makes the
tensor: it runs over the same axes, on values that have just been computed. What an op is called plays no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tunewright.codegen.expr.expr import (
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
    narrow_source,
    op,
    substitute,
    transform,
    walk,
)
from tunewright.codegen.expr.index import linear

from ..block_product import match_block_product
from ..task import Axis, Stage, Tensor
from ..tolerance import MODERATE
from .groups import (
    Group,
    align_shapes,
    fit,
    is_affine,
    is_movement,
    is_product,
    is_too_deep,
    reindex,
    replace_loads,
    reshape,
)

RECOMPUTED_OPS = 4
"""Operations an element that may be done again to save writing a tensor and reading it back."""

COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "eq", "ne"})


def merge(first: Group, second: Group, tensor: str, is_exact: bool) -> Group | None:
    """Both groups as one, where `tensor`, all that `first` gives, is read by `second` alone. None if that won't do.

    `is_exact`: no rounding may differ from that of the groups apart.
    """
    fused = inline(first, second, tensor, is_exact)
    for fuse in (fuse_epilogue, fuse_parts, prepend):
        fused = fused or fuse(first, second, tensor)
    return fused.drop_rounding() if fused else None


# Inlining: a producer's expression replaces a load


def inline(first: Group, second: Group, tensor: str, is_exact: bool) -> Group | None:
    """`first`, one stage without reduction, computed where `second` reads its output.

    Products stay products of two loads: they take a producer that only moves elements, or casts those of a narrow
    constant, and a constant factor moves behind the sum, but where that `is_exact`. Elsewhere elements may be computed
    again if that is cheaper than to keep them. What is computed into a narrow type stays apart from a copy that a
    product reads, such as a padded one: within a group it would not be rounded, and copy and product would be wide.
    """
    stage = first.pointwise
    places = None if stage is None else _places(stage)
    pair = align_shapes(first, second, tensor)
    if stage is None or places is None or pair is None:
        return None
    first, reader = pair[0], reshape(pair[1], tensor, first.tensors[tensor].shape)
    if reader is None:
        return None
    (stage,) = first.stages
    reading = [s for s in reader.stages if s.reads(tensor)]
    if any(is_too_deep(s.body, tensor, stage.body) for s in reading):
        return None
    if first.tensors[tensor].dtype.is_narrow and not is_movement(stage.body) and _are_operands(reading, reader):
        return None
    products = [s for s in reading if is_product(s)]
    if any(_loses_neighbours(s, tensor, places, stage.body) for s in reading):
        return None
    body, factor = split_factor(stage.body) if products and not is_exact else (stage.body, None)
    is_moved = is_affine(body) or (all(map(_casts_in_registers, reading)) and _is_narrow_constant(body, first))
    if not is_moved and (products or not _is_cheap([stage], reading, tensor)):
        return None
    stages = [_substitute_loads(s, tensor, places, body if s in products else stage.body) for s in reader.stages]
    if not fit(stages):
        return None
    tensors = {**first.tensors, **reader.tensors}
    del tensors[tensor]
    group = Group(first.nodes | second.nodes, tensors, tuple(stages), second.outputs)
    if factor is not None:
        for product in products:
            read = map(narrow_source, product.body.children)
            left, right = (isinstance(x, Load) and x.tensor == tensor for x in read)
            group = _scale_tensor(group, product.output, factor * factor if left and right else factor)
    return group


def _are_operands(stages: Sequence[Stage], group: Group) -> bool:
    """Whether some of the group's stages copy what a product of it reads."""
    copies = {stage.output for stage in stages if not stage.reduce}
    return any(is_product(stage) and any(map(stage.reads, copies)) for stage in group.stages)


def _casts_in_registers(stage: Stage) -> bool:
    """Whether kernels of a stage read narrow constants as they are."""
    return is_product(stage) or match_block_product(stage.body) is not None


def _is_narrow_constant(body: Expr, group: Group) -> bool:
    """Whether a body is an element of a narrow constant, cast."""
    source = narrow_source(body)
    is_constant = isinstance(source, Load) and group.tensors[source.tensor].constant
    return source is not body and is_constant and is_affine(source)


def _places(stage: Stage) -> Mapping[str, int] | None:
    """Axis of a stage -> the dimension of its output that it indexes; None if an index is anything but an axis."""
    places: dict[str, int] = {}
    for d, at in enumerate(stage.index):
        if isinstance(at, Var) and at.name not in places:
            places[at.name] = d
        elif at != Const(0, at.dtype):
            return None
    return places if len(places) == len(stage.axes) else None


def _substitute_loads(stage: Stage, tensor: str, places: Mapping[str, int], element: Expr) -> Stage:
    """The stage with loads of `tensor` replaced by `element`, whose axes walk along the tensor as `places` says."""
    cache: dict[tuple[Expr, ...], Expr] = {}

    def visit(node: Expr) -> Expr:
        if not isinstance(node, Load) or node.tensor != tensor:
            return node
        if node.index not in cache:
            cache[node.index] = substitute(element, {axis: node.index[d] for axis, d in places.items()})
        return cache[node.index]

    return replace(stage, body=transform(stage.body, visit))


def _loses_neighbours(stage: Stage, tensor: str, places: Mapping[str, int], element: Expr) -> bool:
    """Whether elements that the stage reads at several places which data tells, neighbours at each, would lie apart."""
    gathers = [x for x in loads(stage.body) if x.tensor == tensor and any(map(loads, x.index))]
    if len(gathers) < 2 or loads(gathers[0].index[-1]):
        return False
    new_index = {axis: gathers[0].index[d] for axis, d in places.items()}
    return any(bool(loads(substitute(x.index[-1], new_index))) for x in loads(element) if x.index)


def _scale_tensor(group: Group, tensor: str, factor: Expr) -> Group:
    """The group with every element of a tensor multiplied, once it is complete."""
    shape = group.tensors[tensor]
    if tensor not in group.outputs:
        return replace(group, stages=tuple(replace_loads(s, tensor, lambda load: load * factor) for s in group.stages))
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


def _is_cheap(makers: Sequence[Stage], readers: Sequence[Stage], tensor: str) -> bool:
    """Whether computing elements where they are read costs little more than computing each once."""
    writes = sum(s.points for s in makers)
    reads = sum(s.points * sum(x.tensor == tensor for x in loads(s.body)) for s in readers)
    return max(0, reads - writes) * max(_ops(s.body) for s in makers) <= RECOMPUTED_OPS * writes


def _ops(body: Expr) -> int:
    """The cost of one element: operations, and loads beyond the first."""
    nodes = list(walk(body))
    calls = sum(TRANSCENDENTAL_OPS if n.name in TRANSCENDENTAL else 1 for n in nodes if isinstance(n, Op))
    return calls + max(0, sum(isinstance(n, Load) for n in nodes) - 1)


# Constant factors, which may move from an operand of a sum of products to its result


def split_factor(body: Expr) -> tuple[Expr, Const | None]:
    """A body without its constant factor, and the factor, if that is one of MODERATE size."""
    match body:
        case Op("mul", (rest, Const(value, dtype))) | Op("mul", (Const(value, dtype), rest)):
            factor = const(value, dtype)
        case Op("div", (rest, Const(value, dtype))) if value and dtype.is_float:
            factor = const(1 / value, dtype)
        case _:
            return body, None
    low, high = MODERATE
    return (rest, factor) if low <= abs(factor.value) <= high else (body, None)


# Epilogues: a stage that continues another


def fuse_epilogue(first: Group, second: Group, tensor: str) -> Group | None:
    """`second`, one stage without reduction that reads each element of `tensor` once, over the axes of its producer.

    Where the producer reduces, `second` becomes a stage after it; else the two bodies become one. Dimensions may come
    out in another order: that shows in the index that is written, while the axes keep the producer's order.
    """
    pair = None if second.pointwise is None else align_shapes(first, second, tensor)
    if pair is None:
        return None
    first, second = pair
    (stage,) = second.stages
    earlier = [s for s in first.stages if s.output != tensor]
    makers = [s for s in first.stages if s.output == tensor]
    if len(makers) > 1 and any(s.reduce for s in makers):
        return None
    if any(not maker.reduce and is_too_deep(stage.body, tensor, maker.body) for maker in makers):
        return None
    tensors = {**second.tensors, **first.tensors}
    shape, reader_shape = first.tensors[tensor].shape, second.tensors[tensor].shape
    epilogues: list[Stage | None] = [_rebase(stage, maker, tensor, shape, reader_shape) for maker in makers]
    if shape != reader_shape and _is_elementwise(stage, second.tensors):
        epilogues = [_rebase_elementwise(stage, maker) for maker in makers]
        names = {stage.output, *(x.tensor for x in loads(stage.body))} - {tensor}
        if any(name in first.tensors and first.tensors[name].shape != shape for name in names):
            return None
        tensors |= {name: replace(tensors[name], shape=shape) for name in names}
    stages: list[Stage] = []
    for maker, epilogue in zip(makers, epilogues, strict=True):
        if epilogue is None:
            return None
        stages += _join_stages(maker, replace(epilogue, body=_order_operands(epilogue.body, tensor)), tensor)
    if not fit(stages):
        return None
    if any(s.output == tensor for s in stages):
        (maker,) = makers
        tensors[tensor] = replace(tensors[tensor], shape=tuple(a.extent for a in maker.axes) or (1,))
    else:
        del tensors[tensor]
    group = Group(first.nodes | second.nodes, tensors, (*earlier, *stages), second.outputs)
    return _restore_shape(group, stage.output, shape, [maker.index for maker in makers])


def _is_elementwise(stage: Stage, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a stage reads every tensor at the place that it writes, and never asks where that is."""
    shape = tensors[stage.output].shape
    reads = loads(stage.body)
    is_same_place = all(x.index == stage.index and tensors[x.tensor].shape == shape for x in reads)
    index_free = transform(stage.body, lambda node: Const(0, node.dtype) if isinstance(node, Load) else node)
    return is_same_place and _places(stage) is not None and not free_vars(index_free)


def _rebase_elementwise(stage: Stage, maker: Stage) -> Stage:
    """A flat stage over the axes of `maker`."""

    def visit(node: Expr) -> Expr:
        return replace(node, index=maker.index) if isinstance(node, Load) else node

    return Stage(stage.output, maker.axes, transform(stage.body, visit), index=maker.index)


def _rebase(
    stage: Stage, maker: Stage, tensor: str, shape: tuple[int, ...], reader_shape: tuple[int, ...]
) -> Stage | None:
    """A stage that reads `tensor` once an element, over the axes of `maker`, which writes it. None if it isn't such."""
    reads = {x.index for x in loads(stage.body) if x.tensor == tensor}
    place = reindex(maker.index, shape, reader_shape, maker.extents)
    if len(reads) != 1 or place is None:
        return None
    extents = stage.extents
    axes: dict[str, Expr] = {}
    for at, position, extent in zip(reads.pop(), place, reader_shape, strict=True):
        if isinstance(at, Var) and at.name not in axes and extents[at.name] == extent:
            axes[at.name] = position
        elif extent > 1:
            return None
    if len(axes) < len(stage.axes):
        return None
    index = tuple(substitute(at, axes) for at in stage.index)
    return Stage(stage.output, maker.axes, substitute(stage.body, axes), index=index)


def _order_operands(body: Expr, tensor: str) -> Expr:
    """Put the operand that reads `tensor` first in commutative ops, so that x + f(t) and f(t) + x are one task."""

    def visit(node: Expr) -> Expr:
        if isinstance(node, Op) and node.name in COMMUTATIVE:
            left, right = ((any(x.tensor == tensor for x in loads(arg))) for arg in node.args)
            if right and not left:
                return Op(node.name, node.args[::-1], node.dtype)
        return node

    return transform(body, visit)


def _join_stages(maker: Stage, epilogue: Stage, tensor: str) -> list[Stage]:
    """A stage and the one that takes up its result, which runs over the same axes.

    A mere permutation is one stage that writes elsewhere. But if another dimension comes last, it stays a stage of its
    own, so that a kernel sees both along what it computes and along what it writes memory is contiguous.
    """
    if not maker.reduce:
        body = transform(epilogue.body, lambda n: maker.body if isinstance(n, Load) and n.tensor == tensor else n)
        return [replace(epilogue, body=body)]
    if isinstance(epilogue.body, Load) and epilogue.body.tensor == tensor and epilogue.index[-1:] == maker.index[-1:]:
        return [replace(maker, output=epilogue.output, index=epilogue.index)]
    maker_index: tuple[Expr, ...] = tuple(Var(axis.name) for axis in maker.axes) or (const(0),)
    return [
        replace(maker, index=maker_index),
        replace_loads(epilogue, tensor, lambda load: replace(load, index=maker_index)),
    ]


def _restore_shape(group: Group, tensor: str, shape: tuple[int, ...], indices: Sequence[tuple[Expr, ...]]) -> Group:
    """The group with an output seen under `shape`, if then it is written at `indices`, stage by stage."""
    if prod(group.tensors[tensor].shape) != prod(shape):  # a part of it is written
        return group
    writers = [s for s in group.stages if s.output == tensor]
    same = all(
        reindex(s.index, group.tensors[tensor].shape, shape, s.extents) == index
        for s, index in zip(writers, indices, strict=True)
    )
    return (reshape(group, tensor, shape) or group) if same else group


# Tensors made in parts


def fuse_parts(first: Group, second: Group, tensor: str) -> Group | None:
    """`first`, stages without reduction that each make a part of `tensor`, computed where `second` reads them.

    For padding, or anything else pointwise, after a concatenation: its stage becomes one for each part.
    """
    pair = align_shapes(first, second, tensor)
    if pair is None or len(first.stages) < 2 or any(s.reduce or s.output != tensor for s in first.stages):
        return None
    first, reader = pair[0], reshape(pair[1], tensor, pair[0].tensors[tensor].shape)
    if reader is None:
        return None
    stages: list[Stage] = []
    for stage in reader.stages:
        if not stage.reads(tensor):
            stages.append(stage)
            continue
        shape = reader.tensors[tensor].shape
        parts = [part for maker in first.stages if (part := _part_stage(stage, maker, tensor, shape)) is not None]
        if stage.reduce or len(parts) < len(first.stages) or not _is_cheap(first.stages, [stage], tensor):
            return None
        stages += parts
    if not fit(stages):
        return None
    tensors = {**first.tensors, **reader.tensors}
    del tensors[tensor]
    return Group(first.nodes | second.nodes, tensors, tuple(stages), second.outputs)


def _part_stage(stage: Stage, maker: Stage, tensor: str, shape: tuple[int, ...]) -> Stage | None:
    """The points of a stage that read what `maker` makes, computing that too. None unless they are ranges of axes."""
    reads = {x.index for x in loads(stage.body) if x.tensor == tensor}
    axes, extents = stage.extents, maker.extents
    moves: dict[str, Expr] = {}  # axis of `stage` that gets shorter -> the places along it that read this part
    inside: dict[str, Expr] = {}  # axis of `maker` -> the axis of `stage` that runs along it from now on
    places: dict[str, Expr] = {}  # other axis of `maker` -> the place that is read
    for at, written_at, extent in zip(reads.pop(), maker.index, shape, strict=True):
        form = linear(written_at)
        if form is None or len(form.coefficients) > 1 or any(c != 1 for c in form.coefficients.values()):
            return None
        maker_axis = next(iter(form.coefficients), "")
        if extents.get(maker_axis, 1) == extent:
            places[maker_axis] = at
        elif isinstance(at, Var) and at.name not in moves and axes[at.name] == extent:
            moves[at.name] = op("add", at, form.constant) if maker_axis else form.expr()
            inside[maker_axis] = at
            axes[at.name] = extents.get(maker_axis, 1)
        else:
            return None
    if reads:
        return None
    element = substitute(maker.body, {maker_axis: substitute(at, moves) for maker_axis, at in places.items()} | inside)
    reader = replace(stage, body=substitute(stage.body, moves))
    part_axes = tuple(Axis(axis.name, axes[axis.name]) for axis in stage.axes if axes[axis.name] > 1)
    index = tuple(substitute(at, moves) for at in stage.index)
    return Stage(stage.output, part_axes, replace_loads(reader, tensor, lambda _: element).body, index=index)


# Prologues: a producer that stays a stage of its own


def prepend(first: Group, second: Group, tensor: str) -> Group | None:
    """`first`, one stage without reduction, kept as the first stage of `second`.

    For padding before windows, and for what is read again and again by the passes of a normalisation.
    """
    stage = first.pointwise
    pair = None if stage is None else align_shapes(first, second, tensor)
    if stage is None or pair is None:
        return None
    reader = reshape(pair[1], tensor, pair[0].tensors[tensor].shape)
    if reader is None:
        return None
    reading = [s for s in reader.stages if s.reads(tensor)]
    windows = is_movement(stage.body) and any(s.reduce and s.points > stage.points for s in reading)
    passes = len(reading) > 1 and any(s.reduce and s.points == stage.points for s in reading)
    if not windows and (not passes or any(is_product(s) for s in reading)):
        return None
    stages = (*pair[0].stages, *reader.stages)
    if not fit(stages):
        return None
    return Group(first.nodes | second.nodes, {**pair[0].tensors, **reader.tensors}, stages, second.outputs)


# Concatenation


def concatenate(first: Group, second: Group, tensor: str) -> Group | None:
    """The stages of both as they are, `tensor` between them. None where they see it in shapes that don't agree."""
    pair = align_shapes(first, second, tensor)
    if pair is None:
        return None
    first, second = pair
    reader = reshape(second, tensor, first.tensors[tensor].shape)
    maker = first if reader is not None else reshape(first, tensor, second.tensors[tensor].shape)
    if maker is None:
        return None
    reader = reader or second
    return Group(
        first.nodes | second.nodes,
        {**reader.tensors, **maker.tensors},
        (*maker.stages, *reader.stages),
        second.outputs,
    )
