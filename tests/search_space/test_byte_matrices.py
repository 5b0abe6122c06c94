"""Products of bytes in matrix registers: exact in the interpreter, and by the instructions where they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.llvm.build import assembly
from tunewright.graph.task import Task
from tunewright.search_space.sketch import find_space
from tunewright.search_space.sketches import sketch, spaces

from .oracle import DOTS, HOST, MATRICES, agree_exactly
from .test_byte_product import MODELS, tasks_of

SKETCH = sketch("byte_matrices")

LAST = "y = Transpose <perm=[0,2,3,1]>"
"""Channels last, as in the middle of models."""

CASES = {
    "rows left": ("uint8[67,64] x", "t = MatMulInteger (x, w, m) u = Cast <to=1> (t) y = Mul (u, s)", (64, 50)),
    "few rows": ("uint8[5,96] x", "t = MatMulInteger (x, w, m) u = Cast <to=1> (t) y = Relu (u)", (96, 33)),
    "batch": ("uint8[2,19,36] x", "t = MatMulInteger (x, w, m) u = Cast <to=1> (t) y = Relu (u)", (36, 16)),
    "short lines": (
        "uint8[1,32,7,9] x",
        f"t = ConvInteger <pads=[1,1,1,1], strides=[2,1]> (x, w) u = Cast <to=1> (t) v = Mul (u, s) {LAST} (v)",
        (17, 32, 3, 3),
    ),
    "long lines": (
        "uint8[1,32,4,37] x",
        f"t = ConvInteger <dilations=[2,1], pads=[0,2,0,0]> (x, w, m) u = Cast <to=1> (t) {LAST} (u)",
        (40, 32, 2, 3),
    ),
}
"""Models as in `test_byte_product`."""


@pytest.fixture(autouse=True)
def _cases(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, case in CASES.items():
        monkeypatch.setitem(MODELS, name, case)


def product_of(name: str) -> Task:
    [task] = [task for task in tasks_of(name, MATRICES) if find_space(SKETCH, task, MATRICES)]
    return task


@pytest.mark.parametrize("name", CASES)
def test_any_schedule_is_exact(name: str) -> None:
    agree_exactly(SKETCH, product_of(name), MATRICES, 4, [HOST] if HOST.has_matrices_of(DType.U8) else [])


def test_it_is_the_only_choice_where_there_are_matrix_registers() -> None:
    task = product_of("rows left")
    assert [space.sketch for space in spaces(task, MATRICES)] == ["byte_matrices"]
    assert [space.sketch for space in spaces(task, DOTS)] == ["byte_product"]


def test_one_row_is_no_matrix() -> None:
    [task] = [task for task in tasks_of("one row", MATRICES) if find_space(sketch("byte_product"), task, MATRICES)]
    assert find_space(SKETCH, task, MATRICES) is None


def test_the_instructions_are_there() -> None:
    task = product_of("rows left")
    kernel = SKETCH.lower(task, SKETCH.space(task, MATRICES).default, MATRICES)
    text = assembly(kernel, MATRICES)
    for word in ("ldtilecfg", "tilezero", "tileloadd", "tdpbusd", "tilestored", "tilerelease"):
        assert word in text


@pytest.mark.parametrize("missing", ["amx-int8", "amx-tile"])
def test_both_features_are_needed(missing: str) -> None:
    assert MATRICES.has_matrices_of(DType.U8)
    without = replace(MATRICES, features=MATRICES.features.replace(f"+{missing}", f"-{missing}"))
    assert not without.has_matrices_of(DType.U8)
