"""The models that are measured, built from their papers with seeded weights: `MODELS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .audio import mel_spectrum, voice_activity
from .classic import boosted_trees, support_vectors
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
from .decoders import qwen_export_prefill, qwen_export_step
from .detection import ocr_detector, ocr_recogniser, yolo_nano_nms
from .language import minilm_int8, qwen_step_q4, t5_decoder_int8, t5_encoder_int8, whisper_decoder_merged
from .pictures import depth_small, super_resolution
from .sequential import bert_base_s128, gpt2_prefill_s64, lstm_tagger, mlp, vit_tiny

MODELS: Mapping[str, Callable[[], bytes]] = {
    build.__name__: build
    for build in (
        resnet18, resnet50, mobilenet_v2, squeezenet, vgg16_126x224, unet_small, efficientnet_b0, convnext_tiny,
        bert_base_s128, gpt2_prefill_s64, vit_tiny, lstm_tagger, mlp,
        yolo_nano_nms, ocr_detector, ocr_recogniser, super_resolution, depth_small,
        minilm_int8, t5_encoder_int8, t5_decoder_int8, whisper_decoder_merged, qwen_step_q4,
        qwen_export_prefill, qwen_export_step,
        voice_activity, mel_spectrum, boosted_trees, support_vectors,
    )
}  # fmt: skip
"""Functions by name that give the ONNX bytes of a model, the same every time."""
