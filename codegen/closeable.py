"""Closeable: what is closed at the end of a `with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closeable(ABC):
    """Something to be closed; a `with` does it."""

    @abstractmethod
    def close(self) -> None:
        """Close it. Closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
