"""What the attributes of a node may say: words of which ONNX has a fixed few, and numbers that have bounds.

ONNX's own check looks at the kind of an attribute alone, and neither its inference nor its reference evaluator at more
than a few of these words: what is none of them would be taken for one of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tunewright.graph.inference import MAX_ELEMENTS, MAX_RANK
from tunewright.graph.recurrent import ACTIVATION_NAMES, GATES
from tunewright.graph.resize import CROPPED, ROUNDINGS

from .errors import NeverFits

Words = Mapping[str, Sequence[str]]
"""Attribute -> what it may say."""

_WINDOWS: Words = {"auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")}
_REDUCTION: Words = {"reduction": ("none", "add", "mul", "max", "min")}
_LOSS: Words = {"reduction": ("none", "sum", "mean")}
_ROUND: Words = {"round_mode": ("up", "down", "nearest")}
_RECURRENT: Words = {"direction": ("forward", "reverse", "bidirectional"), "activations": ACTIVATION_NAMES}
_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
    CROPPED,
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
"""The words that there are, by op of the standard domain."""

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
"""The same of ONNX's domain of classical models."""

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
"""Least and largest of an attribute, whatever the op."""

BOUNDS_OF_OPS: Mapping[str, Mapping[str, Bounds]] = {
    "Attention": dict.fromkeys(("kv_num_heads", "q_num_heads"), _COUNT),
    "GlobalLpPool": {"p": _POSITIVE},
    "LpNormalization": {"p": (1, 2)},
    "LpPool": {"p": _POSITIVE},
    "Pad": {"pads": (-MAX_ELEMENTS, MAX_ELEMENTS)},
}
"""Those of one op, ahead of BOUNDS."""


def check_attributes(op: str, domain: str, attrs: Mapping[str, Any]) -> None:
    """Raises NeverFits for an attribute that says what it can't."""
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
            raise NeverFits(f"attribute {name} is {word[:40]!r}; it must be one of {', '.join(allowed)}")


def _check_bounds(name: str, value: int | Sequence[int], bounds: Bounds) -> None:
    low, high = bounds
    items = (value,) if isinstance(value, int) else value
    if all(low <= item <= high for item in items):
        return
    said = str(value) if isinstance(value, int) else str(list(items[:8]))
    each = "it" if isinstance(value, int) else "each"
    raise NeverFits(f"attribute {name} is {said}; {each} must be {low} to {high:,}")
