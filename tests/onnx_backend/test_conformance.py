"""ONNX's own conformance cases, each with its own tolerance: all that have static shapes and float32 data must pass.

Others run as well: those with other element types and open dimensions must pass if Tunewright has the types. A case
whose shape parameters are inputs of its model runs twice, see `backend`. `conftest` prints the counts.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import Runner

from tunewright.bench.onnx_cases import (
    UNSUITED,
    all_cases,
    data_sets,
    element_types,
    is_static,
    model_of,
    obstacle,
    parameters,
)
from tunewright.codegen.llvm.build import ObjectCache
from tunewright.tuner.session.image_store import Coverage

from .backend import TunewrightBackend

FLOAT32 = TensorProto.FLOAT
AUXILIARY = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})


CASES = all_cases()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> ObjectCache:
    """Object code, shared by all cases."""
    return ObjectCache(tmp_path_factory.mktemp("objects"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case, objects, record_property) -> None:
    model = model_of(case)
    record_property("onnx_group", "static float32" if is_static_float32(model) else "other")
    reason = obstacle(case, model)
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
    """Of static shapes, and float32 goes in or out, and nothing besides but indices, sizes and conditions."""
    types = element_types(model)
    return is_static(model) and FLOAT32 in types and types <= {FLOAT32, *AUXILIARY}


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
