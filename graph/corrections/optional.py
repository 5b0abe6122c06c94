"""Optional: a value that may be absent. It is the value itself, or None."""

from __future__ import annotations

from typing import Any

from .corrected import Corrected


class Optional(Corrected):
    """What is given, as it is."""

    def _run(self, x: Any = None, **_: Any) -> tuple[Any]:
        return (x,)
