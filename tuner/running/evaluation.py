"""Nodes that have no kernel, computed between those that have. Light to import."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .image import Evaluation


def evaluated(step: Evaluation, value: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
    """Name and value of each result of a node, on the values that its operands have.

    Where memory is planned for a result, it is an array of the type that was inferred; another is in no memory but its
    own. Raises EvaluationError where the node can't be computed.
    """
    from tunewright.graph.fallback import EvaluationError, evaluate  # imports onnx

    node = step.node
    operands = [value(name) if name else None for name in node.inputs]
    for name, result in zip(node.outputs, evaluate(node, operands), strict=True):
        if not name:
            continue
        kind = step.values[name].kind
        is_planned = step.values[name].spot is not None
        if is_planned and (result.shape != kind.shape or result.dtype != kind.dtype):
            raise EvaluationError(
                f"{node.place or node.op} made {result.dtype}{list(result.shape)} where {kind} was inferred"
            )
        yield name, result if is_planned else _owned(result, operands)


def _owned(result: Any, operands: list[Any]) -> Any:
    """A result without what is only a view of memory, or an operand: that will hold other values before long."""
    if isinstance(result, list):
        return [_owned(item, operands) for item in result]
    if isinstance(result, np.ndarray) and (result.base is not None or any(result is item for item in operands)):
        return result.copy()
    return result
