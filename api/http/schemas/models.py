"""Schemas of models that were sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from .base import EXAMPLE_MODEL, EXAMPLE_MOMENT, Answer, Digest


class ModelSent(Answer):
    """A model that the service has."""

    sha256: Digest = Field(examples=[EXAMPLE_MODEL])
    size_bytes: int = Field(examples=[48_213])
    label: str = Field(description="The name it was sent under, for people.", examples=["resnet50.onnx"])
    with_weights: bool = Field(description="False: the structure alone, without the numbers that were learned.")
    description: dict[str, Any] = Field(
        description="What reading it found: inputs, outputs, open dimensions, how often each op occurs."
    )
    created_at: datetime = Field(examples=[EXAMPLE_MOMENT])
