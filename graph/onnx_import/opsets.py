"""Which opset a node is of. One model may mix several versions of a domain: its functions have their own.

A node that came out of a function and means something else in the model's version says its own in its domain, as in
"ai.onnx@11". Such names are made here alone, when functions are expanded, and structures keep them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

import onnx
from onnx import OperatorSetIdProto

MIN_OPSET = 6
"""The oldest opset of the standard domain. (Hardly a model has 6, but many of ONNX's own tests do.)"""

DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
"""Whose ops are known."""

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
    """How a node says its version in its domain."""
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
