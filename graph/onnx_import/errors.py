"""What a model that can't be imported raises, and how names out of a model are shown."""

from __future__ import annotations

from onnx import NodeProto

from tunewright.graph.inference import TypeFault

MAX_SHOWN = 80
"""Most characters of a name out of a model in a message."""


class ModelError(ValueError):
    """A model that can't be used: one clear line with the value, the limit, the place and what to do."""


class MisfitError(ModelError):
    """A node whose operands don't fit: no fault of a model in a body that never runs."""


class NeverFits(TypeFault):
    """What is wrong whatever the sizes are that the dimensions of a model are bound to."""


def shown(text: object) -> str:
    """Hostile text for people: quoted, on one line, every unprintable character escaped, cut to MAX_SHOWN."""
    content = str(text)
    return repr(content if len(content) <= MAX_SHOWN else content[: MAX_SHOWN - 3] + "...")


def one_line(text: object, limit: int = 240) -> str:
    """A message of a library, which may quote a model's names, as one printable line."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."


_FUNCTION, _CALLER = "tunewright.function", "tunewright.caller"
"""What is noted of a node that came out of a function of the model, among its metadata."""


def place_of(node: NodeProto) -> str:
    """Where a fault is: the node by its name or its first output, its op, and the function that it stands in."""
    noted = {item.key: item.value for item in node.metadata_props}
    place = f"node {shown(_label(node))} ({one_line(node.op_type, 40)})"
    if not {_FUNCTION, _CALLER} <= noted.keys():
        return place
    return f"{place} in function {shown(noted[_FUNCTION])}, called by node {shown(noted[_CALLER])}"


def note_function(node: NodeProto, function: str, call: NodeProto) -> None:
    """Have a copy of a function's node, which still has the function's names, say what calls the function.

    Of calls within functions the node is told that the model itself has.
    """
    outer = next((item.value for item in call.metadata_props if item.key == _CALLER), _label(call))
    node.name = _label(node)
    del node.metadata_props[:]
    node.metadata_props.add(key=_FUNCTION, value=function)
    node.metadata_props.add(key=_CALLER, value=outer)


def _label(node: NodeProto) -> str:
    return node.name or next(iter(node.output), "")
