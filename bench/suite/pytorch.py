"""Models of timm and transformers with drawn weights, as modules of PyTorch. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch

PICTURE = 224
"""Pixels along a side."""

TOKENS, WORDS = 128, 30_000

Case = tuple[Any, Mapping[str, Any]]
"""A module, and its inputs by name."""


@cache
def _timm() -> Any:
    """timm, which imports torchvision; where that is there without its compiled ops, those are declared for it."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return import_module("timm"), library


def _picture(name: str, size: int = PICTURE) -> Case:
    module, _ = _timm()
    return module.create_model(name).eval(), {"x": torch.randn(1, 3, size, size)}


def _text(model: str, config: str, **settings: Any) -> Case:
    _timm()  # transformers imports torchvision, too
    transformers = import_module("transformers")
    module = getattr(transformers, model)(getattr(transformers, config)(**settings)).eval()
    return module, {"input_ids": torch.randint(0, WORDS, (1, TOKENS)), "return_dict": False}


def _generator(model: str, config: str, **settings: Any) -> Case:
    module, inputs = _text(model, config, **settings)
    return module, {**inputs, "use_cache": False}


PICTURES = {
    "resnet50": "resnet50", "mobilenet_v3": "mobilenetv3_large_100", "efficientnet_b0": "efficientnet_b0",
    "regnet_y_400mf": "regnety_004", "densenet121": "densenet121", "repvgg_a0": "repvgg_a0",
    "convnext_tiny": "convnext_tiny", "ghostnet": "ghostnet_100", "vit_small": "vit_small_patch16_224",
    "deit_tiny": "deit_tiny_patch16_224", "swin_tiny": "swin_tiny_patch4_window7_224", "mixer_s32": "mixer_s32_224",
    "poolformer_s12": "poolformer_s12", "edgenext_xx_small": "edgenext_xx_small",
}  # fmt: skip
"""Names here -> in timm."""

SMALL_TEXT = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}

MODELS: dict[str, Callable[[], Case]] = {
    **{name: partial(_picture, model) for name, model in PICTURES.items()},
    "bert_small": partial(_text, "BertModel", "BertConfig", **SMALL_TEXT),
    "distilbert": partial(_text, "DistilBertModel", "DistilBertConfig"),
    "roberta_small": partial(_text, "RobertaModel", "RobertaConfig", vocab_size=WORDS, **SMALL_TEXT),
    "electra_small": partial(_text, "ElectraModel", "ElectraConfig", embedding_size=128, **SMALL_TEXT),
    "gpt2_small": partial(_generator, "GPT2LMHeadModel", "GPT2Config", n_embd=384, n_layer=6, n_head=6),
    "llama_small": partial(
        _generator, "LlamaForCausalLM", "LlamaConfig", vocab_size=WORDS, num_key_value_heads=4, **SMALL_TEXT
    ),
}
"""Functions by name that make a module and its inputs."""
