"""Signatures of ops as ONNX declares them: counts and element types of operands, and attributes.

ONNX's own check finds most of these faults too, but names them in terms of its implementation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto

from tunewright.graph.ir import TensorType

from .. import contrib
from ..evaluation.images import CROP_AND_RESIZE, ROUNDINGS
from ..evaluation.onnx_form import MAX_ELEMENTS, MAX_RANK
from ..evaluation.recurrent import ACTIVATION_NAMES, GATES
from .protobuf import StructuralFault, quote

_KINDS = {
    "FLOAT": "a float", "FLOATS": "floats", "INT": "an integer", "INTS": "integers", "STRING": "a text",
    "STRINGS": "texts", "TENSOR": "a tensor", "TENSORS": "tensors", "GRAPH": "a graph", "GRAPHS": "graphs",
    "SPARSE_TENSOR": "a sparse tensor", "SPARSE_TENSORS": "sparse tensors", "TYPE_PROTO": "a type",
    "TYPE_PROTOS": "types", "UNDEFINED": "nothing",
}  # fmt: skip
"""ONNX's kind of an attribute -> its name in messages."""

_ELEMENTS = {"float": "float32", "double": "float64"}
"""Element types that ONNX calls something else than numpy does."""


@dataclass(frozen=True, slots=True)
class FormalParameter:
    """An operand that an op declares. Operands with the same `type_parameter` have the same element type."""

    name: str
    type_parameter: str
    element_types: Collection[str]  # empty: any
    is_required: bool
    is_variadic: bool
    is_homogeneous: bool  # whether all operands of a variadic one have one type


@dataclass(frozen=True, slots=True)
class Signature:
    """An op as of one version."""

    name: str  # with the opset
    inputs: Sequence[FormalParameter]
    counts: tuple[tuple[int, int], tuple[int, int]]  # least and most inputs and outputs
    attributes: Mapping[str, tuple[int, bool]]  # name -> kind, and whether it must be there


def op_schema(op: str, version: int, domain: str) -> Any:
    """ONNX's schema of an op as of a version of its domain, or that of a contributed op. Raises SchemaError."""
    contributed = contrib.OPS.get((domain, op))
    return contributed.schema if contributed else onnx.defs.get_schema(op, version, domain)


@cache
def signature(op: str, version: int, domain: str) -> Signature:
    """The signature of an op that ONNX has."""
    schema: Any = op_schema(op, version, domain)
    allowed = {item.type_param_str: _elements(item.allowed_type_strs) for item in schema.type_constraints}
    options = onnx.defs.OpSchema.FormalParameterOption
    inputs = [
        FormalParameter(
            item.name,
            item.type_str,
            allowed.get(item.type_str, _elements([item.type_str])),
            item.option == options.Single,
            item.option == options.Variadic,
            item.is_homogeneous,
        )
        for item in schema.inputs
    ]
    counts = (schema.min_input, schema.max_input), (schema.min_output, schema.max_output)
    attributes = {name: (item.type.value, item.required) for name, item in schema.attributes.items()}
    return Signature(f"{op} of opset {version}", inputs, counts, attributes)


def _elements(types: Collection[str]) -> frozenset[str]:
    """The element types of what must be a tensor; nothing where it may be anything else."""
    if not all(kind.startswith("tensor(") for kind in types):
        return frozenset()
    names = (kind.removeprefix("tensor(").removesuffix(")") for kind in types)
    return frozenset(_ELEMENTS.get(name, name) for name in names)


def check_call(proto: NodeProto, op: Signature) -> None:
    """Raises StructuralFault for operands and attributes that the op does not have, or lacks."""
    for what, operands, (least, most) in zip(("input", "output"), (proto.input, proto.output), op.counts, strict=True):
        if not least <= len(operands) <= most:
            expected = str(least) if least == most else f"at least {least}" if most > 1 << 20 else f"{least} to {most}"
            number = f"{len(operands)} {what}{'s' * (len(operands) != 1)}"
            raise StructuralFault(f"{number} where {op.name} has {expected}")
    for position, (name, operand) in enumerate(zip(proto.input, op.inputs, strict=False)):
        if operand.is_required and not name:
            raise StructuralFault(f"input {position} ({operand.name}) is left out; {op.name} needs it")
    _check_attributes(proto.attribute, op)


