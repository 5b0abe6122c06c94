"""Ports: the inputs and outputs of a session, and what a run is given checked by them. Light to import."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tunewright.graph.ir import MapInput

from ..errors import InputError
from ..text import printable
from .maps import as_row
from .node_arg import NodeArg, Port, check_array, numpy_type


def _row(port: Port, form: MapInput, value: Any) -> Any:
    """A dict as the row that the model has for it; rows are taken as they are. Raises InputError for anything else."""
    if isinstance(value, Mapping):
        return as_row(port.label, value, form, port.kind.dtype)
    if not isinstance(value, np.ndarray):
        keys, values = ("strings" if kind == "string" else kind for kind in (form.key, form.value))
        raise InputError(f"input {port.label!r} is a dict of {keys} to {values}, not a {type(value).__name__}")
    return value


class Ports:
    """Inputs, outputs, and the weights that a run may give as well."""

    def __init__(self, inputs: Iterable[Port], outputs: Iterable[Port], weights: Collection[str] = ()) -> None:
        self.inputs, self.outputs, self.weights = tuple(inputs), tuple(outputs), tuple(weights)
        self._types = [(port, numpy_type(port.kind), port.kind.shape) for port in self.inputs]

    def arrays(self, input_feed: Mapping[str, Any]) -> list[Any]:
        """The inputs, as the model wants them. Raises InputError where that can't be."""
        arrays = []
        for port, dtype, shape in self._types:
            try:
                array = input_feed[port.label]
            except (KeyError, TypeError, IndexError) as error:  # the last two where it is no mapping
                if fault := self.fault(input_feed):
                    raise InputError(fault) from None
                text = printable(f"{type(error).__name__}: {error}")  # a mapping that fails for what it says it has
                raise InputError(f"input {port.label!r} could not be got: {text}") from error
            if port.map is not None:
                array = _row(port, port.map, array)
            if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                array = check_array(port.label, array, port.kind)
            arrays.append(array)
        return arrays

    def numbers(self, input_feed: Mapping[str, Any], output_names: Sequence[str] | None) -> list[int]:
        """The outputs of these names. Raises InputError where names, of inputs given too, are not the model's."""
        if fault := self.fault(input_feed):
            raise InputError(fault)
        if isinstance(output_names, str):
            raise InputError(f"outputs are named in a list, [{output_names!r}], or None for all")
        labels = [port.label for port in self.outputs]
        if output_names is None:
            return list(range(len(labels)))
        numbers = {label: number for number, label in enumerate(labels)}
        unknown = ", ".join(repr(name) for name in output_names if not isinstance(name, str) or name not in numbers)
        if unknown:
            raise InputError(f"the model has no output {unknown}; its outputs are {', '.join(map(repr, labels))}")
        return [numbers[name] for name in output_names]

    def fault(self, input_feed: Any) -> str:
        """The fault in the names of an input feed: one line for people; empty where there is none."""
        if isinstance(input_feed, Mapping):
            labels, names = [port.label for port in self.inputs], list(input_feed)
            unknown = ", ".join(repr(name) for name in names if name not in (*labels, *self.weights))
            missing = ", ".join(repr(label) for label in labels if label not in names)
            faults = [f"the model has no input {unknown}"] * bool(unknown)
            fault = ", and ".join(faults + [f"input {missing} is missing"] * bool(missing))
        else:
            fault = f"inputs are given by name, in a dict, not a {type(input_feed).__name__}"
        if not fault:
            return ""
        takes = ", ".join(
            f"{port.label!r} ({NodeArg.of_input(port).type if port.map else port.kind})" for port in self.inputs
        )
        takes = takes or "none"
        weights = f", and in place of its own weights {', '.join(map(repr, self.weights))}" if self.weights else ""
        return f"{fault}; the model takes {takes}{weights}"
