"""The sketch that CONTRIBUTING.md teaches works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, op
from tunewright.codegen.host import detect
from tunewright.codegen.ir import interp
from tunewright.codegen.verify import verify
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.description import SchedulePoint

ROOT = Path(__file__).parent.parent


@pytest.fixture
def sketch() -> Any:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"<!-- tested by [^\n]*-->\n```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)  # noqa: S102
    return names["StreamSketch"]()


@pytest.mark.parametrize("size", [1, 7, 16, 131])
def test_the_worked_example(sketch: Any, size: int) -> None:
    x, y = Tensor("t0", (3, size), DType.F32), Tensor("t1", (3, size), DType.F32)
    axes = (Axis("i0", 3), Axis("i1", size))
    value = Load("t0", (Var("i0"), Var("i1")), DType.F32)
    task = Task("Softsign", (x,), (y,), (), (Stage("t1", axes, value / (op("abs", value) + 1.0)),))
    target = detect(1)
    assert sketch.applies(task, target)
    space = sketch.space(task, target)
    arrays = example_inputs(task, 0)
    for row in space.points:
        kernel = sketch.lower(task, space.schedule(row), target)
        verify(kernel)
        out = np.empty(y.shape, np.float32)
        interp.run(kernel, [*arrays, out])
        assert np.allclose(out, reference(task, arrays)[0], rtol=1e-6)
        assert space.tiling(space.columns(row[None])).vector_axis == "i1"
        schedule = space.schedule(row)
        words = list(sketch.describe(SchedulePoint(task, target, schedule, kernel, space)))
        assert words[0] == "One pass over the outputs."
        assert (f"{schedule['vectors']} vectors are computed at a time." in words) == (schedule["vectors"] > 1)
