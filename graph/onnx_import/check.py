"""Checks of a model's structure before anything computes with it: counts, nesting, versions, functions.

All in Python integers on the parsed protobuf; no C++ of onnx sees a model that fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto

from .protobuf import MIN_OPSET, ModelError, bodies, nested_nodes, place_of, quote, standard, versions

MAX_OPSET = 1_000_000
"""More than any domain has opsets: onnx keeps them in 32 bits."""

MIN_IR_VERSION = 3
"""The oldest file format: since 3 a model says which opsets it uses."""

MAX_NODES = 200_000
"""Most nodes, those of control flow and of expanded functions included."""

MAX_TENSORS = 200_000
"""Most weights, and most inputs and outputs of one graph."""

MAX_OPERANDS = 10_000
"""Most inputs and outputs of one node."""

MAX_SUBGRAPH_DEPTH = 16
"""Deepest nesting of control flow."""

MAX_CALL_DEPTH = 64
"""Deepest nesting of calls of the model's functions."""

FunctionKey = tuple[str, str, str]


def check_structure(model: ModelProto) -> None:
    """Raises ModelError for a model that is no model, or beyond the limits."""
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ModelError("not an ONNX model: it holds no graph")
    if not MIN_IR_VERSION <= model.ir_version <= onnx.IR_VERSION:
        raise ModelError(
            f"file format (IR) version {model.ir_version} is outside {MIN_IR_VERSION} to {onnx.IR_VERSION}; "
            "export the model again with a current or older exporter"
        )
    if not model.opset_import:
        raise ModelError("not a usable ONNX model: it doesn't say which opset it uses")
    _check_opsets(model.opset_import, "the model")
    _check_graph(model.graph, depth=0)
    for function in model.functions:
        _check_text((function.name, function.domain, function.overload, *function.input, *function.output))
        _check_opsets(function.opset_import, f"function {quote(function.name)}")
        for node in function.node:
            _check_node(node, depth=0)
    nodes = _expanded_nodes(model)
    if nodes > MAX_NODES:
        raise ModelError(f"{nodes:,} nodes (functions expanded) are more than {MAX_NODES:,}")


def _check_opsets(imports: Collection[OperatorSetIdProto], whose: str) -> None:
    _check_text(opset.domain for opset in imports)
    opsets = versions(imports)
    for opset in imports:
        other = opsets[standard(opset.domain)]
        if opset.version != other:
            domain = quote(opset.domain or "ai.onnx")
            raise ModelError(f"{whose} gives versions {opset.version} and {other} for opset domain {domain}; give one")
    if not all(0 <= number <= MAX_OPSET for number in opsets.values()):
        raise ModelError(f"opset versions are 0 to {MAX_OPSET:,}; {whose} gives {str(list(opsets.values()))[:80]}")
    version = opsets.get("", MIN_OPSET)
    newest = onnx.defs.onnx_opset_version()
    if version < MIN_OPSET:
        raise ModelError(
            f"opset {version} of {whose} is older than {MIN_OPSET}; export the model again with a newer opset"
        )
    if version > newest:
        raise ModelError(
            f"opset {version} of {whose} is newer than {newest}, the newest that the installed onnx knows; update onnx"
        )


def _check_graph(graph: GraphProto, depth: int) -> None:
    weights = (("weights", graph.initializer), ("sparse weights", graph.sparse_initializer))
    for what, items in (*weights, ("inputs", graph.input), ("outputs", graph.output)):
        if len(items) > MAX_TENSORS:
            raise ModelError(f"{len(items):,} {what} are more than {MAX_TENSORS:,}")
    _check_text(tensor.name for tensor in graph.initializer)
    _check_text(sparse.values.name for sparse in graph.sparse_initializer)
    _check_text(value.name for value in (*graph.input, *graph.output))
    _check_text(dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim)
    if len(graph.node) > MAX_NODES:
        raise ModelError(f"{len(graph.node):,} nodes are more than {MAX_NODES:,}")
    for node in graph.node:
        _check_node(node, depth)


