"""A model: ONNX in, shapes known, rewritten and fused, Tasks out.
Read first: `ir.Graph`.
May import: `codegen.expr` and `codegen.fields`, to define what an op computes. Home of onnx.
"""
