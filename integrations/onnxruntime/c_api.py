"""ONNX Runtime's C API, called through its tables of functions.

The tables only grow at their end, so a place stays a function's for ever: `onnxruntime_c_api.h` and
`onnxruntime_ep_c_api.h` of version 1.23, in whose terms we speak to later ones too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

API_VERSION = 23

FAIL = 1
"""The code of an error of no special kind."""

_PLACES: Mapping[str, int] = {
    "CreateStatus": 0, "GetErrorMessage": 2, "GetTensorMutableData": 51, "CastTypeInfoToTensorInfo": 55,
    "GetOnnxTypeFromTypeInfo": 56, "GetTensorElementType": 60, "GetDimensionsCount": 61, "GetDimensions": 62,
    "GetSymbolicDimensions": 63, "GetTensorTypeAndShape": 65, "KernelContext_GetInput": 90,
    "KernelContext_GetOutput": 91, "ReleaseStatus": 93, "ReleaseValue": 96,
    "ReleaseTensorTypeAndShapeInfo": 99, "HasSessionConfigEntry": 237, "GetSessionConfigEntry": 238, "ReadOpAttr": 272,
    "GetValueInfoName": 289, "GetValueInfoTypeInfo": 290, "HardwareDevice_Type": 307, "GetEpApi": 317,
    "ValueInfo_GetInitializerValue": 326, "ValueInfo_IsConstantInitializer": 331, "Graph_GetModelPath": 334,
    "Graph_GetNumOperatorSets": 336, "Graph_GetOperatorSets": 337, "Graph_GetNumInputs": 338,
    "Graph_GetInputs": 339, "Graph_GetNumOutputs": 340,
    "Graph_GetOutputs": 341, "Graph_GetNumInitializers": 342, "Graph_GetInitializers": 343, "Graph_GetNumNodes": 344,
    "Graph_GetNodes": 345, "Graph_GetParentNode": 346, "Node_GetName": 349, "Node_GetOperatorType": 350,
    "Node_GetDomain": 351, "Node_GetNumInputs": 353, "Node_GetInputs": 354, "Node_GetNumOutputs": 355,
    "Node_GetOutputs": 356, "Node_GetNumImplicitInputs": 357, "Node_GetImplicitInputs": 358,
    "Node_GetNumAttributes": 359, "Node_GetAttributes": 360, "OpAttr_GetTensorAttributeAsOrtValue": 362,
    "OpAttr_GetType": 363, "OpAttr_GetName": 364, "Node_GetNumSubgraphs": 365, "Node_GetSubgraphs": 366,
    "Node_GetGraph": 367,
}  # fmt: skip
_EP_PLACES: Mapping[str, int] = {"CreateEpDevice": 0, "EpGraphSupportInfo_AddNodesToFuse": 2}

_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "CreateStatus": (c_void_p, c_int, c_char_p),
    "GetErrorMessage": (c_char_p, c_void_p),
    "GetEpApi": (c_void_p,),
    "HardwareDevice_Type": (c_int, c_void_p),
    "ReleaseStatus": (None, c_void_p),
    "ReleaseTensorTypeAndShapeInfo": (None, c_void_p),
    "ReleaseValue": (None, c_void_p),
}  # fmt: skip
"""Functions that give no status: type of the result, then of the arguments. The others give one and take words."""


class OrtFault(RuntimeError):
    """ONNX Runtime refused a call. One line."""


class OrtApi:
    """The functions that are used here, of the tables behind an `OrtApiBase`.

    Raises OrtFault where ONNX Runtime is older than the version that knows plug-ins.
    """

    def __init__(self, base: int) -> None:
        get_api = ctypes.CFUNCTYPE(c_void_p, c_uint32)(_word(base, 0))
        table = get_api(API_VERSION)
        if not table:
            raise OrtFault("ONNX Runtime is older than 1.23, the first version that loads execution providers")
        self.table = table
        self._functions: dict[str, Callable[..., Any]] = {}
        self._add(table, _PLACES)
        self._add(self._functions["GetEpApi"](), _EP_PLACES)

    def _add(self, table: int, places: Mapping[str, int]) -> None:
        for name, place in places.items():
            address = _word(table, place)
            if name in _PLAIN:
                result, *arguments = _PLAIN[name]
                self._functions[name] = ctypes.CFUNCTYPE(result, *arguments)(address)
            else:  # six words are enough for all: who takes fewer looks at no more
                self._functions[name] = ctypes.CFUNCTYPE(c_void_p, *[c_void_p] * 6)(address)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that gives a status. Raises OrtFault with what it says."""
        status = self._functions[name](*arguments, *[None] * (6 - len(arguments)))
        if status:
            message = self._functions["GetErrorMessage"](status)
            self._functions["ReleaseStatus"](status)
            raise OrtFault(f"{name}: {message.decode(errors='replace')}")

    def plain(self, name: str, *arguments: Any) -> Any:
        """Call a function that gives none."""
        return self._functions[name](*arguments)

    def status(self, message: str) -> int:
        """A status that tells of an error."""
        address: int = self._functions["CreateStatus"](FAIL, message.replace("\0", "").encode(errors="replace"))
        return address

    def word(self, name: str, *arguments: Any) -> int | None:
        """The address that a function writes through its last argument; None for no address."""
        result = c_void_p()
        self.call(name, *arguments, byref(result))
        return result.value

    def text(self, name: str, *arguments: Any) -> str:
        """The text to which a function writes the address."""
        result = c_char_p()
        self.call(name, *arguments, byref(result))
        return (result.value or b"").decode()

    def size(self, name: str, *arguments: Any) -> int:
        """The number that a function writes."""
        result = c_size_t()
        self.call(name, *arguments, byref(result))
        return result.value

    def flag(self, name: str, *arguments: Any) -> bool:
        """The truth that a function writes."""
        result = ctypes.c_bool()
        self.call(name, *arguments, byref(result))
        return result.value

    def items(self, owner: str, kind: str, address: int) -> list[int | None]:
        """The addresses of what something has: `Graph_GetNodes` for "Graph", "Nodes"."""
        count = self.size(f"{owner}_GetNum{kind}", address)
        array = (c_void_p * count)()
        if count:
            self.call(f"{owner}_Get{kind}", address, array, count)
        return list(array)

    def shape(self, info: int) -> tuple[int, ...]:
        """The extents of an `OrtTensorTypeAndShapeInfo`, -1 for those that are open."""
        count = self.size("GetDimensionsCount", info)
        extents = (c_int64 * count)()
        self.call("GetDimensions", info, extents, count)
        return tuple(extents)


def _word(address: int, number: int) -> int:
    """A word of a table in memory."""
    return ctypes.cast(address, POINTER(c_void_p))[number] or 0


def struct_of(words: Sequence[int]) -> ctypes.Array[c_void_p]:
    """A struct of the plug-in interface: the version that it is of, then addresses of functions; 0 for none."""
    return (c_void_p * (1 + len(words)))(API_VERSION, *(word or None for word in words))
