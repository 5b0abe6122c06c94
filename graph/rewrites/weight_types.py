"""Narrow weights: float32 constants as float16 or bfloat16, where these have all their values.

What was narrow in the model is computed in float32 (`widening`), and many a float32 model was made of a narrow one.
Narrow weights take half the memory, and half the time to read. Kernels cast them in registers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import ml_dtypes
import numpy as np
from onnx import TensorProto

from tunewright.graph.ir import Array, Graph, Node, TensorType

from ..evaluation.onnx_form import cast_version

LEAST_BYTES = 1 << 16
"""Smaller constants stay as they are."""

SAMPLE = 1024
"""Elements that are looked at first: of most weights one of them needs float32."""

NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def narrow_weights(graph: Graph) -> Graph:
    """The graph with constants that only products and gathers read in a narrow type, if none of them changes by it.

    Before: `y = MatMul(x, w)`, w float32. After: `a = Cast(w); y = MatMul(x, a)`, w float16.
    """
    readers: defaultdict[str, list[tuple[Node, int]]] = defaultdict(list)
    for node in graph.nodes:
        for place, name in enumerate(node.inputs):
            readers[name].append((node, place))
    results = {value.tensor for value in graph.outputs}
    narrow = {
        name: array
        for name, wide in graph.constants.items()
        if name not in results and all(_casts_in_registers(graph, *reader) for reader in readers[name])
        and (array := _narrowed(wide)) is not None
    }  # fmt: skip
    return _with_casts(graph, narrow) if narrow else graph


def _casts_in_registers(graph: Graph, node: Node, place: int) -> bool:
    """Whether the kernel of a node reads this operand as it is stored."""
    if node.domain:
        return False
    match node.op:
        case "MatMul":
            return place == 1 and node.inputs[0] not in graph.constants
        case "Conv":
            return place == 1 and node.attrs["group"] == 1 and set(node.attrs["kernel_shape"]) == {1}
    return node.op == "Gather" and place == 0


def _narrowed(array: Array) -> Array | None:
    """The constant in a narrow type; None if it is small, no float32, or changes by it."""
    if array.dtype != np.float32 or array.nbytes < LEAST_BYTES:
        return None
    sample = array.reshape(-1)[:: max(1, array.size // SAMPLE)]
    for dtype in NARROW:
        with np.errstate(over="ignore"):  # what is beyond the type is infinite, and differs
            if all(np.array_equal(some, some.astype(dtype).astype(np.float32)) for some in (sample, array)):
                return array.astype(dtype)
    return None


def _with_casts(graph: Graph, narrow: dict[str, Array]) -> Graph:
    """The graph with these constants narrow, and a cast of its own before each node that reads one."""
    types = dict(graph.types)
    types |= {name: TensorType(array.dtype.name, array.shape) for name, array in narrow.items()}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = list(node.inputs)
        for place, name in enumerate(inputs):
            if name in narrow:
                inputs[place] = f"{name}.wide{len(nodes)}"
                types[inputs[place]] = graph.types[name]
                version = cast_version(types[name].dtype, "float32")
                nodes.append(Node("Cast", (name,), (inputs[place],), {"to": int(TensorProto.FLOAT)}, version=version))
        nodes.append(replace(node, inputs=tuple(inputs)))
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **narrow}, types=types)
