"""Narrow weights: float32 constants as float16 or bfloat16, where these have all their values, or a user lets them.

What was narrow in the model is computed in float32 (`widening`), and many a float32 model was made of a narrow one.
Narrow weights take half the memory, and half the time to read. Kernels cast them in registers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from tunewright.graph.ir import Array, Graph, Node, TensorType

from ..evaluation.onnx_form import cast_version, is_channels_last
from ..narrow_types import bf16, narrow_type

LEAST_BYTES = 1 << 16
"""Smaller constants stay as they are."""

SCALES = 2
"""The operand of a BlockMatMul that is its scales."""


def narrow_weights(graph: Graph) -> Graph:
    """The graph with constants that only products and gathers read in a narrow type, if none of them changes by it.

    Before: `y = MatMul(x, w)`, w float32. After: `a = Cast(w); y = MatMul(x, a)`, w float16.
    """
    return _narrow_weights(graph, _narrowed, _reads_as_stored)


def bf16_weights(graph: Graph) -> Graph:
    """As `narrow_weights`, of all that products alone read, rounded: see `numerics.Precision`.

    Before: `y = MatMul(x, w)`, w float32. After: `a = Cast(v); y = MatMul(x, a)`, v w in bfloat16.
    """
    return _narrow_weights(graph, _rounded, _multiplies_as_stored)


Reads = Callable[[Graph, Node, int], bool]
"""Whether a node may read an operand, by its position, in a narrow type."""


def _narrow_weights(graph: Graph, narrowed: Callable[[Array], Array | None], may_read: Reads) -> Graph:
    readers: defaultdict[str, list[tuple[Node, int]]] = defaultdict(list)
    for node in graph.nodes:
        for place, name in enumerate(node.inputs):
            readers[name].append((node, place))
    results = {value.tensor for value in graph.outputs}
    narrow = {
        name: array
        for name, wide in graph.constants.items()
        if name not in results
        and readers[name]
        and all(may_read(graph, *reader) for reader in readers[name])
        and (array := narrowed(wide)) is not None
    }
    return _with_casts(graph, narrow) if narrow else graph


def _reads_as_stored(graph: Graph, node: Node, place: int) -> bool:
    """Whether the kernel of a node reads this operand as it is stored."""
    if node.domain:
        return False
    match node.op:
        case "BlockMatMul":
            return place == SCALES
        case "MatMul":
            return place == 1 and node.inputs[0] not in graph.constants
        case "Conv":
            is_product = node.attrs["group"] == 1 and set(node.attrs.get("kernel_shape", ())) == {1}
            return place == 1 and is_product and is_channels_last(node)  # else scalars of it are read
    return node.op == "Gather" and place == 0


def _multiplies_as_stored(graph: Graph, node: Node, place: int) -> bool:
    return node.op in ("Conv", "MatMul") and _reads_as_stored(graph, node, place)


def _narrowed(array: Array) -> Array | None:
    """The constant in a narrow type; None if it is small, no float32, or changes by it."""
    dtype = narrow_type(array) if array.nbytes >= LEAST_BYTES else None
    return None if dtype is None else array.astype(dtype)


def _rounded(array: Array) -> Array | None:
    """The constant in bfloat16; None if it is small, no float32, or infinite then."""
    is_large = array.nbytes >= LEAST_BYTES and array.dtype == np.float32
    return bf16(array) if is_large else None


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
