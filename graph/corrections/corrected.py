"""What corrections have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference import ops
from onnx.reference.op_run import OpRun


class Corrected(OpRun):
    """Base of the classes that the evaluator takes in place of its own: for the op that the class is named after."""

    op_domain = ""

    def _attrs(self) -> dict[str, Any]:
        """The attributes that the node has."""
        return {item.name: getattr(self, item.name) for item in self.onnx_node.attribute}


def widened(x: Any) -> Any:
    """At least in float32: the evaluator's own type for narrow floats has few digits, and overflows early."""
    return np.asarray(x, np.result_type(x.dtype, np.float32))


def mended(op: str, *first: type) -> type:
    """The evaluator's own class of an op, of the newest opset it knows, with `first` ahead of it."""
    return type(op, (*first, ops.load_op("", op)), {"op_domain": ""})


def alike(base: type[Corrected], *names: str) -> list[type[Corrected]]:
    """One class for each of several ops that `base` computes; it tells them apart by the node's op."""
    return [type(name, (base,), {}) for name in names]
