"""Ops of ONNX Runtime's own domain (`com.microsoft`), each written in ONNX's ops; and ONNX's Attention.

Read first: `call`. An op is a function under `contrib_op`, which says its signature: `onnx_import.walk` has it put
ONNX's nodes in the place of each call. Those of ONNX itself are functions under `standard_op`, and a call that one does
not cover stays.

What the contributed ones compute is what ONNX Runtime computes on a processor, but for its
shortcuts in low precision: products are exact, and what it quantises on the way is not quantised.

Source: ONNX Runtime, docs/ContribOperators.md, and its results.
"""

from __future__ import annotations

from . import activations, attention, blocks, layers, quantisation, rotary, standard_attention
from .call import DOMAIN, OPS, OPSET, STANDARD, ContribCall, ContribOp, Unsupported

__all__ = ["DOMAIN", "OPS", "OPSET", "STANDARD", "ContribCall", "ContribOp", "Unsupported"]

_ = activations, attention, blocks, layers, quantisation, rotary, standard_attention  # importing them fills OPS