def _check_attributes(attributes: Collection[AttributeProto], op: Signature) -> None:
    names = set()
    for attribute in attributes:
        name = attribute.name
        if name in names:
            raise StructuralFault(f"attribute {quote(name)} is given twice")
        names.add(name)
        if name not in op.attributes:
            op_attributes = ", ".join(sorted(op.attributes)) or "none"
            raise StructuralFault(f"{op.name} has no attribute {quote(name)}; its attributes: {op_attributes}")
        kind = op.attributes[name][0]
        if attribute.type != kind:
            actual, expected = (_KINDS[AttributeProto.AttributeType.Name(number)] for number in (attribute.type, kind))
            raise StructuralFault(f"attribute {quote(name)} is {actual}; {op.name} has {expected} there")
    missing = [name for name, (_, is_required) in op.attributes.items() if is_required and name not in names]
    if missing:
        raise StructuralFault(f"attribute {missing[0]} is missing; {op.name} needs it")


def check_elements(kinds: Sequence[TensorType | None], op: Signature) -> None:
    """Raises StructuralFault for operands of element types that the op does not take, or that differ and must not."""
    first_operands: dict[str, tuple[str, str]] = {}  # type parameter -> its first operand, and the element type
    if not op.inputs:
        return
    last = op.inputs[-1]
    for position, kind in enumerate(kinds):
        operand = op.inputs[position] if position < len(op.inputs) else last
        if kind is None or kind.dtype == "object" or not operand.element_types:
            continue
        name = f"{position} ({operand.name})"
        if kind.dtype not in operand.element_types:
            expected = ", ".join(sorted(operand.element_types))
            raise StructuralFault(f"input {name} holds {kind.dtype}; {op.name} takes {expected} there")
        if operand.is_variadic and not operand.is_homogeneous:
            continue
        other, dtype = first_operands.setdefault(operand.type_parameter, (name, kind.dtype))
        if dtype != kind.dtype:
            raise StructuralFault(
                f"input {other} holds {dtype} and input {name} {kind.dtype}; both must be of one type"
            )


# Attributes: enumerated words, and numbers that have bounds. ONNX's own check looks at the kind of an attribute alone,
# and neither its inference nor its reference evaluator at more than a few of these words: what is none of them would be
# taken for one of the others.

Words = Mapping[str, Sequence[str]]
"""Attribute -> its allowed words."""

_WINDOWS: Words = {"auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")}
_REDUCTION: Words = {"reduction": ("none", "add", "mul", "max", "min")}
_LOSS: Words = {"reduction": ("none", "sum", "mean")}
_ROUND: Words = {"round_mode": ("up", "down", "nearest")}
_RECURRENT: Words = {"direction": ("forward", "reverse", "bidirectional"), "activations": ACTIVATION_NAMES}
_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
    CROP_AND_RESIZE,
)  # fmt: skip

WORDS: Mapping[str, Words] = {
    **dict.fromkeys(
        ("AveragePool", "Conv", "ConvInteger", "ConvTranspose", "LpPool", "MaxPool", "QLinearConv"), _WINDOWS
    ),
    **dict.fromkeys(("Cast", "CastLike"), _ROUND),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), _LOSS),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _REDUCTION),
    **{key: {"mode": ("DCR", "CRD")} for key in ("DepthToSpace", "SpaceToDepth")},
    **dict.fromkeys(GATES, _RECURRENT),
    "BitShift": {"direction": ("LEFT", "RIGHT")},
    "CausalConvWithState": {"activation": ("none", "silu", "swish")},
    "Gelu": {"approximate": ("none", "tanh")},
    "GridSample": {  # opset 20 gave two of the modes other names, which mean the same in all
        "mode": ("linear", "nearest", "cubic", "bilinear", "bicubic"),
        "padding_mode": ("zeros", "border", "reflection"),
    },
    "ImageDecoder": {"pixel_format": ("RGB", "BGR", "Grayscale")},
    "LinearAttention": {"update_rule": ("linear", "gated", "delta", "gated_delta")},
    "Pad": {"mode": ("constant", "reflect", "edge", "wrap")},
    "Resize": {
        "mode": ("nearest", "linear", "cubic"),
        "nearest_mode": tuple(ROUNDINGS),
        "coordinate_transformation_mode": _COORDINATES,
        "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    },
    "RoiAlign": {"mode": ("avg", "max"), "coordinate_transformation_mode": ("half_pixel", "output_half_pixel")},
    "StringNormalizer": {"case_change_action": ("LOWER", "UPPER", "NONE")},
    "TensorScatter": {"mode": ("linear", "circular")},
    "TfIdfVectorizer": {"mode": ("TF", "IDF", "TFIDF")},
    "Upsample": {"mode": ("nearest", "linear")},
}
"""The allowed words, by op of the standard domain."""

