"""The op table: the one place that knows what an ONNX op means. Read first: `definition.Definition`.

An op is one function, which writes what a node computes as stages (see `graph.task`). Nothing else is said about it,
because the rest follows: FLOPs and bytes are counted from the stages, how far it fuses with its neighbours shows in
the form of the stages, shapes come from ONNX's shape inference, and the oracle of an op is ONNX's own reference
evaluator, to which the tests compare every definition. A node outside of what a function supports raises `NotNative`,
and then it runs through that evaluator.

NaN passes through every op, as in numpy: maxima, minima and pools too. `docs/numerics.md` says how exact results are.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunewright.codegen.dtype import DType

from ..ir import Array, Node, TensorType
from ..narrow import stored
from .contraction import CONTRACTIONS
from .definition import Compute, Definition, NotNative, OpDef, Part, Place, Rounds, View, load
from .elementwise import ELEMENTWISE
from .movement import MOVEMENT
from .pooling import POOLS
from .quantisation import QUANTISATION
from .recurrence import RECURRENCES
from .reduction import REDUCTIONS

__all__ = ["OPS", "Compute", "NotNative", "OpDef", "Part", "Place", "Rounds", "View", "define"]

OPS: Mapping[str, OpDef] = {
    **CONTRACTIONS,
    **ELEMENTWISE,
    **MOVEMENT,
    **POOLS,
    **QUANTISATION,
    **RECURRENCES,
    **REDUCTIONS,
}
"""Every op that has kernels, by its ONNX name."""


def define(node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Array]) -> Compute | View | Rounds:
    """What a node computes. Raises NotNative with the reason where the table has no definition for it."""
    write = OPS.get(node.op) if node.domain == "" else None
    if write is None:
        raise NotNative(f"{node.op}: no definition")
    narrow = _narrow(node, types)
    definition = Definition(node, _widened(types, narrow), constants)
    result = write(definition)
    if isinstance(result, View) and narrow.get(result.input) is not narrow.get(result.output):
        definition.write(definition.output(), lambda i: load(definition.input(0), i))
    elif result is not None:
        definition.require(not narrow or isinstance(result, View), "no kernels for narrow floats")
        return result
    written = {stage.output for stage in definition.stages}
    for position, name in enumerate(node.outputs):
        definition.require(not name or name in written, f"output {position}")
    return Compute(*stored(definition.stages, definition.tensors, narrow, written & set(node.outputs)))


def _narrow(node: Node, types: Mapping[str, TensorType]) -> dict[str, DType]:
    """The narrow types of a node's tensors, by name."""
    kinds = {name: DType.of(types[name].dtype) for name in (*node.inputs, *node.outputs) if name}
    return {name: dtype for name, dtype in kinds.items() if dtype is not None and dtype.is_narrow}


def _widened(types: Mapping[str, TensorType], narrow: Mapping[str, DType]) -> Mapping[str, TensorType]:
    """The types with some tensors in float32, in which their values are computed."""
    wide = {name: TensorType(DType.F32.value, types[name].shape) for name in narrow}
    return {**types, **wide} if wide else types
