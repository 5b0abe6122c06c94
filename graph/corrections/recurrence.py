"""LSTM, GRU and RNN."""

from __future__ import annotations

from typing import Any

from ..ir import Node
from ..recurrent import evaluate_recurrent
from .corrected import Corrected


class Recurrent(Corrected):
    """A recurrent network, complete."""

    def _run(self, *inputs: Any, **_: Any) -> tuple[Any, ...]:
        node = self.onnx_node
        plain = Node(node.op_type, tuple(node.input), tuple(node.output), self._attrs())
        return tuple(evaluate_recurrent(plain, inputs))
