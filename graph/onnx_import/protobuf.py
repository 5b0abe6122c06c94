"""Models as protobufs: errors and names in messages, bodies of nodes, the order of nodes, opset versions."""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto

from .. import contrib
from ..evaluation.onnx_form import TypeFault

MAX_QUOTED = 80
"""Most characters of a name out of a model in a message."""


class ModelError(ValueError):
    """A model that can't be used: one clear line with the value, the limit, the place and what to do."""


class OpenDimensionsError(ModelError):
    """A model with open dimensions that nothing binds."""


class MisfitError(ModelError):
    """A node whose operands don't fit: no fault of a model in a body that never runs."""


class StructuralFault(TypeFault):
    """A fault that no other sizes of the open dimensions would mend."""


@contextmanager
def faults_named(source: Path | str | bytes) -> Iterator[None]:
    """Have every ModelError name the file that the model is in."""
    try:
        yield
    except ModelError as error:
        if isinstance(source, bytes):
            raise
        raise type(error)(f"{str(source)!r}: {error}") from error


def quote(text: object) -> str:
    """Hostile text for people: quoted, on one line, every unprintable character escaped, cut to MAX_SHOWN."""
    content = str(text)
    return repr(content if len(content) <= MAX_QUOTED else content[: MAX_QUOTED - 3] + "...")


def one_line(text: object, limit: int = 240) -> str:
    """A message of a library, which may quote a model's names, as one printable line."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."


LONGEST_NAME = 200
"""Longest name of a node that is kept, in characters."""

_FUNCTION, _CALLER = "tunewright.function", "tunewright.caller"
"""Metadata keys of a node that came out of a function of the model."""


def place_of(node: NodeProto) -> str:
    """The place of a fault: the node by its name or first output, its op, and the function that it stands in."""
    metadata = {item.key: item.value for item in node.metadata_props}
    place = f"node {quote(_label(node))} ({one_line(node.op_type, 40)})"
    if not {_FUNCTION, _CALLER} <= metadata.keys():
        return place
    return f"{place} in function {quote(metadata[_FUNCTION])}, called by node {quote(metadata[_CALLER])}"


def name_of(node: NodeProto) -> str:
    """What the model calls a node: its name or first output, behind the caller of the function that it stands in.

    Hostile text, cut to LONGEST_NAME.
    """
    caller = next((item.value for item in node.metadata_props if item.key == _CALLER), "")
    return f"{caller}/{_label(node)}"[:LONGEST_NAME] if caller else str(_label(node))[:LONGEST_NAME]


def note_function(node: NodeProto, function: str, call: NodeProto) -> None:
    """Note the function and its caller in a copy of one of the function's nodes, which still has the function's names.

    The caller is a node of the model itself, also for calls within functions.
    """
    outer = next((item.value for item in call.metadata_props if item.key == _CALLER), _label(call))
    node.name = _label(node)
    del node.metadata_props[:]
    node.metadata_props.add(key=_FUNCTION, value=function)
    node.metadata_props.add(key=_CALLER, value=outer)


def _label(node: NodeProto) -> str:
    return node.name or next(iter(node.output), "")


# Bodies of control-flow nodes


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs inside a control-flow node."""
    for attribute in node.attribute:
        yield from attribute_bodies(attribute)


def attribute_bodies(attribute: AttributeProto) -> Iterator[GraphProto]:
    """The graphs that an attribute is."""
    if attribute.type == AttributeProto.GRAPH and not attribute.ref_attr_name:
        yield attribute.g
    yield from attribute.graphs


