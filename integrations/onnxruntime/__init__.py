"""An execution provider for ONNX Runtime, which runs what it can of a model on Tunewright's kernels.
Read first: `registration.session_options`.
May import: what `integrations` may.
"""

from __future__ import annotations

from .compilation import compile_model
from .registration import session_options, wait
from .tuning import models_of_groups, tune

__all__ = ["compile_model", "models_of_groups", "session_options", "tune", "wait"]
