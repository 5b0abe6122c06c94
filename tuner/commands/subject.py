"""What commands make of a model that is prepared: a session of it, arrays to run it on, and what to say of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Refused
from ..lookup.place import Prepared
from ..models.inputs import example_feeds
from ..models.model import Model
from ..running.coverage import Coverage
from ..running.session import InferenceSession, object_cache

MADE_UP = "made up"
"""Where arrays come from that nobody gives."""


def session_of(prepared: Prepared) -> InferenceSession:
    """A session on the schedules found. Raises Refused where a task has none that may work."""
    return InferenceSession.of_found(prepared.model, prepared.target, prepared.found, object_cache())


def shares(coverage: Coverage) -> dict[str, int]:
    """How many tasks run on what."""
    return {"tuned": coverage.tuned, "transferred": coverage.transferred, "default": coverage.untuned}


def feeds(model: Model, given: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays to run a model on, and where each came from; `given` are "NAME=FILE.npy", the others are made up.

    Raises Refused for what names no input or no array, OSError for a file that can't be read.
    """
    arrays = example_feeds(model)
    sources = dict.fromkeys(arrays, MADE_UP)
    for text in given:
        label = _label(text, arrays)
        if label is None:
            names = ", ".join(map(repr, arrays)) or "none"
            raise Refused(f"--input {text!r} is not NAME=FILE.npy of an input of the model; there are {names}")
        path = text[len(label) + 1 :]
        if sources[label] != MADE_UP:
            raise Refused(f"--input {label}= is given twice, with {sources[label]!r} and {path!r}; give it once")
        arrays[label], sources[label] = load_array(Path(path)), path
    return arrays, sources


def weights_given(model: Model, given: Sequence[str]) -> set[str]:
    """The weights among what is given, as to `feeds`, that are inputs of the model besides."""
    inputs = [value.label for value in model.graph.inputs]
    weights = [default.label for default in model.graph.defaults]
    return {label for text in given if (label := _label(text, [*inputs, *weights])) in weights}


def _label(text: str, labels: Iterable[str]) -> str | None:
    """What "NAME=FILE.npy" names: both parts may have an = in them."""
    return max((label for label in labels if text.startswith(f"{label}=")), key=len, default=None)


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
    """What is wrong with a .npy file, without numpy's advice to unpickle it, which would run what is in there."""
    said = " ".join(str(error).split())
    if "pickle" in said:
        return "it is no .npy file, or one of Python objects; save numbers with numpy.save"
    return said or "it is cut short"
