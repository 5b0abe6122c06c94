"""An execution provider for ONNX Runtime, which runs what it can of a model on Tunewright's kernels.
Read first: `provider`.
May import: what `integrations` may.
"""
