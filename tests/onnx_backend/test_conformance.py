"""ONNX's own conformance cases, each with its own tolerance: all that have static shapes and float32 data must pass.

Others run as well: those with other element types and open dimensions must pass if Tunewright has the types. A case
whose shape parameters are inputs of its model runs twice, see `backend`. `conftest` prints the counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, OptionalProto, SequenceProto, TensorProto, TypeProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from tunewright.codegen.llvm.build import ObjectCache
from tunewright.graph.evaluation.onnx_form import DTYPES
from tunewright.tuner.session.image_store import Coverage

from .backend import TunewrightBackend, parameters

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""All but "real", which are whole models."""

UNSUITED = {
    "test_bernoulli*": "draws random numbers, which no two implementations have in common",
    "test_gradient_of_*": "Gradient is about training; ONNX's inference and reference evaluator don't know it",
    "test_image_decoder_*": "ONNX's reference evaluator needs Pillow for it",
    "test_sequence_model8": "leaves a dimension open and then has 0 for it, which can't be bound",
}
"""Cases that can't pass, and why."""

FLOAT32 = TensorProto.FLOAT
AUXILIARY = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})


def _cases() -> list[TestCase]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases are made with infinities and the like
        found = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    return sorted(found, key=lambda case: case.name)


CASES = _cases()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> ObjectCache:
    """Object code, shared by all cases."""
    return ObjectCache(tmp_path_factory.mktemp("objects"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case, objects, record_property) -> None:
    model = case.model or onnx.load(Path(case.model_dir) / "model.onnx")
    record_property("onnx_group", "static float32" if is_static_float32(model) else "other")
    reason = next((UNSUITED[p] for p in UNSUITED if fnmatchcase(case.name, p)), None) or unsupported(model)
    if reason:
        record_property("onnx_result", f"skipped: {reason}")
        pytest.skip(reason)
    coverage = passes(case, model, objects)
    told = False
    if coverage.fallback and parameters(model):
        coverage = passes(case, model, objects, bind=True)
        told = not coverage.fallback
    record_property("onnx_result", "native if told" if told else how(coverage))
    record_property("onnx_fallback", " ".join(coverage.fallback))


def passes(case: TestCase, model: ModelProto, objects: ObjectCache, bind: bool = False) -> Coverage:
    """Compare all outputs with the case's, as ONNX does."""
    prepared = TunewrightBackend.prepare(model, bind=bind, cache=objects)
    try:
        for inputs, wanted in data_sets(case, model):
            Runner.assert_similar_outputs(wanted, prepared.run(inputs), case.rtol, case.atol)
        return prepared.coverage
    finally:
        prepared.close()


def how(coverage: Coverage) -> str:
    """What ran a model."""
    if coverage.fallback:
        return "by fallback"
    return "native" if coverage.native else "nothing to run"


def is_static_float32(model: ModelProto) -> bool:
    """Tensors alone go in and out, of known shapes going in, and of float32 besides indices, sizes and conditions."""
    kinds = boundary(model)
    types = {kind.tensor_type.elem_type for kind in kinds if kind.HasField("tensor_type")}
    return (
        all(kind.HasField("tensor_type") for kind in kinds)
        and FLOAT32 in types
        and types <= {FLOAT32, *AUXILIARY}
        and all(dim.HasField("dim_value") for value in model.graph.input for dim in value.type.tensor_type.shape.dim)
    )


def unsupported(model: ModelProto) -> str:
    """What Tunewright does not take about a model; empty if it takes it."""
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


def data_sets(case: TestCase, model: ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and outputs, once or more often."""
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [as_value(item) for item in inputs], [as_value(item) for item in outputs]
        return
    assert case.model_dir is not None
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield kept(folder, "input", model.graph.input), kept(folder, "output", model.graph.output)


def kept(folder: Path, what: str, values: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    """The arrays in the files of a data set."""
    found = []
    for number in range(len(list(folder.glob(f"{what}_*.pb")))):
        data = (folder / f"{what}_{number}.pb").read_bytes()
        match values[number].type.WhichOneof("value"):
            case "sequence_type":
                found.append(as_value(SequenceProto.FromString(data)))
            case "optional_type":
                found.append(as_value(OptionalProto.FromString(data)))
            case _:
                found.append(as_value(TensorProto.FromString(data)))
    return found


def as_value(item: Any) -> Any:
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


def test_every_exception_is_needed() -> None:
    assert [p for p in UNSUITED if not any(fnmatchcase(case.name, p) for case in CASES)] == []


def test_selection() -> None:
    """The cases that must pass are most of ONNX's."""
    assert len({case.name for case in CASES}) == len(CASES)
    models = [case.model for case in CASES if case.model is not None]
    assert sum(map(is_static_float32, models)) > len(models) / 2


def test_one_node() -> None:
    node = onnx.helper.make_node("Clip", ["x", "", "high"], ["y"])
    x, high = np.arange(6, dtype=np.float32), np.array(3, np.float32)
    (y,) = TunewrightBackend.run_node(node, [x, high], opset_version=13)
    np.testing.assert_array_equal(y, np.minimum(x, high))
    assert TunewrightBackend.supports_device("CPU")
    assert not TunewrightBackend.supports_device("CUDA:0")
