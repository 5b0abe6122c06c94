"""The graph of a model under construction, and how the model's names become its tensors."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from onnx import GraphProto, NodeProto, TypeProto

from tunewright.graph.draft import Draft
from tunewright.graph.ir import TensorType

from ..evaluation.onnx_form import tensor_type, type_proto
from .protobuf import ModelError, quote


@dataclass(frozen=True, slots=True)
class NameScope:
    """The scope of the model's names: the whole graph, or a part that is being inlined."""

    opsets: Mapping[str, int]
    names: MutableMapping[str, str]  # of the model -> ours; "" -> ""
    place: str = ""  # of the node whose definition this is

    def inner(self) -> NameScope:
        """A scope that sees this one and keeps its own definitions to itself."""
        return NameScope(self.opsets, ChainMap({}, self.names), self.place)


class ImportDraft(Draft):
    """A draft whose tensors stand for names of a model. `protos` is as `types`, but with the extents that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.protos: dict[str, TypeProto] = {}

    def define(self, scope: NameScope, name: str, proto: TypeProto) -> str:
        """A new tensor for a name that the model defines here. Raises ModelError if taken, TypeFault by its type."""
        if not name or name in (scope.names.maps[0] if isinstance(scope.names, ChainMap) else scope.names):
            raise ModelError(f"{quote(name)} is defined twice" if name else "a tensor has no name")
        tensor = self.new_tensor(tensor_type(proto))
        self.protos[tensor] = proto
        scope.names[name] = tensor
        return tensor

    def define_constant(self, scope: NameScope, name: str, array: Any) -> None:
        """As `define`, for a value that is known."""
        kind = TensorType("string" if array.dtype.kind in "OUST" else array.dtype.name, array.shape)
        self.constants[self.define(scope, name, type_proto(kind))] = array

    def alias(self, scope: NameScope, name: str, tensor: str) -> None:
        """Have a name of the model mean a tensor that there is. Raises ModelError if taken."""
        if name in scope.names:
            raise ModelError(f"{quote(name)} is defined twice")
        scope.names[name] = tensor
        self.note_types((tensor,))

    def note_types(self, tensors: Iterable[str]) -> None:
        """Fill in `protos` for tensors that were added by their `types` alone."""
        for tensor in tensors:
            if tensor and tensor not in self.protos:
                self.protos[tensor] = type_proto(self.types[tensor])


class GraphWalk(Protocol):
    """What adds parts of a model to a draft: see `Walk`."""

    draft: ImportDraft

    def add_graph(self, graph: GraphProto, scope: NameScope) -> None: ...

    def add_node(self, proto: NodeProto, scope: NameScope) -> None: ...
