"""The families of recipes, and ops without one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnx

from ..draft import OPSETS, schema_of
from .elementwise import ELEMENTWISE
from .flow import CALLS, FLOW
from .folds import FOLDS
from .idioms import IDIOMS
from .movement import MOVEMENT
from .products import PRODUCTS
from .recipe import Recipe, Recipes
from .signals import SIGNALS
from .windows import WINDOWS

FAMILIES: Mapping[str, tuple[Recipes, float]] = {
    "elementwise": (ELEMENTWISE, 0.24),
    "movement": (MOVEMENT, 0.19),
    "folds": (FOLDS, 0.13),
    "windows": (WINDOWS, 0.12),
    "products": (PRODUCTS, 0.12),
    "idioms": (IDIOMS, 0.14),
    "flow": (FLOW, 0.03),
    "calls": (CALLS, 0.03),
    "signals": (SIGNALS, 0.01),
}
"""Families with their probabilities."""

UNSUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), "random"
    ),
    **dict.fromkeys(("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"), "texts"),
    "ImageDecoder": "needs files of images",
}
"""Ops of ONNX without a recipe, and why."""


@cache
def recipes_by_family(opset: int) -> list[tuple[list[tuple[str, Recipe]], float]]:
    """The recipes of an opset by family, with probabilities."""
    families = []
    for table, weight in FAMILIES.values():
        is_unversioned = table is IDIOMS or table is CALLS
        recipes = [
            (name, recipe) for name, recipe in table.items() if is_unversioned or schema_of(name, opset) is not None
        ]
        families.append((recipes, weight))
    return families


def opset_ops() -> set[str]:
    """The ops of the opsets that are drawn."""
    schemas = onnx.defs.get_all_schemas_with_history()
    names = {schema.name for schema in schemas if not schema.domain}
    return {name for name in names if any(schema_of(name, opset) is not None for opset in OPSETS)}
