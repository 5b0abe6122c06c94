"""Triton's autotuner on the log: `TRITON_CACHE_MANAGER=tunewright.integrations.triton:CacheManager`.

Read first: `cache_manager`, then `config_times`.
May import: what `integrations` may.

Triton imports this module by that setting, and nothing else is needed. What its autotuner measures is kept in the
namespace `triton` of the server that `TUNEWRIGHT_SERVER` names; all else stays in Triton's own folder, as without it.
"""

from __future__ import annotations

from .cache_manager import CacheManager
from .config_times import install

__all__ = ["CacheManager"]

install()
