"""What sessions keep on this machine. Light to import."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..settings import settings
from .image_store import ImageStore

if TYPE_CHECKING:
    from tunewright.codegen.llvm.build import ObjectCache


_schedule_log = logging.getLogger("tunewright.schedule")


def image_store() -> ImageStore | None:
    """The compiled models kept on this machine; None where their folder can't be used.

    None too where schedules are logged: who looks on sees it all made.
    """
    if _schedule_log.isEnabledFor(logging.DEBUG):
        return None
    try:
        return ImageStore(settings().images)
    except OSError:
        return None


def object_cache() -> ObjectCache | None:
    """The kernels kept on this machine; None where their folder can't be used, as each kernel can be built anew."""
    from tunewright.codegen.llvm.build import ObjectCache

    try:
        return ObjectCache(settings().objects)
    except OSError:
        return None
