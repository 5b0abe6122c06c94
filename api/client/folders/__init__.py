"""Folders in which other programs keep what they tuned, and the log: what one of them has and the other lacks.
Read first: `sync`; then the format of a program.
May import: what `client` may. Nothing of the programs themselves: they need not be installed.
"""

from .flashinfer import FLASHINFER
from .folder_format import FolderFormat
from .iree import IREE
from .moe import SGLANG_MOE, VLLM_MOE

__all__ = ["FORMATS"]

FORMATS: dict[str, FolderFormat] = {kind.name: kind for kind in (VLLM_MOE, SGLANG_MOE, FLASHINFER, IREE)}
"""By the name that the command line calls them."""