def nested_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and those in their bodies, at all depths."""
    waiting = [iter(nodes)]
    while waiting:
        node = next(waiting[-1], None)
        if node is None:
            waiting.pop()
            continue
        yield node
        waiting += [iter(body.node) for body in bodies(node)]


def forget_negative_extents(model: ModelProto) -> None:
    """Leave open what an exporter wrote as an extent of -1, as for a batch of any size."""
    for graph in (model.graph, *(body for node in nested_nodes(model.graph.node) for body in bodies(node))):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")


# The order in which the nodes of a graph can be computed, and what they need from around them


def topological_order(nodes: Iterable[NodeProto], known: Mapping[str, str]) -> Iterator[NodeProto]:
    """The nodes in an order that computes them, as close to the given one as can be.

    Raises ModelError for a tensor that nothing computes, or nodes that depend on each other.
    """
    items = list(nodes)
    makers = {name: k for k, node in enumerate(items) for name in node.output if name}
    needs = [{name for name in read_names(node) if name and (name in makers or name not in known)} for node in items]
    readers: dict[str, list[int]] = {}
    for k, names in enumerate(needs):
        for name in names:
            readers.setdefault(name, []).append(k)
    waiting = [len(names) for names in needs]
    ready = [k for k, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    ordered_count = 0
    while ready:
        k = heapq.heappop(ready)
        ordered_count += 1
        yield items[k]
        for name in set(items[k].output):
            for reader in readers.get(name, ()):
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    heapq.heappush(ready, reader)
    if ordered_count < len(items):
        _explain(items, needs, makers, waiting, known)


def _explain(
    items: Sequence[NodeProto],
    needs: Sequence[set[str]],
    makers: Mapping[str, int],
    waiting: list[int],
    known: Collection[str],
) -> None:
    for k, count in enumerate(waiting):
        missing = sorted(name for name in needs[k] if name not in makers)
        if count and missing:
            raise ModelError(f"{place_of(items[k])} reads {quote(missing[0])}, which nothing computes")
        duplicates = sorted(name for name in needs[k] if name in known)
        if count and duplicates:
            maker = place_of(items[makers[duplicates[0]]])
            raise ModelError(
                f"{quote(duplicates[0])} is defined twice: it is an input or a weight, and {maker} computes it"
            )
    k = next(k for k, count in enumerate(waiting) if count)
    raise ModelError(f"nodes depend on each other in a circle, among them {place_of(items[k])}")


def read_names(node: NodeProto) -> set[str]:
    """The names that a node needs, those that only its bodies need included."""
    return set(node.input).union(*(free_names(body) for body in bodies(node)))


def free_names(graph: GraphProto) -> set[str]:
    """The names that a graph takes from around it."""
    names = {value.name for value in graph.output}.union(*(read_names(node) for node in graph.node))
    return names - own_names(graph) - {""}


def own_names(graph: GraphProto) -> set[str]:
    """The names that a graph defines itself."""
    names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    names.update(sparse.values.name for sparse in graph.sparse_initializer)
    return names.union(*(node.output for node in graph.node))


def defined_names(graph: GraphProto) -> set[str]:
    """The names that a graph and its bodies define."""
    inner = (body for node in nested_nodes(graph.node) for body in bodies(node))
    return own_names(graph).union(*map(own_names, inner))


# Opset versions of nodes. One model may mix several versions of a domain, as functions have their own. A node that came
# out of a function and means something else in the model's version says its own in its domain, as in "ai.onnx@11". Such
# names are made here alone, when functions are expanded, and structures keep them.

MIN_OPSET = 6
"""The oldest opset of the standard domain. (Hardly a model has 6, but many of ONNX's own tests do.)"""

DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", contrib.DOMAIN)
"""Domains whose ops are known."""

_SAME_OPS = frozenset({"Constant", "If", "Loop", "Scan"})
"""Ops of the standard domain that later versions only let have more types or attributes. (Of Scan that is so from 9 on:
before, it took the lengths of its sequences first.)"""


def standard(domain: str) -> str:
    """The domain, with the standard one's long name made short."""
    return "" if domain == "ai.onnx" else domain


def versions(opsets: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """Domain -> version; the standard domain is the empty string."""
    return {standard(opset.domain): opset.version for opset in opsets}


def with_version(domain: str, version: int) -> str:
    """The domain of a node with its version in it."""
    return f"{domain or 'ai.onnx'}@{version}"


def domain_and_version(domain: str, opsets: Mapping[str, int]) -> tuple[str, int | None]:
    """The domain that a node means, and of which version: what it says itself, or else `opsets`; None: neither does."""
    name, _, own = domain.rpartition("@")
    if not name or standard(name) not in DOMAINS or not re.fullmatch("[0-9]{1,6}", own):
        return standard(domain), opsets.get(standard(domain))
    if standard(name):
        return name, int(own)
    is_known = MIN_OPSET <= int(own) <= onnx.defs.onnx_opset_version()
    return ("", int(own)) if is_known else (domain, None)


@cache
def same_meaning(op: str, domain: str, version: int, other: int) -> bool:
    """Whether an op means the same in both versions of its domain."""
    if version == other:
        return True
    if op == "Scan" and not domain and min(version, other) < 9:
        return False
    if op in _SAME_OPS and not domain:
        return True
    return _since(op, domain, version) == _since(op, domain, other) is not None


def _since(op: str, domain: str, version: int) -> int | None:
    """The version that brought the op as it is in this one; None if it is not there."""
    try:
        return int(onnx.defs.get_schema(op, version, domain).since_version)
    except onnx.defs.SchemaError:
        return None
