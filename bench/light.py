"""The light models that the `onnx` package carries, with seeded random weights in place of their constant ones.

The package ships nine well-known convolutional networks whose weights are `ConstantOfShape` nodes, which makes them
small and their outputs meaningless. `light_model` keeps the architecture and gives every parameter a random value of a
magnitude that lets signals pass through the depth: He et al., "Delving Deep into Rectifiers" (2015), for the weights.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

LIGHT_MODELS = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip

ROLES = {
    ("Conv", 1): "weight",
    ("Conv", 2): "shift",
    ("Gemm", 1): "weight",
    ("Gemm", 2): "shift",
    ("BatchNormalization", 1): "scale",
    ("BatchNormalization", 2): "shift",
    ("BatchNormalization", 3): "shift",
    ("BatchNormalization", 4): "scale",
    ("Mul", 1): "scale",
    ("Add", 1): "shift",
}
"""The role of a parameter, by the op that reads it and the position there."""


def light_model(name: str, seed: int = 0) -> ModelProto:
    """One of `LIGHT_MODELS` with random weights that follow from the seed.

    Parameters become initializers, and the graph's inputs are those that a user must feed. Raises KeyError for an
    unknown name.
    """
    import onnx

    if name not in LIGHT_MODELS:
        raise KeyError(f"no light model {name!r}; there are {', '.join(LIGHT_MODELS)}")
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(str(folder / f"light_{name}.onnx"))
    _randomise(model.graph, seed)
    model.ir_version = max(model.ir_version, 4)  # from 4 on an initializer need not be an input too
    return model


def _randomise(graph: GraphProto, seed: int) -> None:
    from onnx.numpy_helper import from_array, to_array

    arrays = {tensor.name: to_array(tensor) for tensor in graph.initializer}
    shapes: dict[str, tuple[int, ...]] = {
        key: value.shape for key, value in arrays.items() if value.dtype == np.float32
    }
    parameters = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    shapes |= {node.output[0]: tuple(map(int, arrays[node.input[0]])) for node in parameters}
    roles = _roles(graph, shapes)
    random_tensors = [
        from_array(_values(roles[key], shape, key, seed), key) for key, shape in shapes.items() if key in roles
    ]
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    read = {key for node in nodes for key in node.input}
    constants = [tensor for tensor in graph.initializer if tensor.name in read and tensor.name not in roles]
    inputs = [value for value in graph.input if value.name in read and value.name not in arrays]
    for items, replacement in (
        (graph.node, nodes),
        (graph.initializer, constants + random_tensors),
        (graph.input, inputs),
    ):
        copies = [type(item).FromString(item.SerializeToString()) for item in replacement]
        del items[:]
        items.extend(copies)


def _roles(graph: GraphProto, shapes: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """The role of each parameter, found through the reshaping between it and the op that reads it."""
    readers: dict[str, list[tuple[NodeProto, int]]] = {}
    for node in graph.node:
        for position, key in enumerate(node.input):
            readers.setdefault(key, []).append((node, position))

    def role(key: str) -> str | None:
        for node, position in readers.get(key, ()):
            parameter_role = ROLES.get((node.op_type, position))
            if parameter_role is None and node.op_type in ("Unsqueeze", "Reshape") and position == 0:
                parameter_role = role(node.output[0])
            if parameter_role:
                return parameter_role
        return None

    joined = {key for node in graph.node if node.op_type == "Sum" for key in node.input}
    roles = {key: parameter_role for key in shapes if (parameter_role := role(key))}
    for node in graph.node:
        if node.op_type == "BatchNormalization" and node.output[0] in joined:
            roles[node.input[1]] = "branch scale"
    return roles


def _values(role: str, shape: tuple[int, ...], key: str, seed: int) -> NDArray[np.float32]:
    rng = np.random.default_rng([seed, crc32(key.encode())])
    match role:
        case "weight":
            # The reduced extents are all but the first in a convolution and in the models' transposed Gemm weights.
            deviation = np.sqrt(2 / max(1, prod(shape[1:])))
            values = rng.standard_normal(shape, dtype=np.float32)
            values *= np.float32(deviation)
            return values
        case "scale":
            return rng.uniform(0.8, 1.2, shape).astype(np.float32)
        case "branch scale":  # what a residual network adds up would otherwise double from block to block
            return rng.uniform(0.1, 0.3, shape).astype(np.float32)
        case _:
            return (0.1 * rng.standard_normal(shape)).astype(np.float32)
