"""A backend for `torch.compile`, which runs graphs of PyTorch on Tunewright's kernels.
Read first: `backend`.
May import: what `integrations` may.
"""
