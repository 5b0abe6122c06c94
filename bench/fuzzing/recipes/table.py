"""The families of recipes, and ops without one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnx

from ..draft import LEARNED, LEARNED_VERSIONS, OPSETS, schema_of
from .contributed import CONTRIBUTIONS
from .elementwise import ELEMENTWISE
from .flow import CALLS, FLOW
from .folds import FOLDS
from .idioms import IDIOMS
from .learned import LEARNERS
from .movement import MOVEMENT
from .products import PRODUCTS
from .recipe import Recipe, Recipes
from .signals import SIGNALS
from .windows import WINDOWS

FAMILIES: Mapping[str, tuple[Recipes, float]] = {
    "elementwise": (ELEMENTWISE, 0.22),
    "movement": (MOVEMENT, 0.17),
    "folds": (FOLDS, 0.12),
    "windows": (WINDOWS, 0.11),
    "products": (PRODUCTS, 0.11),
    "idioms": (IDIOMS, 0.12),
    "flow": (FLOW, 0.03),
    "calls": (CALLS, 0.03),
    "signals": (SIGNALS, 0.01),
    "learned": (LEARNERS, 0.04),
    "contributed": (CONTRIBUTIONS, 0.04),
}
"""Families with their probabilities."""

UNSUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), "random"
    ),
    **dict.fromkeys(("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"), "texts"),
    "ImageDecoder": "needs files of images",
    f"{LEARNED}.CategoryMapper": "texts",
    "com.microsoft.DynamicQuantizeLSTM": "a state that is rounded to the other of two bytes changes all that follows",
    "com.microsoft.QAttention": "a DynamicQuantizeMatMul and an Attention, which are drawn",
    "com.microsoft.QLinearReduceMean": "ONNX Runtime has no kernel for it",
    "com.microsoft.TransposeMatMul": "FusedMatMul by its old name",
    "com.microsoft.QLinearAveragePool": "a GlobalAveragePool of windows",
    **dict.fromkeys((f"{LEARNED}.CastMap", f"{LEARNED}.DictVectorizer", f"{LEARNED}.ZipMap"), "maps"),
}
"""Ops of ONNX without a recipe, and why."""


@cache
def recipes_by_family(opset: int, learned: int) -> list[tuple[list[tuple[str, Recipe]], float]]:
    """The recipes of an opset and a version of classic machine learning by family, with probabilities."""
    families = []
    for table, weight in FAMILIES.values():
        if table is LEARNERS:
            known = {name for name in table if schema_of(name, learned, LEARNED) is not None}
        elif table is IDIOMS or table is CALLS or table is CONTRIBUTIONS:
            known = set(table)
        else:
            known = {name for name in table if schema_of(name, opset) is not None}
        families.append(([(name, recipe) for name, recipe in table.items() if name in known], weight))
    return families


def opset_ops() -> set[str]:
    """The ops of the opsets that are drawn, and of the versions of classic machine learning."""
    schemas = onnx.defs.get_all_schemas_with_history()
    names = {schema.name for schema in schemas if not schema.domain}
    learned = {schema.name for schema in schemas if schema.domain == LEARNED}
    return {name for name in names if any(schema_of(name, opset) is not None for opset in OPSETS)} | {
        f"{LEARNED}.{name}"
        for name in learned
        if any(schema_of(name, version, LEARNED) is not None for version in LEARNED_VERSIONS)
    }
