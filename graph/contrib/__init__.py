"""Ops of ONNX Runtime's own domain (`com.microsoft`), each written in ONNX's ops; ONNX's Attention and classic models.

Read first: `call`. An op is a function under `contrib_op`, which says its signature: `onnx_import.inlining` has it
put ONNX's nodes in the place of each call. Those of ONNX itself are functions under `standard_op`, and a call that one
does not cover stays. Of classic machine learning (`ai.onnx.ml`) these are most ops: what strings they have goes in and
out by LabelEncoder, which stays.

What the contributed ones compute is what ONNX Runtime computes on a processor, but for its shortcuts in low precision:
products are exact.

Source: ONNX Runtime, docs/ContribOperators.md, and its results.
"""

from __future__ import annotations

from . import (
    activations,
    attention,
    blocks,
    byte_lstm,
    encoders,
    features,
    layers,
    linear_models,
    ngrams,
    optimisers,
    quantisation,
    rotary,
    sampling,
    standard_attention,
    support_vectors,
    trees,
)
from .call import CLASSIC, CLASSIC_OPSET, DOMAIN, OPS, OPSET, STANDARD, ContribCall, ContribOp, Unsupported

__all__ = [
    "CLASSIC", "CLASSIC_OPSET", "DOMAIN", "OPS", "OPSET", "STANDARD", "ContribCall", "ContribOp", "Unsupported",
]  # fmt: skip

# Importing them fills OPS and STANDARD.
_ = (activations, attention, blocks, byte_lstm, layers, quantisation, rotary, sampling, standard_attention)
__ = (encoders, features, linear_models, ngrams, optimisers, support_vectors, trees)
