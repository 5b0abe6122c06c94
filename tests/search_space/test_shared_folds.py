"""Shared folds: few results of long folds, each shared by threads of several warps."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.codegen.cuda import interp
from tunewright.codegen.verify import verify
from tunewright.graph.oracle import example_inputs, reference
from tunewright.search_space.sketches import default_schedule, sketch

from .oracle import GPU, interpret
from .test_sketches import agree, tasks_of

NAME = "shared_folds"

MODELS = {
    "a row": "float16: x[640] w[640, 200] b[200] | r = MatMul(x, w) y = Add(r, b) | y ; w b",
    "a row of prime sizes": "x[211] w[211, 37] | y = MatMul(x, w) | y ; w",
    "a transposed matrix": "float16: x[1, 331] w[64, 331] | y = Gemm<transB=1>(x, w) | y ; w",
    "an outer axis": "x[1, 13, 11, 35] | t = Transpose<perm=[0, 3, 1, 2]>(x) y = GlobalAveragePool(t) | y",
}


def fold_of(name):
    return next(task for task in tasks_of(MODELS[name], {}) if sketch(NAME).applies(task, GPU))


@pytest.mark.parametrize("name", MODELS)
def test_default_and_random_schedules_come_to_what_the_oracle_does(name):
    task = fold_of(name)
    space, arrays = sketch(NAME).space(task, GPU), example_inputs(task, 0)
    expected = reference(task, arrays)
    for row in [space.row(space.default), *space.sample(8, np.random.default_rng(1))]:
        kernel = sketch(NAME).lower(task, space.schedule(row), GPU)
        verify(kernel)
        agree(task, interpret(task, kernel, arrays, interp.run), expected)


def test_it_is_the_first_choice_where_results_are_few():
    few = fold_of("a row")
    values = dict(default_schedule(few, GPU).values)
    assert default_schedule(few, GPU).sketch == NAME and values["vector"] == 8, "16 bytes an access"
    many = tasks_of("x[1, 13, 11, 9000] | t = Transpose<perm=[0, 3, 1, 2]>(x) y = GlobalAveragePool(t) | y", {})
    folds = [task for task in many if sketch(NAME).applies(task, GPU)]
    assert folds and all(default_schedule(task, GPU).sketch != NAME for task in folds)
