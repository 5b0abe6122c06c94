"""The models that are measured, built from their papers with seeded weights: `MODELS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .convolutional import (
    convnext_tiny,
    efficientnet_b0,
    mobilenet_v2,
    resnet18,
    resnet50,
    squeezenet,
    unet_small,
    vgg16_126x224,
)
from .sequential import bert_base_s128, gpt2_prefill_s64, lstm_tagger, mlp, vit_tiny

MODELS: Mapping[str, Callable[[], bytes]] = {
    build.__name__: build
    for build in (
        resnet18, resnet50, mobilenet_v2, squeezenet, vgg16_126x224, unet_small, efficientnet_b0, convnext_tiny,
        bert_base_s128, gpt2_prefill_s64, vit_tiny, lstm_tagger, mlp,
    )
}  # fmt: skip
"""Functions by name that give the ONNX bytes of a model, the same every time."""