_TRANSFORMED: Words = {"post_transform": ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")}
_KERNEL: Words = {"kernel_type": ("LINEAR", "POLY", "RBF", "SIGMOID")}
_TREES: Words = {
    **_TRANSFORMED,
    "nodes_modes": ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "LEAF"),
}

ML_WORDS: Mapping[str, Words] = {
    **dict.fromkeys(("LinearClassifier", "LinearRegressor"), _TRANSFORMED),
    **{key: {**_TRANSFORMED, **_KERNEL} for key in ("SVMClassifier", "SVMRegressor")},
    "Normalizer": {"norm": ("MAX", "L1", "L2")},
    "TreeEnsembleClassifier": _TREES,
    "TreeEnsembleRegressor": {**_TREES, "aggregate_function": ("AVERAGE", "SUM", "MIN", "MAX")},
}
"""The allowed words, by op of ONNX's domain of classical models."""

_ANY_CASE = frozenset({"activations"})
"""Attributes in whose words small and capital letters are the same."""

_UNSET = frozenset({"auto_pad"})
"""Attributes that exporters leave empty where they mean the default."""

Bounds = tuple[int, int]
_POSITIVE: Bounds = (1, MAX_ELEMENTS)
_COUNT: Bounds = (0, MAX_ELEMENTS)
_AXIS: Bounds = (0, MAX_RANK)

_POSITIVE_NAMES = """
blocksize dilations group hidden_size kernel_shape kv_num_heads num_groups num_outputs num_scan_inputs offset_group
output_height output_shape output_width pooled_shape q_num_heads size strides
"""
BOUNDS: Mapping[str, Bounds] = {
    **dict.fromkeys(_POSITIVE_NAMES.split(), _POSITIVE),
    **dict.fromkeys(("block_size", "output_padding", "pads", "sampling_ratio", "split"), _COUNT),
    **dict.fromkeys(("batch_axis", "batch_dims", "time_axis"), _AXIS),
}
"""Bounds of an attribute for every op."""

BOUNDS_OF_OPS: Mapping[str, Mapping[str, Bounds]] = {
    "Attention": dict.fromkeys(("kv_num_heads", "q_num_heads"), _COUNT),
    "GlobalLpPool": {"p": _POSITIVE},
    "LpNormalization": {"p": (1, 2)},
    "LpPool": {"p": _POSITIVE},
    "Pad": {"pads": (-MAX_ELEMENTS, MAX_ELEMENTS)},
}
"""Bounds of an attribute for one op; they take precedence over BOUNDS."""


def check_attributes(op: str, domain: str, attrs: Mapping[str, Any]) -> None:
    """Raises StructuralFault for an attribute with a value that is not allowed."""
    words = (ML_WORDS if domain else WORDS).get(op, {})
    for name, allowed in words.items():
        if name in attrs:
            _check_words(name, attrs[name], allowed)
    if domain:
        return
    own = BOUNDS_OF_OPS.get(op, {})
    for name, value in attrs.items():
        bounds = own.get(name) or BOUNDS.get(name)
        if bounds is not None:
            _check_bounds(name, value, bounds)


def _check_words(name: str, value: str | Sequence[str], allowed: Collection[str]) -> None:
    for word in (value,) if isinstance(value, str) else value:
        if not word and name in _UNSET:
            continue
        if (word.lower() if name in _ANY_CASE else word) not in allowed:
            raise StructuralFault(f"attribute {name} is {word[:40]!r}; it must be one of {', '.join(allowed)}")


def _check_bounds(name: str, value: int | Sequence[int], bounds: Bounds) -> None:
    low, high = bounds
    items = (value,) if isinstance(value, int) else value
    if all(low <= item <= high for item in items):
        return
    text = str(value) if isinstance(value, int) else str(list(items[:8]))
    each = "it" if isinstance(value, int) else "each"
    raise StructuralFault(f"attribute {name} is {text}; {each} must be {low} to {high:,}")
