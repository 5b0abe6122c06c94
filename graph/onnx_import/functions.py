"""The functions of a model, put in the place of their calls.

Beyond what onnx's own inliner does, attributes that a call leaves out get the function's defaults, and the nodes of a
function that was written for another opset than the model keep the meaning that they have there.

Before: `y = f(x)`, `f<alpha = 0.5>(a) => (b) { b = LeakyRelu<alpha = @alpha>(a) }`.
After: `y = LeakyRelu<alpha = 0.5>(x)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, helper

from .check import MAX_NODES, MAX_SUBGRAPH_DEPTH, FunctionKey, bodies, bodies_of, function_key, inside
from .errors import ModelError, note_function, place_of, shown
from .opsets import same_meaning, standard, versions, with_version
from .order import reads

MAX_EXPANDED_BYTES = 1 << 30
"""What the nodes of functions may come to: what one function holds is there once for each call."""


def expand_functions(model: ModelProto) -> None:
    """Put bodies in the place of calls. The functions are known not to be recursive. Raises ModelError."""
    opsets = versions(model.opset_import)
    expansion = _Expansion(model)
    for function in model.functions:
        for domain, version in versions(function.opset_import).items():
            if opsets.setdefault(domain, version) != version:
                expansion.keep_meaning(function, domain, version, opsets[domain])
    expansion.expand(model.graph)
    model.ClearField("functions")
    model.ClearField("opset_import")
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in opsets.items())


class _Expansion:
    def __init__(self, model: ModelProto) -> None:
        self._functions = {function_key(function): function for function in model.functions}
        self._taken = set(_names(model.graph))
        self._checked: set[FunctionKey] = set()
        self._made = 0  # names
        self._left_nodes = MAX_NODES
        self._left_bytes = MAX_EXPANDED_BYTES

    def keep_meaning(self, function: FunctionProto, domain: str, version: int, around: int) -> None:
        """Have the nodes of a function say their version where they would mean something else in the one `around`."""
        for node in inside(function.node):
            is_op = standard(node.domain) == domain and function_key(node) not in self._functions
            if is_op and not same_meaning(node.op_type, domain, version, around):
                node.domain = with_version(domain, version)

    def expand(self, graph: GraphProto, depth: int = 0) -> None:
        """Replace the calls in a graph, those in its bodies included."""
        if depth > MAX_SUBGRAPH_DEPTH:
            raise ModelError(
                f"control flow (functions expanded) is nested more than {MAX_SUBGRAPH_DEPTH} deep; "
                "move inner branches and loops out of the outer ones"
            )
        nodes = [made for node in graph.node for made in self._expanded(node, depth)]
        if len(nodes) != len(graph.node) or any(function_key(node) in self._functions for node in graph.node):
            del graph.node[:]
            graph.node.extend(nodes)

    def _expanded(self, node: NodeProto, depth: int) -> Iterator[NodeProto]:
        self._left_nodes -= 1
        if self._left_nodes < 0:
            raise ModelError(f"the model has more than {MAX_NODES:,} nodes once its functions are expanded")
        for body in bodies(node):
            self.expand(body, depth + 1)
        function = self._functions.get(function_key(node))
        if function is None:
            yield node
            return
        for inner in self._instance(function, node):
            yield from self._expanded(inner, depth)

    def _instance(self, function: FunctionProto, call: NodeProto) -> Iterator[NodeProto]:
        """The nodes of a function for one call of it."""
        if len(call.input) > len(function.input) or len(call.output) > len(function.output):
            raise ModelError(
                f"{place_of(call)}: {len(call.input)} inputs and {len(call.output)} outputs are more than the "
                f"{len(function.input)} and {len(function.output)} of function {shown(function.name)}"
            )
        self._check_reads(function, call)
        names = dict.fromkeys(function.input, "")
        names.update(zip(function.input, call.input, strict=False))
        copies = []
        for formal, actual in zip(function.output, call.output, strict=False):
            if formal in names and actual:  # an input that is handed on, or an output given twice
                copies.append(NodeProto(op_type="Identity", input=[formal], output=[actual]))
            elif actual:
                names[formal] = actual
        given = {attribute.name: attribute for attribute in (*function.attribute_proto, *call.attribute)}
        for node in function.node:
            copy = NodeProto()
            copy.CopyFrom(node)
            note_function(copy, function.name, call)
            self._rename(copy, names)
            self._bind(copy, given)
            self._pay(copy)
            yield copy
        for copy in copies:
            copy.input[0] = self._name(copy.input[0], names)
            yield copy

    def _check_reads(self, function: FunctionProto, call: NodeProto) -> None:
        """Raises ModelError where a node reads what the function does not have. Once for each function."""
        key = function_key(function)
        if key in self._checked:
            return
        self._checked.add(key)
        known = {*function.input, *(name for node in function.node for name in node.output), ""}
        for node in function.node:
            for name in sorted(reads(node) - known):
                raise ModelError(
                    f"{place_of(node)} in function {shown(function.name)}, called by {place_of(call)}, reads "
                    f"{shown(name)}, which is no input of the function and which nothing in it computes"
                )

    def _rename(self, node: NodeProto, names: dict[str, str]) -> None:
        """Give a node of a function, and what is in its bodies, names that mean the same where the call stands."""
        node.input[:] = [self._name(name, names) for name in node.input]
        node.output[:] = [self._name(name, names) for name in node.output]
        for body in bodies(node):
            tensors = (*body.initializer, *(sparse.values for sparse in body.sparse_initializer))
            for item in (*tensors, *body.input, *body.output):
                item.name = self._name(item.name, names)
            for inner in body.node:
                self._rename(inner, names)

    def _name(self, name: str, names: dict[str, str]) -> str:
        if name and name not in names:
            while (fresh := f"{name}_{self._made}") in self._taken:
                self._made += 1
            self._made += 1
            names[name] = fresh
        return names[name] if name else ""

    def _bind(self, node: NodeProto, given: Mapping[str, AttributeProto]) -> None:
        """Put the attributes of a call, or the defaults, where a node refers to them; what is in neither is absent."""
        kept = []
        for attribute in node.attribute:
            bound = attribute
            if attribute.ref_attr_name:
                if attribute.ref_attr_name not in given:
                    continue
                bound = AttributeProto()
                bound.CopyFrom(given[attribute.ref_attr_name])
                bound.name = attribute.name
                self._pay(bound)
            else:
                for body in bodies_of(attribute):
                    for inner in body.node:
                        self._bind(inner, given)
            kept.append(bound)
        del node.attribute[:]
        node.attribute.extend(kept)

    def _pay(self, made: NodeProto | AttributeProto) -> None:
        self._left_bytes -= made.ByteSize()
        if self._left_bytes < 0:
            raise ModelError(f"the functions of the model come to more than {MAX_EXPANDED_BYTES:,} bytes when expanded")


def _names(graph: GraphProto) -> Iterator[str]:
    """What is defined in a graph, in its bodies too."""
    for part in _graphs(graph):
        yield from (value.name for value in part.input)
        yield from (tensor.name for tensor in part.initializer)
        yield from (sparse.values.name for sparse in part.sparse_initializer)
        for node in part.node:
            yield from node.output


def _graphs(graph: GraphProto) -> Iterable[GraphProto]:
    yield graph
    for node in inside(graph.node):
        yield from bodies(node)
