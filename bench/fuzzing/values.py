"""Numbers that inputs and constants are filled with: ordinary ones, and those that are apt to uncover faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tunewright.graph.ir import Array

FLOATS = ("float32", "float64", "float16", "bfloat16")
NARROW = ("float16", "bfloat16")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED


@dataclass(frozen=True, slots=True)
class Domain:
    """Which values a tensor may have for the model to be valid: whole numbers `low .. high`, both included.

    Without bounds any of its type.
    """

    low: int | None = None
    high: int | None = None


ANY = Domain()


def dtype_of(name: str) -> np.dtype[Any]:
    """numpy's type of a name, the narrow ones of ml_dtypes too."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def epsilon(name: str) -> float:
    """How far apart floats of a type are at 1."""
    return float(_info(name).eps)


def _info(name: str) -> Any:
    return ml_dtypes.finfo(dtype_of(name))  # type: ignore[no-untyped-call]


def limits(name: str) -> tuple[float, float, float]:
    """The largest float of a type, the smallest normal one, and the smallest of all."""
    info = _info(name)
    return float(info.max), float(info.smallest_normal), float(info.smallest_subnormal)


def ordinary(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], domain: Domain = ANY) -> Array:
    """Values of everyday size: noise, or on purpose whole numbers, halves, or repeated ones."""
    if domain.low is not None and domain.high is not None:
        return np.asarray(rng.integers(domain.low, domain.high + 1, shape)).astype(dtype_of(dtype))
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype in INTEGERS:
        low = -9 if dtype in SIGNED else 0
        return np.asarray(rng.integers(low, 10, shape)).astype(dtype)
    made: Array
    match int(rng.integers(6)):
        case 0:
            made = rng.integers(-50, 51, shape).astype(np.float64)
        case 1:
            made = rng.integers(-12, 13, shape) / 2.0
        case 2:
            made = np.abs(rng.standard_normal(shape)) + 0.1
        case _:
            made = rng.standard_normal(shape)
    return np.asarray(made).astype(dtype_of(dtype))


def special(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], domain: Domain = ANY) -> Array:
    """Ordinary values with some, or all, replaced by those at the edges of their type."""
    array = np.array(ordinary(rng, dtype, shape, domain))
    if domain.low is not None or dtype == "bool":
        return array
    pool = _edges(dtype)
    share = rng.choice([0.1, 0.5, 1.0])
    places = rng.random(shape) < share
    chosen = pool[rng.integers(len(pool), size=shape)]
    return np.asarray(np.where(places, chosen, array)).astype(array.dtype)


def _edges(dtype: str) -> Array:
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        near = (0, 1, 2, 3, 7, info.max, info.max - 1, info.min, info.min + 1, info.max // 2)
        return np.array([value for value in near if info.min <= value <= info.max], dtype)
    largest, normal, least = limits(dtype)
    positive = [
        0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 41.0, largest, largest / 2, largest / 3, normal, normal / 2, least,
        float("inf"), 1e-3, 20.0, 88.0, 100.0, 8388609.0, 16777216.0, 2147483648.0,
    ]  # fmt: skip
    values = [*positive, *(-value for value in positive), float("nan")]
    with np.errstate(all="ignore"):
        return np.array(values).astype(dtype_of(dtype))
