"""Values of inputs and constants: ordinary ones, and special ones that are apt to uncover faults."""

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
class ValueDomain:
    """The values that keep a model valid: integers in `low .. high`, both included, or without bounds any."""

    low: int | None = None
    high: int | None = None


ANY = ValueDomain()


def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy type of a name, with the narrow ones of ml_dtypes."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def is_float_array(value: Any) -> bool:
    """Whether a value is an array of one of the float types."""
    return isinstance(value, np.ndarray) and value.dtype.name in FLOATS


def as_float64(array: Array) -> Any:
    """The array in float64."""
    return np.asarray(array).astype(np.float64)


def is_finite(value: Any) -> bool:
    """Whether a value has no NaN and no infinities."""
    return not is_float_array(value) or bool(np.isfinite(as_float64(value)).all())


def has_nan(value: Any) -> bool:
    """Whether a value has NaN."""
    return is_float_array(value) and bool(np.isnan(as_float64(value)).any())


def epsilon(name: str) -> float:
    """The distance of a type's floats at 1."""
    return float(_info(name).eps)


def _info(name: str) -> Any:
    return ml_dtypes.finfo(dtype_of(name))  # type: ignore[no-untyped-call]


def limits(name: str) -> tuple[float, float, float]:
    """The largest float of a type, the smallest normal one, and the smallest of all."""
    info = _info(name)
    return float(info.max), float(info.smallest_normal), float(info.smallest_subnormal)


def ordinary_values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], domain: ValueDomain = ANY) -> Array:
    """Values of usual size: noise, positive numbers, integers or halves."""
    if domain.low is not None and domain.high is not None:
        return np.asarray(rng.integers(domain.low, domain.high + 1, shape)).astype(dtype_of(dtype))
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype in INTEGERS:
        low = -9 if dtype in SIGNED else 0
        return np.asarray(rng.integers(low, 10, shape)).astype(dtype)
    values: Array
    match int(rng.integers(6)):
        case 0:
            values = rng.integers(-50, 51, shape).astype(np.float64)
        case 1:
            values = rng.integers(-12, 13, shape) / 2.0
        case 2:
            values = np.abs(rng.standard_normal(shape)) + 0.1
        case _:
            values = rng.standard_normal(shape)
    return np.asarray(values).astype(dtype_of(dtype))


def special_values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], domain: ValueDomain = ANY) -> Array:
    """Ordinary values with some, or all, replaced by edges of their type."""
    array = np.array(ordinary_values(rng, dtype, shape, domain))
    if domain.low is not None or dtype == "bool":
        return array
    pool = _edges(dtype)
    share = rng.choice([0.1, 0.5, 1.0])
    places = rng.random(shape) < share
    edges = pool[rng.integers(len(pool), size=shape)]
    return np.asarray(np.where(places, edges, array)).astype(array.dtype)


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
