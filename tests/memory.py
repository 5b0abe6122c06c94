"""Where files of tests lie: in memory where there is enough, for to make a database is to wait for its files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FREE_BYTES = 2 << 30
"""What is left to others."""


def quick_folder() -> str | None:
    """A folder in memory in which programs may lie too; None where there is none."""
    memory = "/dev/shm"
    if not Path(memory).is_dir() or not os.access(memory, os.W_OK) or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return None
    return memory if shutil.disk_usage(memory).free > FREE_BYTES else None
