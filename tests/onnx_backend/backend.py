"""InferenceSession behind ONNX's backend interface, for ONNX's own conformance cases.

A session is compiled for one set of shapes, while a case says some of them only together with its arrays. So a model
is compiled when it is run, once for whatever else the arrays decide:

- Dimensions that the model leaves open get the extents of the arrays.
- Shape parameters that arrive as inputs (the axes of a ReduceSum, the ends of a Slice) stay inputs. The session then
  runs such a node by its fallback, as for any user. With `bind=True` they become weights of the model, with the values
  at hand: what a user does whose axes never change, and what exporters write.

ONNX's own converter brings models of older opsets to the oldest that Tunewright reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto, helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from tunewright.bench.onnx_cases import open_inputs, parameters, upgraded, with_weights
from tunewright.codegen.host import detect
from tunewright.codegen.llvm.build import ObjectCache
from tunewright.codegen.target import Target
from tunewright.graph.evaluation.onnx_form import dtype_name, element_type
from tunewright.tuner.models.model import open_model
from tunewright.tuner.session.image_store import Coverage
from tunewright.tuner.session.session import InferenceSession


class Prepared(BackendRep):
    """A model, and its sessions by what the arrays of a run decide."""

    def __init__(self, model: ModelProto, bind: bool, cache: ObjectCache | None) -> None:
        self._model = upgraded(model)
        self._inputs = open_inputs(self._model)
        self._outputs = [value.name for value in model.graph.output]
        self._bound = parameters(self._model) if bind else frozenset()
        self._open = [
            (value.name, axis)
            for value in self._inputs
            for axis, dim in enumerate(value.type.tensor_type.shape.dim)
            if not dim.HasField("dim_value")
        ]
        self._cache = cache
        self._sessions: dict[Any, InferenceSession] = {}
        if not self._bound and not self._open:
            self._session({})

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for arrays in the order of the model's inputs."""
        arrays = dict(zip([value.name for value in self._inputs], inputs, strict=True))
        feeds = {name: array for name, array in arrays.items() if name not in self._bound}
        return tuple(self._session(arrays).run(self._outputs, feeds))

    @property
    def coverage(self) -> Coverage:
        """Of the session that was compiled last."""
        return list(self._sessions.values())[-1].coverage()

    def close(self) -> None:
        """Unload all code."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _session(self, arrays: Mapping[str, Any]) -> InferenceSession:
        dims = {f"{name}:{axis}": np.shape(arrays[name])[axis] for name, axis in self._open}
        bound = {name: np.asarray(arrays[name]) for name in sorted(self._bound)}
        key = tuple(dims.values()), tuple((array.shape, array.tobytes()) for array in bound.values())
        if key not in self._sessions:
            model = open_model(with_weights(self._model, bound).SerializeToString(), dims)
            self._sessions[key] = InferenceSession.of(model, _target(), {}, self._cache)
        return self._sessions[key]


class TunewrightBackend(Backend):
    """Tunewright as a backend of ONNX, on default schedules. `bind` and `cache` are options of `prepare`."""

    @classmethod
    def prepare(
        cls,
        model: ModelProto,
        device: str = "CPU",
        *,
        bind: bool = False,
        cache: ObjectCache | None = None,
        **kwargs: Any,
    ) -> Prepared:
        """The model, compiled already if its arrays decide nothing. Raises ModelError if it can't be read."""
        return Prepared(model, bind, cache)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of one node for arrays in the order of its inputs, absent ones left out."""
        given = dict(zip(filter(None, node.input), map(np.asarray, inputs), strict=True))
        results = [ValueInfoProto(name=name) for name in node.output]
        graph = helper.make_graph([node], "node", [_described(*item) for item in given.items()], results)
        version = kwargs.pop("opset_version", None)
        opsets = None if version is None else [helper.make_opsetid(node.domain, version)]
        model = helper.make_model(graph, opset_imports=opsets)
        outputs = cls.run_model(model, list(given.values()), device, **kwargs)
        return namedtupledict("Outputs", list(node.output))(*outputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models run there."""
        return bool(Device(device).type == DeviceType.CPU)


@cache
def _target() -> Target:
    return detect(threads=1)


def _described(name: str, array: Any) -> ValueInfoProto:
    kind = helper.make_tensor_type_proto(element_type(dtype_name(array)), array.shape)
    return ValueInfoProto(name=name, type=kind)
