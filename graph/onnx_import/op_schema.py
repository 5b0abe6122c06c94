"""Which op a node means: ONNX's schema of it, in the version that the model says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import NodeProto, TensorProto

from .. import contrib
from ..evaluation.fallback import is_computed
from .decompositions import modern_version
from .maps import MAP_OPS
from .protobuf import DOMAINS, ModelError, domain_and_version, one_line, quote
from .signature import op_schema


@dataclass(frozen=True, slots=True)
class OpSchema:
    """ONNX's schema of an op as of a version of its domain."""

    domain: str
    version: int
    schema: Any


CONTEXT_DOMAIN, CONTEXT_OP = "com.microsoft", "EPContext"
"""What ONNX Runtime calls a node whose content is a compiled model."""


def schema_of(proto: NodeProto, opsets: Mapping[str, int], place: str) -> OpSchema:
    """The schema of a node's op. Raises ModelError for an op that ONNX or this package does not have."""
    name = proto.op_type
    domain, version = domain_and_version(proto.domain, opsets)
    if domain not in DOMAINS or version is None:
        known = "has no opset version in the model" if domain in DOMAINS else "is not supported"
        raise ModelError(f"{place}: domain {quote(domain)} {known}; export the model with ONNX's own ops")
    try:
        schema = op_schema(name, version, domain)
    except onnx.defs.SchemaError as error:
        if (domain, name) == (CONTEXT_DOMAIN, CONTEXT_OP):
            raise ModelError(f"{place}: is code that was compiled for another runtime; open the original") from error
        raise ModelError(f"{place}: opset {version} has no op {quote(name)}") from error
    # GroupNormalization was declared deprecated when it came, and means what it says in the versions up to the next.
    if schema.deprecated and onnx.defs.has(name, schema.since_version - 1, domain):
        raise ModelError(f"{place}: op {name} is not part of opset {version} any more")
    is_known = (domain, name) in contrib.OPS or (domain, name) in MAP_OPS
    if not is_known and not is_computed(name, domain, modern_version(domain, schema.since_version)):
        raise ModelError(f"{place}: op {name} of opset {version} is not supported: nothing here runs it")
    return OpSchema(domain, version, schema)


def check_node(proto: NodeProto, op: OpSchema, opsets: Mapping[str, int], place: str) -> None:
    """ONNX's own check of attributes and operand counts."""
    bare = NodeProto(op_type=proto.op_type, domain=op.domain, attribute=proto.attribute)
    for attribute in bare.attribute:
        if attribute.t.data_location == TensorProto.EXTERNAL:  # the check would look for the file
            attribute.t.CopyFrom(TensorProto(data_type=attribute.t.data_type, dims=[0], raw_data=b""))
    bare.input.extend("x" if name else "" for name in proto.input)
    bare.output.extend(f"y{k}" if name else "" for k, name in enumerate(proto.output))
    version = onnx.defs.onnx_opset_version() if op.schema.deprecated else op.version  # the check refuses all such
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = onnx.IR_VERSION, {**opsets, op.domain: version}
    try:
        onnx.checker.check_node(bare, context)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        raise ModelError(f"{place}: {one_line(str(error).split('==>', maxsplit=1)[0])}") from error
