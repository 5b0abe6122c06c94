"""Builders: tasks without a model, by the keys that models have them by."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tunewright.bench.suite.convolutional import resnet50
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.tuner.models import builders
from tunewright.tuner.models.builders import attention, conv2d, matmul
from tunewright.tuner.models.model import open_model

GPU = Target.of_gpu(KNOWN["sm_90a"])


def test_the_example_of_the_docs_is_a_product_as_we_have_it() -> None:
    """A task that is written by hand, as another compiler would, is the one that a model comes to."""
    docs = Path(builders.__file__).parents[2] / "docs" / "lookup.md"
    found = re.search(r'```json\n(\{"op": "MatMul".*?)```', docs.read_text(), re.S)
    assert found is not None
    assert Task.from_json(json.loads(found[1])).renamed().key == matmul(128, 3072, 768).key


def test_layers_of_a_model_are_found() -> None:
    known = open_model(resnet50()).tasks
    assert conv2d(1, 64, 56, 56, 64, 3, padding=1, activation="Relu").key in known
    assert conv2d(1, 512, 7, 7, 512, 3, padding=1, activation="Relu").key in known
    assert matmul(1, 1000, 2048, has_bias=True).key in known


@pytest.mark.parametrize("dtype", builders.FLOATS)
@pytest.mark.parametrize("target", [None, GPU], ids=["processor", "GPU"])
def test_every_type_has_its_products(dtype: DType, target: Target | None) -> None:
    task = matmul(32, 48, 64, dtype, batch=(3,), has_bias=True, activation="Gelu", target=target)
    assert task.op.startswith("MatMul+Add") and task.flops >= 2 * 3 * 32 * 48 * 64
    assert task.tensor(task.inputs[1].name).shape == (64, 48)


def test_the_parts_of_attention() -> None:
    assert [task.shape for task in attention(2, 8, 64, 96, 32)] == [
        "16x64x32, 16x96x32 -> 16x64x96",
        "1024x96 -> 1024x96",
        "16x64x96, 16x96x32 -> 16x64x32",
        "16x64x32, 16x96x32, 16x96x32 -> 16x64x32",  # all in one
    ]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: matmul(0, 3, 4), "0 is less than 1"),
        (lambda: attention(1, 2, 3, 4, 0), "0 is less than 1"),
        (lambda: conv2d(1, 8, 9, 9, 8, 3, groups=0), "0 is less than 1"),
        (lambda: conv2d(1, 8, 9, 9, 8, 3, stride=-1), "-1 is less than 1"),
        (lambda: matmul(2, 3, 4, DType.I8), "int8 is none of float32"),
        (lambda: matmul(2, 3, 4, activation="Softmax"), "Softmax is none of Relu"),
        (lambda: conv2d(1, 6, 9, 9, 8, 3, groups=4), "4 groups don't divide 6 channels"),
        (lambda: conv2d(1, 8, 2, 9, 8, 3), "a window of 3 leaves nothing of 2 x 9"),
    ],
)
def test_what_can_not_be_built(build: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build()
