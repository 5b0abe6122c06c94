"""Narrow floats: float16 and bfloat16 are storage types. Values are computed in float32, and rounded when stored.

Ops are defined in float32 (`ops.define`), and `store_narrow` adds the casts. Where tasks are fused, `drop_rounding`
removes the casts between their nodes: results are as near to the exact ones as those of unfused nodes, or nearer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Expr, Load, Op, const, loads, op, transform

from ..task import Stage, Tensor

F32 = DType.F32

Stages = tuple[tuple[Stage, ...], Mapping[str, Tensor]]
"""Stages, and the tensors that they are over, by name."""


def store_narrow(
    stages: Sequence[Stage], tensors: Mapping[str, Tensor], kinds: Mapping[str, DType], outputs: Collection[str]
) -> Stages:
    """Store the tensors named by `kinds` in narrow types. Other tasks read `outputs`.

    A tensor that stages fold or read again is complete in float32 before it is rounded.
    """
    if not kinds:
        return drop_rounding(tuple(stages), tensors, outputs)
    written = {stage.output for stage in stages}
    read = {x.tensor for stage in stages for x in loads(stage.body)}
    folded = {stage.output for stage in stages if stage.reduce}
    whole = {name: f"{name}.whole" for name in kinds if name in written & (read | folded)}
    new_tensors = dict(tensors)
    for name, dtype in kinds.items():
        if name in whole:
            new_tensors[whole[name]] = replace(tensors[name], name=whole[name], dtype=F32)
        if name in tensors:
            new_tensors[name] = replace(tensors[name], dtype=dtype)

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
            result.append(replace(stage, body=_round_value(body, kinds[name]) if name in kinds else body))
    for name, inner in whole.items():
        for stage in stages:  # which round the complete tensor, over the places that it was written at
            if stage.output == name:
                value = op("cast", Load(inner, stage.index, F32), dtype=kinds[name])
                result.append(Stage(name, stage.axes, value, index=stage.index))
    return drop_rounding(tuple(result), new_tensors, {*kinds, *outputs})


def drop_rounding(stages: tuple[Stage, ...], tensors: Mapping[str, Tensor], external: Collection[str]) -> Stages:
    """Stages without casts to a narrow type and back. Of their tensors, `external` stay as they are.

    Others that stages write are narrow only if all that is in them was narrow before, and float32 else.
    """
    if not any(tensor.dtype.is_narrow for tensor in tensors.values()):
        return stages, tensors
    stages = tuple(replace(stage, body=transform(stage.body, _drop_casts)) for stage in stages)
    written = dict.fromkeys(stage.output for stage in stages if stage.output not in external)
    for name in filter(lambda name: tensors[name].dtype is F32 or tensors[name].dtype.is_narrow, written):
        makers = [stage for stage in stages if stage.output == name]
        dtype = _narrowest_type(makers)
        if dtype is not tensors[name].dtype:
            stages, tensors = _retype(stages, tensors, name, dtype)
    return stages, tensors


def _narrowest_type(makers: Sequence[Stage]) -> DType:
    """The narrowest type that holds a tensor without rounding: that of moved elements, else of computed ones."""
    bodies = [stage.body for stage in makers]
    for dtype in (DType.F16, DType.BF16):
        is_movement = all(not stage.reduce and _is_moved(stage.body, dtype) for stage in makers)
        if is_movement and any(x.dtype is dtype for x in loads(*bodies)):
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


def _retype(stages: Sequence[Stage], tensors: Mapping[str, Tensor], name: str, dtype: DType) -> Stages:
    """Give one tensor another type."""

    def visit(node: Expr) -> Expr:
        if isinstance(node, Load) and node.tensor == name:
            return op("cast", replace(node, dtype=dtype), dtype=node.dtype)
        return _drop_casts(node)

    def body(stage: Stage) -> Expr:
        value = transform(stage.body, visit)
        if stage.output != name:
            return value
        return _round_value(value, dtype) if dtype.is_narrow else _widen(value)

    new_stages = tuple(replace(stage, body=body(stage)) for stage in stages)
    return new_stages, {**tensors, name: replace(tensors[name], dtype=dtype)}


def _round_value(value: Expr, dtype: DType) -> Expr:
    """Round a value to a narrow type; elements that are only moved are not widened for that."""
    match value:
        case Op("cast", (inner,)) if inner.dtype is dtype:
            return inner
        case Const():
            return const(value.value, dtype)
        case Op("select", (condition, yes, no)):
            return op("select", condition, _round_value(yes, dtype), _round_value(no, dtype))
    return op("cast", value, dtype=dtype)


def _widen(value: Expr) -> Expr:
    """A value in float32, without a rounding right before."""
    if value.dtype is F32:
        return value
    match value:
        case Op("cast", (inner,)) if inner.dtype is F32:
            return inner
        case Const():
            return const(value.value, F32)
        case Op("select", (condition, yes, no)):
            return op("select", condition, _widen(yes), _widen(no))
    return op("cast", value, dtype=F32)


def _drop_casts(node: Expr) -> Expr:
    """Remove a cast to a narrow type and back from the root of an expression."""
    match node:
        case Op("cast", (value,)) if node.dtype is F32 and value.dtype.is_narrow:
            return _widen(value)
        case Op("cast", (Op("cast", (value,)),)) if node.dtype is value.dtype and value.dtype.is_narrow:
            return value
    return node
