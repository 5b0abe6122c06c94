"""The op table: the one place that knows what an ONNX op means. Read first: `definition.Definition`.

An op is one function, which writes what a node computes as stages (see `graph.task`). Nothing else is said about it,
because the rest follows: FLOPs and bytes are counted from the stages, how far it fuses with its neighbours shows in
the form of the stages, shapes come from ONNX's shape inference, and the oracle of an op is ONNX's own reference
evaluator, to which the tests compare every definition. A node outside of what a function supports raises `NotNative`,
and then it runs through that evaluator. Lists of ops that are treated alike are where that is done: see
`CONTRIBUTING.md`.

NaN passes through every op, as in numpy: maxima, minima and pools too. `docs/numerics.md` says how exact results are.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunewright.codegen.expr.dtype import DType

from ..ir import Array, Node, TensorType
from ..task import load
from .blocks import BLOCKS
from .contraction import CONTRACTIONS, NARROW_PRODUCTS
from .definition import Compute, Definition, MemorySlice, NotNative, OpDef, Place, Rounds, TensorView
from .elementwise import ELEMENTWISE, QUANTISATION
from .movement import MOVEMENT
from .narrow import store_narrow
from .pooling import POOLS
from .positions import POSITIONS
from .recurrence import RECURRENCES
from .reduction import REDUCTIONS
from .sampling import SAMPLING
from .scatter import SCATTER
from .trees import TREES

__all__ = [
    "NARROW_PRODUCTS",
    "OPS",
    "Compute",
    "MemorySlice",
    "NotNative",
    "OpDef",
    "Place",
    "Rounds",
    "TensorView",
    "define",
    "has_kernel",
]

OPS: Mapping[str, OpDef] = {
    **BLOCKS,
    **CONTRACTIONS,
    **ELEMENTWISE,
    **MOVEMENT,
    **POOLS,
    **QUANTISATION,
    **RECURRENCES,
    **POSITIONS,
    **REDUCTIONS,
    **SAMPLING,
    **SCATTER,
    **TREES,
}
"""Every op that has kernels, by its ONNX name."""


def define(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Array]
) -> Compute | TensorView | Rounds:
    """The computation of a node. Raises NotNative with the reason where the table has no definition for it."""
    write = OPS.get(node.op) if node.domain == "" else None
    if write is None:
        raise NotNative(f"{node.op}: no native kernel is written for this op")
    kinds = {name: DType.of(types[name].dtype) for name in (*node.inputs, *node.outputs) if name}
    is_as_stored = node.op in NARROW_PRODUCTS
    narrow = {name: dtype for name, dtype in kinds.items() if dtype and dtype.is_narrow and not is_as_stored}
    wide = {name: TensorType(DType.F32.value, types[name].shape) for name in narrow}  # in which values are computed
    definition = Definition(node, {**types, **wide} if wide else types, constants)
    result = write(definition)
    if isinstance(result, TensorView) and narrow.get(result.input) is not narrow.get(result.output):
        definition.write(definition.output(), lambda i: load(definition.input(0), i))
    elif result is not None:
        definition.require(not narrow or isinstance(result, TensorView), "no kernels for narrow floats")
        return result
    written = {stage.output for stage in definition.stages}
    for position, name in enumerate(node.outputs):
        definition.require(not name or name in written, f"output {position}")
    return Compute(*store_narrow(definition.stages, definition.tensors, narrow, written & set(node.outputs)))


def has_kernel(node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Array]) -> bool:
    """Whether the table has a definition for a node."""
    try:
        define(node, types, constants)
    except NotNative:
        return False
    return True
