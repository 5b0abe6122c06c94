"""Translations to ONNX that PyTorch's exporter lacks."""

from __future__ import annotations

from typing import Any

import torch
from onnxscript import opset18 as op

LSTM = 2
"""PyTorch's number of it, among its recurrent layers."""


def lstm_layer(
    x: Any,
    weight: Any,
    recurrent_weight: Any,
    bias: Any,
    recurrent_bias: Any,
    hidden: Any,
    cell: Any,
    is_reverse: bool,
    batch_sizes: Any,
    mode: int,
    features: int,
    layers: int,
    has_biases: bool,
    *rest: Any,
) -> tuple[Any, Any, Any]:
    """One direction of one layer of `torch.nn.LSTM` in inference, over all steps `[steps, batch, features]`."""
    if mode != LSTM or batch_sizes or not has_biases:
        raise NotImplementedError("a recurrent layer that is no LSTM, has packed sequences, or no biases")
    y, last_hidden, last_cell = op.LSTM(
        x,
        op.Unsqueeze(_gates(weight), [0]),
        op.Unsqueeze(_gates(recurrent_weight), [0]),
        op.Unsqueeze(op.Concat(_gates(bias), _gates(recurrent_bias), axis=0), [0]),
        None,
        hidden,
        cell,
        direction="reverse" if is_reverse else "forward",
        hidden_size=features,
    )
    return op.Squeeze(y, [1]), last_hidden, last_cell


def _gates(rows: Any) -> Any:
    """Rows by gate in ONNX's order: input, output, forget, cell. PyTorch has the output's last."""
    of_input, of_forget, of_cell, of_output = op.Split(rows, num_outputs=4, axis=0)
    return op.Concat(of_input, of_output, of_forget, of_cell, axis=0)


TRANSLATIONS = {torch.ops.aten.mkldnn_rnn_layer.default: lstm_layer}
"""By op."""
