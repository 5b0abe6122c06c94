"""Types as ONNX writes them, which hold what is known of a shape."""

from __future__ import annotations

from onnx import TensorProto, TypeProto, ValueInfoProto, helper

from tunewright.graph.inference import TypeFault, tensor_type


def described(tensor: TensorProto) -> ValueInfoProto:
    """A weight as an input of its type."""
    return ValueInfoProto(name=tensor.name, type=helper.make_tensor_type_proto(tensor.data_type, tensor.dims))


def shapeless(kind: TypeProto) -> TypeProto:
    """The type with nothing known of the shape."""
    copy: TypeProto = TypeProto.FromString(kind.SerializeToString())
    if copy.HasField("tensor_type"):
        copy.tensor_type.ClearField("shape")
    return copy


def either(a: TypeProto, b: TypeProto) -> TypeProto:
    """The type of what is one or the other. Raises TypeFault if they hold different elements."""
    if a == b:
        return a
    if shapeless(a) != shapeless(b):
        raise TypeFault(f"one branch makes {_kind_name(a)}, the other {_kind_name(b)}; both must make the same")
    return shapeless(a)


def _kind_name(kind: TypeProto) -> str:
    """A type for people."""
    which = kind.WhichOneof("value") or "something unknown"
    return tensor_type(kind).dtype if which == "tensor_type" else which.replace("_type", "")


def rank(kind: TypeProto | None) -> int | None:
    """How many dimensions there are, if that is known."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    return len(kind.tensor_type.shape.dim)
