"""ONNX's own conformance cases (`onnx.backend.test`): models, arrays, and what of them can be told early."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    OptionalProto,
    SequenceProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    numpy_helper,
    version_converter,
)
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from tunewright.graph.evaluation.onnx_form import DTYPES, PARAMETERS
from tunewright.graph.onnx_import.protobuf import MIN_OPSET

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""All but "real", which are whole models."""

UNSUITED = {
    "test_bernoulli*": "draws random numbers, which no two implementations have in common",
    "test_gradient_of_*": "Gradient is about training; ONNX's inference and reference evaluator don't know it",
    "test_image_decoder_*": "ONNX's reference evaluator needs Pillow for it",
    "test_sequence_model8": "leaves a dimension open and then has 0 for it, which can't be bound",
}
"""Cases that can't pass, and why."""

_AFTER_FIRST = (
    *PARAMETERS,
    "AffineGrid",
    "CenterCropPad",
    "Col2Im",
    "Dropout",
    "OneHot",
    "Squeeze",
    "Unsqueeze",
    "Upsample",
)
_WHOLE = ("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow", "MelWeightMatrix", "Range")

PARAMETRIC: Mapping[str, Collection[int]] = {
    **dict.fromkeys(_AFTER_FIRST, range(1, 8)),
    **dict.fromkeys(_WHOLE, range(8)),
    "DFT": (1, 2),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "STFT": (1, 3),
}
"""Op -> the places of its inputs that say what to do or how much of it, not with what."""


@cache
def all_cases() -> tuple[TestCase, ...]:
    """The cases of all kinds, by name. ONNX computes them with its reference evaluator, which takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases are made with infinities and the like
        found = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    return tuple(sorted(found, key=lambda case: case.name))


def model_of(case: TestCase) -> ModelProto:
    """The model of a case."""
    if case.model is not None:
        return case.model
    assert case.model_dir is not None
    return onnx.load(Path(case.model_dir) / "model.onnx")


def obstacle(case: TestCase, model: ModelProto) -> str:
    """Why a case can't pass or be run; empty where it can."""
    unsuited = next((why for pattern, why in UNSUITED.items() if fnmatchcase(case.name, pattern)), "")
    return unsuited or _foreign_type(model)


def _foreign_type(model: ModelProto) -> str:
    for kind in boundary(model):
        if not kind.HasField("tensor_type"):
            return "sequences, optionals or maps go in or out"
        if kind.tensor_type.elem_type not in DTYPES:
            return f"element type {TensorProto.DataType.Name(kind.tensor_type.elem_type)}"
    return ""


def boundary(model: ModelProto) -> list[TypeProto]:
    """The types of what goes in and out."""
    known = {tensor.name for tensor in model.graph.initializer}
    return [v.type for v in (*model.graph.input, *model.graph.output) if v.name not in known]


def is_static(model: ModelProto) -> bool:
    """Whether tensors alone go in and out, of known shapes going in."""
    return all(kind.HasField("tensor_type") for kind in boundary(model)) and all(
        dim.HasField("dim_value") for value in model.graph.input for dim in value.type.tensor_type.shape.dim
    )


def element_types(model: ModelProto) -> frozenset[int]:
    """ONNX's numbers of the element types that go in and out."""
    return frozenset(kind.tensor_type.elem_type for kind in boundary(model) if kind.HasField("tensor_type"))


def parameters(model: ModelProto) -> frozenset[str]:
    """The inputs of a model, of rank 0 or 1, that its nodes take for parameters, or compute these from alone."""
    known = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name: value for value in model.graph.input if value.name not in known}
    small = {name for name, value in inputs.items() if len(value.type.tensor_type.shape.dim) < 2}
    sources: dict[str, set[str]] = {**{name: {name} for name in small}, **{name: set() for name in (*known, "")}}
    found: set[str] = set()
    for node in model.graph.node:
        places = PARAMETRIC.get(node.op_type, ())
        found.update(*(sources.get(name, ()) for place, name in enumerate(node.input) if place in places))
        names = [*node.input, *captures(node)]
        if node.op_type in ("Shape", "Size"):
            sources.update((name, set()) for name in node.output)
        elif all(name in sources for name in names):
            sources.update((name, set().union(*(sources[other] for other in names))) for name in node.output)
    return frozenset(found)


def captures(node: NodeProto) -> set[str]:
    """What the bodies of a node read from outside."""
    found: set[str] = set()
    for body in (attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH):
        own = {"", *(value.name for value in body.input), *(tensor.name for tensor in body.initializer)}
        for item in body.node:
            found |= {*item.input, *captures(item)} - own
            own.update(item.output)
    return found


def open_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """The inputs that have no weights, in order."""
    known = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in known]


def upgraded(model: ModelProto) -> ModelProto:
    """The model in an opset that Tunewright reads."""
    if all(opset.domain or opset.version >= MIN_OPSET for opset in model.opset_import):
        return model
    newer: ModelProto = version_converter.convert_version(model, MIN_OPSET)
    return newer


def with_weights(model: ModelProto, weights: Mapping[str, Any]) -> ModelProto:
    """The model with arrays for some of its inputs."""
    if not weights:
        return model
    changed = ModelProto()
    changed.CopyFrom(model)
    changed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return changed


def data_sets(case: TestCase, model: ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and outputs, once or more often."""
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [_as_value(item) for item in inputs], [_as_value(item) for item in outputs]
        return
    assert case.model_dir is not None
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield _read_folder(folder, "input", model.graph.input), _read_folder(folder, "output", model.graph.output)


def _read_folder(folder: Path, what: str, values: Sequence[ValueInfoProto]) -> list[Any]:
    """The arrays in the files of a data set."""
    found = []
    for number in range(len(list(folder.glob(f"{what}_*.pb")))):
        data = (folder / f"{what}_{number}.pb").read_bytes()
        match values[number].type.WhichOneof("value"):
            case "sequence_type":
                found.append(_as_value(SequenceProto.FromString(data)))
            case "optional_type":
                found.append(_as_value(OptionalProto.FromString(data)))
            case _:
                found.append(_as_value(TensorProto.FromString(data)))
    return found


def _as_value(item: Any) -> Any:
    """An array, or what else a case has, from ONNX's form if it has that."""
    match item:
        case TensorProto():
            return numpy_helper.to_array(item)
        case SequenceProto():
            return numpy_helper.to_list(item)
        case OptionalProto():
            return numpy_helper.to_optional(item)
        case _:
            return item
