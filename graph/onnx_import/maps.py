"""Maps at the ends of a model: dicts that enter it, and scores that leave it as a dict for each row.

Neither is in a graph. What DictVectorizer and CastMap make of an input, a row of its values, is the input; a graph ends
with the scores that ZipMap makes dicts of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from tunewright.graph.draft import Draft
from tunewright.graph.ir import GraphPort, Keys, MapInput, Node

from ..contrib import CLASSIC
from ..evaluation.onnx_form import DTYPES
from .protobuf import ModelError, StructuralFault, place_of, quote, read_names

MAP_READERS = frozenset({(CLASSIC, "CastMap"), (CLASSIC, "DictVectorizer")})
"""Ops that read maps, which nothing but an input is."""

MAP_MAKERS = frozenset({(CLASSIC, "ZipMap")})
"""Ops that make maps, which nothing but an output takes."""

MAP_OPS = MAP_READERS | MAP_MAKERS

MAX_KEYS = 1 << 20
"""Most keys that an input may have a place for: a few bytes of a file may ask for any number."""

_CASTS = {
    "TO_FLOAT": TensorProto.FLOAT, "TO_INT64": TensorProto.INT64, "TO_STRING": TensorProto.STRING,
}  # fmt: skip
_VALUES = {"DictVectorizer": ("float32", "float64", "int64", "string"), "CastMap": ("float32", "string")}


# Inputs


def map_inputs(graph: GraphProto) -> dict[str, MapInput]:
    """The inputs of a model that are maps, by name. Raises ModelError where one is no map of what its reader takes."""
    readers: dict[str, list[NodeProto]] = {value.name: [] for value in graph.input if value.type.HasField("map_type")}
    if not readers:
        return {}
    for value in graph.output:
        if value.name in readers:
            raise ModelError(f"input {quote(value.name)} is a map, which can't be an output as it is")
    for node in graph.node:
        for name in sorted(readers.keys() & read_names(node)):
            if (node.domain, node.op_type) not in MAP_READERS:
                raise ModelError(
                    f"{place_of(node)} reads the map {quote(name)}; only a CastMap or a DictVectorizer of the model "
                    "itself can"
                )
            readers[name].append(node)
    types = {value.name: value.type for value in graph.input}
    return {name: _map_input(name, types[name], nodes) for name, nodes in readers.items()}


def _map_input(name: str, kind: TypeProto, readers: Sequence[NodeProto]) -> MapInput:
    key, value = (DTYPES.get(number, "") for number in (kind.map_type.key_type, _element_type(kind)))
    forms = [_form(node, key, value) for node in readers]
    if not forms:
        return MapInput(key, value, ())
    casts = [_cast(node) for node in readers]
    if any(casts) and (len(set(casts)) > 1 or len(set(forms)) > 1):
        raise ModelError(f"input {quote(name)} is a map that a CastMap reads, and another node in another way")
    keys = None if forms[0].keys is None else tuple(dict.fromkeys(key for form in forms for key in form.keys or ()))
    return MapInput(key, value, keys, forms[0].absent)  # type: ignore[arg-type]


def _element_type(kind: TypeProto) -> int:
    return int(kind.map_type.value_type.tensor_type.elem_type)


def _form(node: NodeProto, key: str, value: str) -> MapInput:
    """What one reader makes of a map."""
    attrs = _attributes(node)
    place = place_of(node)
    if key not in ("int64", "string") or value not in _VALUES[node.op_type]:
        raise ModelError(f"{place} reads a map of {key or 'unknown'} keys and {value or 'unknown'} values")
    if node.op_type == "CastMap":
        if key != "int64":
            raise ModelError(f"{place} reads a map of {key} keys; it takes int64")
        if attrs.get("map_form", "DENSE") == "DENSE":
            return MapInput(key, value, None)
        return MapInput(key, value, tuple(range(_key_count(place, attrs.get("max_map", 1)))), absent="0.f")
    keys = attrs.get(f"{key}_vocabulary", ())
    if not keys:
        raise ModelError(f"{place} has no {key}_vocabulary for a map of {key} keys")
    _key_count(place, len(keys))
    return MapInput(key, value, tuple(keys))


def _key_count(place: str, count: int) -> int:
    if not 0 < count <= MAX_KEYS:
        raise ModelError(f"{place} has places for {count:,} keys; from 1 to {MAX_KEYS:,} are possible")
    return count


def _attributes(node: NodeProto) -> dict[str, Any]:
    """Attributes of a reader: texts, numbers and lists of them."""
    attrs = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        match attribute.type:
            case AttributeProto.STRING:
                value = value.decode(errors="replace")
            case AttributeProto.STRINGS:
                value = [text.decode(errors="replace") for text in value]
        attrs[attribute.name] = value
    return attrs


def _cast(node: NodeProto) -> int | None:
    """The element type that a reader makes of the values; None: as they are."""
    if node.op_type != "CastMap":
        return None
    name = _attributes(node).get("cast_to", "TO_FLOAT")
    if name not in _CASTS:
        raise ModelError(f"{place_of(node)} casts {quote(name)}; it can {', '.join(_CASTS)}")
    return _CASTS[name]


def row_inputs(graph: GraphProto, maps: Mapping[str, MapInput]) -> list[ValueInfoProto]:
    """The inputs of a model, with rows of values in the place of maps. A row of all values has an open extent."""
    if not maps:
        return list(graph.input)
    casts = {node.input[0]: _cast(node) for node in graph.node if (node.domain, node.op_type) in MAP_READERS}
    inputs = []
    for value in graph.input:
        form = maps.get(value.name)
        if form is not None:
            number = casts.get(value.name) or _element_type(value.type)
            count = None if form.keys is None else len(form.keys)
            value = helper.make_tensor_value_info(value.name, number, (1, count))
        inputs.append(value)
    return inputs


def read_map(draft: Draft, node: Node, maps: Mapping[str, MapInput]) -> str:
    """What a reader makes of an input: its row, or those of the elements that it has keys for.

    `maps` are the inputs by their rows. Raises TypeFault where it reads something else.
    """
    row = node.input(0)
    if row not in maps:
        raise StructuralFault("its operand is no map that enters the model")
    form = maps[row]
    keys = node.attrs.get(f"{form.key}_vocabulary")
    if node.op == "CastMap" or tuple(keys or ()) == form.keys:
        return row
    places = {key: place for place, key in enumerate(form.keys or ())}
    wanted = np.asarray([places[key] for key in keys or ()], np.int64)
    return draft.emit("Gather", row, draft.constant(wanted), axis=1)


# Outputs


def output_port(draft: Draft, label: str, tensor: str) -> GraphPort:
    """The output of a model that a tensor is, or the rows that it makes dicts of. Raises ModelError for any other."""
    node = draft.producers.get(tensor)
    if node is not None and (node.domain, node.op) in MAP_MAKERS:
        (scores,) = node.inputs
        keys: Keys = node.attrs.get("classlabels_strings") or node.attrs.get("classlabels_int64s") or ()
        shape = draft.shape(scores)
        if shape is None or len(shape) not in (1, 2) or draft.types[scores].dtype != "float32":
            raise ModelError(f"output {quote(label)} has dicts of {draft.types[scores]}; rows of floats are needed")
        if len(keys) != shape[-1]:
            raise ModelError(f"output {quote(label)} has dicts of {len(keys)} keys for {shape[-1]} values")
        return GraphPort(label, scores, keys=keys)
    if draft.types[tensor].dtype == "object":
        raise ModelError(f"output {quote(label)} is no tensor; only tensors, and dicts of ZipMap, can leave a model")
    return GraphPort(label, tensor)
