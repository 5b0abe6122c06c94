"""Uploads: the models that were sent to the service, in pieces, so that every process has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Upload:
    """A model as it was sent: most of them are structures without weights."""

    sha256: str
    size_bytes: int
    label: str  # for people; hostile text is possible
    with_weights: bool
    description: dict[str, Any]  # what reading it found: inputs, outputs, open dimensions, ops
    created_at: datetime  # UTC
    owner: str = ""  # id of the API key


class Uploads(Protocol):
    """Models by digest. Every method may raise StoreError."""

    def add(
        self,
        sha256: str,
        data: Iterable[bytes],
        *,
        label: str,
        with_weights: bool,
        description: Mapping[str, Any],
        owner: str = "",
    ) -> bool:
        """Keep a model, all of it or nothing. Whether it was new; one that is known stays as it is."""
        ...

    def get(self, sha256: str) -> Upload:
        """Raises NotFound."""
        ...

    def list(self, before: str | None = None, limit: int = 100) -> list[Upload]:
        """The newest first; from behind the one of the digest `before` on."""
        ...

    def read(self, sha256: str) -> Iterator[bytes]:
        """The bytes of a model, a piece at a time. Raises NotFound."""
        ...
