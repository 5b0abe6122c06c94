"""The JSON schema of a task, for compilers that write their own: components of the OpenAPI document.

`graph.task.Task.from_json` is what reads a task, and refuses more than a schema can tell: names that nothing declares,
indices of another rank than their tensor, loads of another type.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import arity
from tunewright.codegen.expr.semantics import OPS
from tunewright.db.admission import MAX_EXTENT
from tunewright.graph.task import COMBINERS, FIELDS, NAME, STAGE_FIELDS, TENSOR_FIELDS

TaskData = Annotated[dict[str, Any], WithJsonSchema({"$ref": "#/components/schemas/Task"})]
"""A task as JSON data, which is read by `Task.from_json`."""

_NAME = {"type": "string", "pattern": f"^{NAME}$"}
_DTYPE = {"type": "string", "enum": [dtype.value for dtype in DType]}
_EXTENT = {"type": "integer", "minimum": 1, "maximum": MAX_EXTENT}
_EXPRESSION = {"$ref": "#/components/schemas/Expression"}
_TENSORS = {"type": "array", "items": {"$ref": "#/components/schemas/Tensor"}}


def _tuple(description: str, *items: dict[str, Any], rest: dict[str, Any] | bool = False) -> dict[str, Any]:
    """An array that begins with these; how it goes on."""
    least = {"type": "array", "description": description, "prefixItems": list(items), "minItems": len(items)}
    return least | ({"maxItems": len(items)} if rest is False else {"items": rest})


def _ops(arguments: int) -> dict[str, Any]:
    names = sorted(name for name in OPS if arity(name) == arguments)
    operands = [_EXPRESSION] * arguments
    return _tuple(f"An op of {arguments}, element by element.", {"const": "op"}, _DTYPE, {"enum": names}, *operands)


_AXES = {"type": "array", "items": _tuple("A name, and the number of its values from 0 on.", _NAME, _EXTENT)}

COMPONENTS: dict[str, Any] = {
    "Expression": {
        "description": "What is computed for a point of the axes: a literal, an axis, an element, or an op.",
        "oneOf": [
            _tuple(
                "A literal. Infinities and NaN are text.",
                {"const": "const"},
                _DTYPE,
                {"type": ["number", "boolean", "string"]},
            ),
            _tuple("The value of an axis, an int64.", {"const": "var"}, _NAME),
            _tuple(
                "An element, by an index of int64 for each dimension.",
                {"const": "load"},
                _DTYPE,
                _NAME,
                rest=_EXPRESSION,
            ),
            *(_ops(arguments) for arguments in sorted({arity(name) for name in OPS})),
        ],
    },
    "Tensor": {
        "type": "object",
        "description": "A dense tensor, row-major.",
        "properties": {
            "name": _NAME,
            "shape": {"type": "array", "items": _EXTENT, "description": "Empty: one element."},
            "dtype": _DTYPE,
            "constant": {
                "type": "boolean",
                "description": "Whether it is known before the first run: it can be packed.",
            },
            "small": {"type": "boolean", "description": "Of a constant of int8: whether none is beyond 64."},
        },
        "required": list(TENSOR_FIELDS),
        "additionalProperties": False,
    },
    "Stage": {
        "type": "object",
        "description": "`output[index] = body` for every point of `axes`, folded by `combiner` over `reduce`. Each "
        "element of a tensor is written by one point of one stage, and read by later stages alone.",
        "properties": {
            "output": _NAME,
            "axes": _AXES,
            "reduce": _AXES | {"description": "Empty if and only if `combiner` is."},
            "combiner": {"type": "string", "enum": ["", *COMBINERS]},
            "index": {
                "type": "array",
                "items": _EXPRESSION,
                "description": "The place that is written, of `axes` alone. Empty: the axes in order.",
            },
            "body": _EXPRESSION,
        },
        "required": list(STAGE_FIELDS),
        "additionalProperties": False,
    },
    "Task": {
        "type": "object",
        "description": "A fused subgraph. Names are the sender's own: the key is that of the task under the service's. "
        "Operands keep their order, so `a * b` and `b * a` are two tasks.",
        "properties": {
            "op": {"type": "string", "description": "For people, no part of the key.", "examples": ["MatMul+Relu"]},
            "inputs": _TENSORS,
            "outputs": _TENSORS,
            "temporaries": _TENSORS | {"description": "What stages hand on to each other."},
            "stages": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Stage"}},
            "decisive": {
                "type": "boolean",
                "description": "Whether a step function reads what a convolution makes: a plain sum then.",
            },
        },
        "required": list(FIELDS),
        "additionalProperties": False,
    },
}
"""By name."""
