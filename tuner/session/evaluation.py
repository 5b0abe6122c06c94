"""Nodes that have no kernel, computed between those that have. Light to import."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tunewright.graph.ir import Node, TensorType

from .image import Evaluation
from .ort_session import OrtSession, is_installed, ort_errors

_PLAIN_KINDS = frozenset("fiub?c")  # numpy's kinds of the element types that it takes as arrays

_DIFFERENT_OPS = frozenset({"DFT", "Dropout", "MaxUnpool", "STFT"})
"""Ops of which ONNX Runtime's results are not ONNX's: less exact, or other ones."""


def suits(nodes: Sequence[Node]) -> bool:
    """Whether ONNX Runtime may run these nodes as one model."""
    from tunewright.graph.evaluation.group import common_versions  # imports onnx

    return not any(map(_differs, nodes)) and common_versions(nodes) is not None


def _differs(node: Node) -> bool:
    if node.op == "Resize":  # where the scale and the size disagree, it goes by the scale
        return node.attrs.get("coordinate_transformation_mode") == "align_corners"
    return not node.domain and node.op in _DIFFERENT_OPS


class OrtGroup:
    """Some nodes as one session of ONNX Runtime."""

    def __init__(self, session: OrtSession, inputs: Sequence[str]) -> None:
        self._session, self.inputs = session, tuple(inputs)

    @classmethod
    def of(
        cls,
        nodes: Sequence[Node],
        types: Mapping[str, TensorType],
        inputs: Sequence[str],
        outputs: Sequence[str],
        threads: int,
    ) -> OrtGroup | None:
        """The nodes, which take `inputs` and make `outputs`; None where ONNX Runtime is not there, or refuses them."""
        if not is_installed() or not suits(nodes) or not all(_is_plain(types[name]) for name in (*inputs, *outputs)):
            return None
        from tunewright.graph.evaluation.group import model_of_group  # imports onnx

        for tell_sizes in (True, False):  # it refuses a branch that no such size fits, though it may never run
            model = model_of_group(nodes, types, inputs, outputs, tell_sizes=tell_sizes)
            if model is None:
                return None
            with suppress(*ort_errors()):
                return cls(OrtSession(model.SerializeToString(), threads), inputs)
        return None

    def run(self, operands: Sequence[Any]) -> list[Any] | None:
        """The outputs for values of the inputs; None where it fails on these."""
        return self._session.run(dict(zip(self.inputs, operands, strict=True)))


def _is_plain(kind: TensorType) -> bool:
    """Whether arrays of the type go in and out without a copy in another one."""
    return kind.dtype == "string" or (kind.dtype != "object" and np.dtype(kind.dtype).kind in _PLAIN_KINDS)


class NodeRunner:
    """Runs nodes that have no kernel: in ONNX Runtime where it has them all, else one by one in ONNX's evaluator."""

    def __init__(self, step: Evaluation, threads: int) -> None:
        self.step = step
        self._vendor = OrtGroup.of(step.nodes, step.types, list(step.inputs), list(step.outputs), threads)

    @property
    def vendor_ops(self) -> list[str]:
        """The ops of the nodes that ONNX Runtime runs, once a node."""
        return [node.op for node in self.step.nodes] if self._vendor is not None else []

    def run(self, value: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
        """Name and value of each result, on the values that operands have.

        Where memory is planned for a result, it is an array of the type that was inferred; another is in no memory but
        its own. Raises EvaluationError where a node can't be computed.
        """
        operands = {name: value(name) for name in self.step.inputs}
        results = self._vendor.run(list(operands.values())) if self._vendor is not None else None
        by_name = dict(zip(self.step.outputs, results, strict=True)) if results is not None else None
        if by_name is None or not all(self._fits(name, result) for name, result in by_name.items()):
            by_name = self._evaluate(operands)
        for name, tensor in self.step.outputs.items():
            result = by_name[name]
            yield name, result if tensor.location is not None else _own_copy(result, list(operands.values()))

    def _evaluate(self, operands: dict[str, Any]) -> dict[str, Any]:
        """The results, node by node."""
        from tunewright.graph.evaluation.fallback import EvaluationError, evaluate  # imports onnx

        values = dict(operands)
        for node in self.step.nodes:
            results = evaluate(node, [values[name] if name else None for name in node.inputs])
            for name, result in zip(node.outputs, results, strict=True):
                if name and not self._fits(name, result):
                    raise EvaluationError(
                        f"{node.place or node.op} made {result.dtype}{list(result.shape)} where "
                        f"{self.step.types[name]} was inferred"
                    )
                values[name] = result
        return values

    def _fits(self, name: str, result: Any) -> bool:
        """Whether a result is of the type that was inferred, where memory is planned for it."""
        tensor = self.step.outputs.get(name)
        if tensor is None or tensor.location is None:
            return True
        return bool(result.shape == tensor.kind.shape and result.dtype == tensor.kind.dtype)


def _own_copy(result: Any, operands: list[Any]) -> Any:
    """A result without what is only a view of memory, or an operand: that will hold other values before long."""
    if isinstance(result, list):
        return [_own_copy(item, operands) for item in result]
    if isinstance(result, np.ndarray) and (result.base is not None or any(result is item for item in operands)):
        return result.copy()
    return result
