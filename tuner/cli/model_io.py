"""Inputs and outputs of commands that run a model: its session, input arrays, and task counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Refused
from ..lookup.source import PreparedModel
from ..models.model import Model, example_feeds
from ..session.caches import object_cache
from ..session.image_store import Coverage, ImageStore
from ..session.session import InferenceSession

MADE_UP = "made up"
"""Source of the arrays that no option gives."""


def session_of(prepared: PreparedModel, model: Path, images: ImageStore | None = None) -> InferenceSession:
    """A session on the schedules found, or in the vendor's runtime that the model's job took.

    Raises Refused where a task has none that may work.

    `images` as in `InferenceSession.of_results`.
    """
    return InferenceSession.of_prepared(prepared, model, object_cache(), images)


def shares(coverage: Coverage) -> dict[str, int]:
    """Counts of tasks by the source of their schedules; `kept`: on the default, as nothing faster was found."""
    return {
        "tuned": coverage.tuned,
        "transferred": coverage.transferred,
        "default": coverage.untuned + coverage.kept,
        "kept": coverage.kept,
    }


def feeds(model: Model, options: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The input arrays of a model and the source of each; `options` are "NAME=FILE.npy", the others are made up.

    Raises Refused for what names no input or no array, OSError for a file that can't be read.
    """
    arrays = example_feeds(model)
    sources = dict.fromkeys(arrays, MADE_UP)
    for option in options:
        label = _label(option, arrays)
        if label is None:
            names = ", ".join(map(repr, arrays)) or "none"
            raise Refused(f"--input {option!r} is not NAME=FILE.npy of an input of the model; there are {names}")
        path = option[len(label) + 1 :]
        if sources[label] != MADE_UP:
            raise Refused(f"--input {label}= is given twice, with {sources[label]!r} and {path!r}; give it once")
        arrays[label], sources[label] = load_array(Path(path)), path
    return arrays, sources


def all_inputs(model: Model, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The input arrays with those of bound inputs, in the order of the model's inputs."""
    items = list(arrays.items())
    for bound in model.graph.bound:
        items.insert(bound.place, (bound.label, bound.value))
    return dict(items)


def weight_labels(model: Model, options: Sequence[str]) -> set[str]:
    """The weights, among the options that `feeds` takes, that are also inputs of the model."""
    inputs = [value.label for value in model.graph.inputs]
    weights = [default.label for default in model.graph.defaults]
    return {label for option in options if (label := _label(option, [*inputs, *weights])) in weights}


def _label(option: str, labels: Iterable[str]) -> str | None:
    """The name in "NAME=FILE.npy": both parts may contain an =."""
    return max((label for label in labels if option.startswith(f"{label}=")), key=len, default=None)


def load_array(path: Path) -> Any:
    """The array in a .npy file. Nothing in the file is run, and no more is read than the file has."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise Refused(f"{str(path)!r} holds no array that can be read: {_fault(error)}") from error
    if not isinstance(array, np.ndarray):
        with suppress(AttributeError):
            array.close()
        raise Refused(f"{str(path)!r} is an archive of arrays, not one .npy array")
    return array.astype(object) if array.dtype.kind == "U" else np.array(array)


def _fault(error: Exception) -> str:
    """The fault of a .npy file, without numpy's advice to unpickle it, which would run code from the file."""
    text = " ".join(str(error).split())
    if "pickle" in text:
        return "it is no .npy file, or one of Python objects; save numbers with numpy.save"
    return text or "it is cut short"
