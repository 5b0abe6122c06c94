"""A backend for `torch.compile`, which runs graphs of PyTorch on Tunewright's kernels.
Read first: `backend`.
May import: what `integrations` may.
"""

from __future__ import annotations

from .captured import graphs as graphs
from .recording import tuning as tuning
