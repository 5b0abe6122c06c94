"""Narrow: float16 and bfloat16 are how values lie in memory. They are computed in float32, and rounded when stored.

What an op computes is written down in float32 (`ops.define`), and `stored` puts the casts around it. Where tasks are
fused, `unrounded` leaves out what was rounded between their nodes only because it would have been stored: a result is
as near to the exact one as that of unfused nodes, or nearer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Const, Expr, Load, Op, const, loads, op, transform

from .task import Stage, Tensor

F32 = DType.F32

Stages = tuple[tuple[Stage, ...], Mapping[str, Tensor]]
"""Stages, and the tensors that they are over, by name."""


def stored(
    stages: Sequence[Stage], tensors: Mapping[str, Tensor], kinds: Mapping[str, DType], outputs: Collection[str]
) -> Stages:
    """Stages in float32 with some of their tensors, named by `kinds`, in narrow types. `outputs` are others' to read.

    A tensor that they fold, or read again, is complete in float32 before it is rounded.
    """
    if not kinds:
        return unrounded(tuple(stages), tensors, outputs)
    written = {stage.output for stage in stages}
    read = {x.tensor for stage in stages for x in loads(stage.body)}
    folded = {stage.output for stage in stages if stage.reduce}
    whole = {name: f"{name}.whole" for name in kinds if name in written & (read | folded)}
    fresh = dict(tensors)
    for name, dtype in kinds.items():
        if name in whole:
            fresh[whole[name]] = replace(tensors[name], name=whole[name], dtype=F32)
        if name in tensors:
            fresh[name] = replace(tensors[name], dtype=dtype)

    def visit(node: Expr) -> Expr:
        if not isinstance(node, Load) or node.tensor not in kinds:
            return node
        if node.tensor in whole:
            return replace(node, tensor=whole[node.tensor])
        return op("cast", replace(node, dtype=kinds[node.tensor]), dtype=F32)

    result: list[Stage] = []
    for stage in stages:
        name, body = stage.output, transform(stage.body, visit)
        if name in whole:
            result.append(replace(stage, output=whole[name], body=body))
        else:
            result.append(replace(stage, body=_rounded(body, kinds[name]) if name in kinds else body))
    for name, inner in whole.items():
        result += _copied(name, inner, [stage for stage in stages if stage.output == name], kinds[name])
    return unrounded(tuple(result), fresh, {*kinds, *outputs})


def _copied(name: str, inner: str, makers: Iterable[Stage], dtype: DType) -> Iterable[Stage]:
    """Stages that round what is complete, over the places that it was written at."""
    for stage in makers:
        yield Stage(name, stage.axes, op("cast", Load(inner, stage.index, F32), dtype=dtype), index=stage.index)


def unrounded(stages: tuple[Stage, ...], tensors: Mapping[str, Tensor], kept: Collection[str]) -> Stages:
    """Stages without casts to a narrow type and back. Of their tensors, `kept` stay as they are.

    Others that stages write are narrow only if all that is in them was narrow before, and float32 else.
    """
    if not any(tensor.dtype.is_narrow for tensor in tensors.values()):
        return stages, tensors
    stages = tuple(replace(stage, body=transform(stage.body, _without_rounding)) for stage in stages)
    written = dict.fromkeys(stage.output for stage in stages if stage.output not in kept)
    for name in written:
        makers = [stage for stage in stages if stage.output == name]
        dtype = _least(makers)
        if dtype is not tensors[name].dtype:
            stages, tensors = _retyped(stages, tensors, name, dtype)
    return stages, tensors


def _least(makers: Sequence[Stage]) -> DType:
    """The type that holds what stages write: that of what they move, else of what they compute."""
    bodies = [stage.body for stage in makers]
    for dtype in (DType.F16, DType.BF16):
        moved = all(not stage.reduce and _is_moved(stage.body, dtype) for stage in makers)
        if moved and any(x.dtype is dtype for x in loads(*bodies)):
            return dtype
    return F32 if bodies[0].dtype.is_narrow else bodies[0].dtype


def _is_moved(value: Expr, dtype: DType) -> bool:
    """Whether a value is one that lies in memory in that type, or a constant that it holds."""
    match value:
        case Const():
            return const(value.value, dtype).value == value.value
        case Op("cast", (inner,)) if value.dtype is F32:
            return _is_moved(inner, dtype)
        case Op("select", (_, yes, no)):
            return _is_moved(yes, dtype) and _is_moved(no, dtype)
    return isinstance(value, Load) and value.dtype is dtype


def _retyped(stages: Sequence[Stage], tensors: Mapping[str, Tensor], name: str, dtype: DType) -> Stages:
    """The same with one tensor of another type."""

    def visit(node: Expr) -> Expr:
        if isinstance(node, Load) and node.tensor == name:
            return op("cast", replace(node, dtype=dtype), dtype=node.dtype)
        return _without_rounding(node)

    def body(stage: Stage) -> Expr:
        value = transform(stage.body, visit)
        if stage.output != name:
            return value
        return _rounded(value, dtype) if dtype.is_narrow else _wide(value)

    fresh = tuple(replace(stage, body=body(stage)) for stage in stages)
    return fresh, {**tensors, name: replace(tensors[name], dtype=dtype)}


def _rounded(value: Expr, dtype: DType) -> Expr:
    """A value as it is stored in a narrow type. What is only moved is not widened for that."""
    match value:
        case Op("cast", (inner,)) if inner.dtype is dtype:
            return inner
        case Const():
            return const(value.value, dtype)
        case Op("select", (condition, yes, no)):
            return op("select", condition, _rounded(yes, dtype), _rounded(no, dtype))
    return op("cast", value, dtype=dtype)


def _wide(value: Expr) -> Expr:
    """A value in float32: before it was rounded, if it was."""
    if value.dtype is F32:
        return value
    match value:
        case Op("cast", (inner,)) if inner.dtype is F32:
            return inner
        case Const():
            return const(value.value, F32)
        case Op("select", (condition, yes, no)):
            return op("select", condition, _wide(yes), _wide(no))
    return op("cast", value, dtype=F32)


def _without_rounding(node: Expr) -> Expr:
    """A part of an expression whose own parts are done."""
    match node:
        case Op("cast", (value,)) if node.dtype is F32 and value.dtype.is_narrow:
            return _wide(value)
        case Op("cast", (Op("cast", (value,)),)) if node.dtype is value.dtype and value.dtype.is_narrow:
            return value
    return node