def _check_node(node: NodeProto, depth: int) -> None:
    for what, names in (("inputs", node.input), ("outputs", node.output)):
        if len(names) > MAX_OPERANDS:
            raise ModelError(
                f"{place_of(node)}: {len(names):,} {what} are more than {MAX_OPERANDS:,}; use several such nodes, "
                "each for a part of them, and one more for what they make"
            )
    _check_text((node.op_type, node.domain, node.name, node.overload, *node.input, *node.output))
    _check_text(attribute.name for attribute in node.attribute)
    for graph in bodies(node):
        if depth == MAX_SUBGRAPH_DEPTH:
            raise ModelError(
                f"{place_of(node)}: control flow is nested more than {MAX_SUBGRAPH_DEPTH} deep; "
                "move inner branches and loops out of the outer ones"
            )
        _check_graph(graph, depth + 1)


def _check_text(names: Iterable[object]) -> None:
    """Raises ModelError for a name that is no UTF-8: protobuf hands such out as bytes."""
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"a name in the model is no UTF-8 text: {quote(name)}")


def function_key(item: NodeProto | FunctionProto) -> FunctionKey:
    """The key of a function of the model, of the function itself or of a call."""
    name = item.op_type if isinstance(item, NodeProto) else item.name
    return standard(item.domain), name, item.overload


def _expanded_nodes(model: ModelProto) -> int:
    """The number of nodes after the expansion of functions. Raises ModelError for recursive ones."""
    functions = {function_key(function): function for function in model.functions}
    if len(functions) != len(model.functions):
        raise ModelError("two functions of the model have the same name")
    sizes: dict[FunctionKey, int] = {}
    active: list[FunctionKey] = []

    def size(nodes: Iterable[NodeProto]) -> int:
        keys = [function_key(node) for node in nested_nodes(nodes)]
        return sum(function_size(key) if key in functions else 1 for key in keys)

    def function_size(key: FunctionKey) -> int:
        if key in active:
            raise ModelError(f"function {quote(key[1])} of the model calls itself; functions may not be recursive")
        if len(active) > MAX_CALL_DEPTH:
            raise ModelError(f"functions of the model call each other more than {MAX_CALL_DEPTH} deep")
        if key not in sizes:
            active.append(key)
            sizes[key] = size(functions[key].node)
            active.pop()
        return sizes[key]

    # Functions that nothing calls are looked at too: what inlines calls later sees them all.
    for key in functions:
        function_size(key)
    return size(model.graph.node)


# Files of other formats, recognised by their first bytes, and what to do with them

UNPACK = "unpack it first"
EXPORT = "export the model to ONNX first"

_MAGIC: Mapping[bytes, tuple[str, str]] = {
    b"\x1f\x8b": ("a gzip file", UNPACK),
    b"BZh": ("a bzip2 file", UNPACK),
    b"\xfd7zXZ\0": ("an xz file", UNPACK),
    b"\x28\xb5\x2f\xfd": ("a zstandard file", UNPACK),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", UNPACK),
    b"PK\x03\x04": ("a zip archive, as PyTorch saves its models", f"{UNPACK}, or {EXPORT}"),
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file, as Keras saves its models", EXPORT),
    b"\x80\x02": ("a pickle of Python, as PyTorch saved its models", EXPORT),
    b"GGUF": ("a GGUF file", EXPORT),
    b"\x93NUMPY": ("an array of NumPy", "name the model; arrays are for run --input NAME=FILE.npy"),
}
"""First bytes -> format and remedy. No ONNX model begins so: these are tags of fields that it hasn't."""

_SHAPES: Mapping[str, Callable[[bytes], bool]] = {
    "a TensorFlow Lite model": lambda data: data[4:8] == b"TFL3" and data[:1] != b"\x08",  # 8: an ONNX file's version
    "a model in ONNX Runtime's own format": lambda data: data[4:8] == b"ORTM" and data[:1] != b"\x08",
    "a safetensors file": lambda data: data[8:10] == b'{"' and int.from_bytes(data[:8], "little") < len(data),
}


def foreign_format(data: bytes) -> str:
    """A line that names the format of a file that is no ONNX model, and the remedy; empty if it may be one."""
    for magic, (what, remedy) in _MAGIC.items():
        if data.startswith(magic):
            return f"this is {what}, not ONNX: {remedy}"
    return next((f"this is {what}, not ONNX: {EXPORT}" for what, is_one in _SHAPES.items() if is_one(data)), "")
