"""Dicts at the ends of a model, as ONNX Runtime takes and gives them: rows are what the model has in their place.

Light to import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from tunewright.graph.ir import Keys, MapInput

from ..errors import InputError
from ..text import printable

# Inputs


def as_row(label: str, value: Mapping[Any, Any], form: MapInput, dtype: str) -> Any:
    """The row `[1, n]` that a dict is. Raises InputError where it has other keys or values than the model takes."""
    is_text = form.key == "string"
    for key in value:
        if not (isinstance(key, str) if is_text else isinstance(key, Integral) and not isinstance(key, bool)):
            wanted = "strings" if is_text else "whole numbers"
            raise InputError(f"input {label!r} has the key {_quoted(key)}; its keys are {wanted}")
    keys = sorted(value) if form.keys is None else form.keys
    for key, item in value.items():
        _check_value(label, key, item, form.value)
    items = [_cast(label, key, value[key], form.value, dtype) if key in value else None for key in keys]
    if dtype == "string":
        return np.array([[form.absent if item is None else item for item in items]], object)
    return np.array([[0 if item is None else item for item in items]], dtype).reshape(1, len(items))


def _check_value(label: str, key: Any, value: Any, kind: str) -> None:
    """Raises InputError for a value that is none of the element type."""
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value.item()
    types, words = {"string": (str, "strings"), "int64": (Integral, "whole numbers")}.get(kind, (Real, "numbers"))
    is_right = isinstance(value, types | np.bool_) if types is not str else isinstance(value, str)
    if not is_right:
        raise InputError(f"input {label!r} has {_quoted(value)} for {_quoted(key)}; its values are {words}")
    if kind == "int64" and not -(2**63) <= int(value) < 2**63:
        raise InputError(f"input {label!r} has {value} for {_quoted(key)}, which 64 bits don't hold")


def _cast(label: str, key: Any, value: Any, kind: str, dtype: str) -> Any:
    """A value as an element of the row. Floats become whole numbers towards 0, and texts of six decimals."""
    if kind == dtype:
        return _narrow(value) if kind == "float32" else value
    if kind == "float32":
        number = _narrow(value)
        return f"{number:f}" if dtype == "string" else number.astype(np.int64)
    try:
        number = np.float64(value)
    except ValueError:
        raise InputError(f"input {label!r} has {_quoted(value)} for {_quoted(key)}, which is no number") from None
    return _narrow(number) if dtype == "float32" else number.astype(np.int64)


def _narrow(value: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.float32(value)


def _quoted(value: Any) -> str:
    text = printable(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def as_map(row: Any, form: MapInput) -> dict[int | str, Any]:
    """A dict that such a row is made of."""
    keys = range(row.shape[1]) if form.keys is None else form.keys
    number = float if form.value.startswith("float") else int
    values = map(number, row[0].tolist())
    return dict(zip(keys, values, strict=True))


def is_fed_map(form: MapInput, dtype: str) -> bool:
    """Whether ONNX Runtime takes such a dict from Python, and one that is made of the row means the same."""
    return form.value == "float32" and dtype != "string"


def fed_inputs(model: Path | bytes, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a model as ONNX Runtime takes them: dicts in the place of rows where it has maps."""
    from tunewright.graph.onnx_import import read_model  # imports onnx
    from tunewright.graph.onnx_import.maps import map_inputs

    maps = map_inputs(read_model(model)[0].graph)
    return {label: as_map(value, maps[label]) if label in maps else value for label, value in feeds.items()}


# Outputs


def as_maps(rows: Any, keys: Keys) -> list[dict[int | str, float]]:
    """A dict for each row `[rows, keys]`; for one row `[keys]` alone too."""
    return [dict(zip(keys, row, strict=True)) for row in rows.reshape(-1, len(keys)).tolist()]


def as_rows(value: Any) -> Any:
    """The values of such dicts in the order of their keys, float32 `[rows, keys]`; anything else as it is."""
    if isinstance(value, Sequence) and value and all(isinstance(row, dict) for row in value):
        return np.asarray([[row[key] for key in sorted(row)] for row in value], np.float32)
    return value
