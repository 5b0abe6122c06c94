"""A model: ONNX in, shapes known, rewritten and fused, Tasks out.
Read first: `ir.Graph`.
May import: `codegen.expr`, `codegen.index` and `codegen.dtype`, to define what an op computes. Home of onnx.
"""
