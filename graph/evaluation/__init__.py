"""Evaluation of nodes by ONNX's reference evaluator, with its faults corrected, and inference of their types.
Read first: `fallback`.
May import: `graph.ir`; onnx.
"""
