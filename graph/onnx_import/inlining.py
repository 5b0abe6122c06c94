"""Composite and contributed ops: the nodes of their definitions are added in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from onnx import GraphProto, TypeProto

from tunewright.graph.ir import Node, TensorType

from .. import contrib
from ..evaluation.onnx_form import type_proto
from .decompositions import DECOMPOSITIONS
from .definitions import definition_of
from .import_draft import GraphWalk, ImportDraft, NameScope
from .protobuf import ModelError, quote


def inline_composite(
    walk: GraphWalk, node: Node, protos: Sequence[TypeProto | None], scope: NameScope, place: str
) -> bool:
    """Add the definition of a composite op in its place. False where it has none for operands of these types."""
    draft = walk.draft
    if any(draft.shape(name) is None for name in node.inputs if name):
        return False
    if node.op in DECOMPOSITIONS:
        result = DECOMPOSITIONS[node.op](draft, node)
        if result is not None:
            draft.alias(scope, node.outputs[0], result)
        return result is not None
    if (node.domain, node.op) in contrib.STANDARD:
        try:
            _inline_call(walk, node, scope, place)
        except contrib.Unsupported:
            return False
        return True
    return _inline_function(walk, node, protos, scope, place)


def _inline_function(
    walk: GraphWalk, node: Node, protos: Sequence[TypeProto | None], scope: NameScope, place: str
) -> bool:
    """Add ONNX's own definition of an op in its place, if there is one."""
    definition = definition_of(node, protos)
    if definition is None or any(item.op_type == node.op for item in definition.nodes):
        return False
    inner = NameScope({**scope.opsets, **definition.opsets}, {"": ""}, scope.place or place)
    inner.names.update(zip(definition.inputs, node.inputs, strict=False))
    inner.names[""] = ""
    walk.add_graph(GraphProto(node=definition.nodes), inner)
    for name, result in zip(node.outputs, definition.outputs, strict=False):
        if name:
            walk.draft.alias(scope, name, inner.names[result])
    return True


def inline_contrib(walk: GraphWalk, node: Node, scope: NameScope, place: str) -> None:
    """Add ONNX's ops in the place of a contributed one. Raises ModelError where they can't say what it does."""
    try:
        _inline_call(walk, node, scope, place)
    except contrib.Unsupported as fault:
        raise ModelError(f"{place}: {node.op} with {fault} is not supported") from fault


def _inline_call(walk: GraphWalk, node: Node, scope: NameScope, place: str) -> None:
    """Add what `contrib` has for a call in its place. Raises Unsupported."""
    opset = contrib.OPSET if node.domain else max(contrib.OPSET, node.version)
    inner = NameScope({"": opset, contrib.CLASSIC: contrib.CLASSIC_OPSET}, {"": ""}, scope.place or place)
    inner.names.update((f"i{k}", name) for k, name in enumerate(node.inputs) if name)
    draft, names = walk.draft, inner.names
    call = contrib.ContribCall(
        node,
        partial(walk.add_node, scope=inner),
        partial(_add_own, draft, inner),
        lambda name: draft.types[names[name]],
        lambda name: draft.array(names[name]),
    )
    results = call.write()
    for name, result in zip(node.outputs, results, strict=False):
        if name and not result:
            raise ModelError(f"{place}: output {quote(name)} of {node.op} is not supported")
        if name:
            draft.alias(scope, name, names[result])


def _add_own(draft: ImportDraft, scope: NameScope, node: Node, kind: TensorType) -> None:
    """Add a node of an op that ONNX does not have."""
    output = draft.define(scope, node.outputs[0], type_proto(kind))
    draft.add(replace(node, inputs=tuple(scope.names[n] for n in node.inputs), outputs=(output,)))
