"""Results of Kernel Tuner, and of other tuners that write the format T4, as entries of the log.
Read first: `t4`.
May import: what `integrations` may. Nothing of Kernel Tuner.
"""

from .t4 import entries_of

__all__ = ["entries_of"]
