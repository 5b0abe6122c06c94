"""The execution provider: what ONNX Runtime calls, from the list of devices to the run of a group."""

from __future__ import annotations

import ctypes
import json
import logging
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_bool, c_size_t, c_uint32, c_void_p
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tunewright.codegen.host import detect
from tunewright.tuner.errors import Refused
from tunewright.tuner.text import counted

from .background_tuning import BackgroundTuning
from .c_api import API_VERSION, OrtApi, struct_of
from .capability import Capability
from .compiled_group import CompiledGroup, is_compiled
from .fused_group import FusedGroup
from .graph import OrtGraph, OrtNode, OrtValueInfo, model_of
from .native import ComputeInfo, Slots
from .options import GIVEN_KEY, NAME, OPTIONS_KEY, ProviderOptions

VENDOR = "Tunewright"
VENDOR_ID = 0  # of no PCI device
PROCESSOR = 0  # of OrtHardwareDeviceType

_log = logging.getLogger("tunewright.onnxruntime")


class Callbacks:
    """Functions of ours that C calls; they must outlive who calls them."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def add(self, result: Any, function: Callable[..., Any], *arguments: Any) -> int:
        """The address of a function that can't fail."""
        callback = ctypes.CFUNCTYPE(result, *arguments)(function)
        self._kept.append(callback)
        return ctypes.cast(callback, c_void_p).value or 0

    def add_fallible(self, api: OrtApi, function: Callable[..., None], *arguments: Any) -> int:
        """The address of a function that gives a status: what ours raises, for ONNX Runtime to raise in its turn."""

        def call(*values: Any) -> int | None:
            try:
                function(*values)
            except BaseException as error:  # noqa: BLE001 - no exception may pass through C
                _log.debug("a call of ONNX Runtime's fails", exc_info=True)
                return api.status(f"{type(error).__name__}: {error}")
            return None

        return self.add(c_void_p, call, *arguments)

    def text(self, text: str) -> int:
        """The address of a text."""
        kept = ctypes.create_string_buffer(text.encode())
        self._kept.append(kept)
        return ctypes.addressof(kept)

    def struct(self, *words: int) -> int:
        """The address of a struct of these words, behind its version."""
        kept = struct_of(words)
        self._kept.append(kept)
        return ctypes.addressof(kept)


class Factory:
    """What ONNX Runtime has of us once the library is registered: tells devices, makes a provider for each session."""

    def __init__(self, base: int) -> None:
        self._api = api = OrtApi(base)
        self._callbacks = add = Callbacks()
        self._providers: dict[int, Provider] = {}  # by the address of their struct
        name, vendor, release = add.text(NAME), add.text(VENDOR), add.text(version("tunewright"))
        self.address = add.struct(
            add.add(c_void_p, lambda _: name, c_void_p),
            add.add(c_void_p, lambda _: vendor, c_void_p),
            add.add_fallible(api, self._devices, *[c_void_p] * 2, c_size_t, c_void_p, c_size_t, c_void_p),
            add.add_fallible(api, self._create, *[c_void_p] * 3, c_size_t, *[c_void_p] * 3),
            add.add(None, self._release, c_void_p, c_void_p),
            add.add(c_uint32, lambda _: VENDOR_ID, c_void_p),
            add.add(c_void_p, lambda _: release, c_void_p),
            0,  # ValidateCompiledModelCompatibilityInfo
            0,  # CreateAllocator
            0,  # ReleaseAllocator
            add.add_fallible(api, _no_transfer, c_void_p, c_void_p),  # where it is missing, ONNX Runtime crashes
            add.add(c_bool, lambda _: False, c_void_p),  # IsStreamAware
            0,  # CreateSyncStreamForDevice
        )

    @property
    def groups(self) -> list[FusedGroup | CompiledGroup]:
        """The groups of all sessions."""
        return [group for provider in list(self._providers.values()) for group in provider.groups]

    def _devices(self, this: int, devices: int, count: int, found: int, most: int, number: int) -> None:
        """Say which devices we run on: processors."""
        offered = ctypes.cast(devices, POINTER(c_void_p))[:count]
        taken = [device for device in offered if self._api.plain("HardwareDevice_Type", device) == PROCESSOR][:most]
        for place, device in enumerate(taken):
            self._api.call("CreateEpDevice", this, device, None, None, found + 8 * place)
        ctypes.cast(number, POINTER(c_size_t))[0] = len(taken)

    def _create(self, this: int, devices: int, told: int, count: int, options: int, logger: int, result: int) -> None:
        own, given = self._option(options, OPTIONS_KEY), self._option(options, GIVEN_KEY)
        if not own:
            raise Refused("the options are none of tunewright.integrations.onnxruntime.session_options")
        provider = Provider(self._api, ProviderOptions.from_json(own), json.loads(given) if given else None)
        self._providers[provider.address] = provider
        ctypes.cast(result, POINTER(c_void_p))[0] = provider.address

    def _release(self, this: int, provider: int) -> None:
        if provider in self._providers:
            self._providers.pop(provider).close()

    def close(self) -> None:
        """End what compiles, before the interpreter ends the threads that wait for it; sessions may be there still."""
        for provider in list(self._providers.values()):
            provider.close()

    def _option(self, options: int, key: str) -> str:
        """One of the options that the session was given for us; empty where it was not."""
        full = f"ep.{NAME.lower()}.{key}".encode()
        has = ctypes.c_int()
        self._api.call("HasSessionConfigEntry", options, full, byref(has))
        if not has.value:
            return ""
        size = c_size_t()
        self._api.call("GetSessionConfigEntry", options, full, None, byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._api.call("GetSessionConfigEntry", options, full, text, byref(size))
        return text.value.decode()


def _no_transfer(this: int, result: int) -> None:
    """Say that memory is the processor's, to which nothing need be copied."""
    ctypes.cast(result, POINTER(c_void_p))[0] = None


class Provider:
    """The provider of one session: says which nodes it takes, and compiles them.

    `given` are names of weights that the session is given beside the model; None: all are those of its file.
    """

    def __init__(self, api: OrtApi, options: ProviderOptions, given: Sequence[str] | None) -> None:
        self._api, self._options, self._is_file = api, options, given is None
        self._capability = Capability(frozenset(given or ()))
        self._slots = Slots(detect(options.threads).threads)
        self._has_claimed = False
        self._tuning = BackgroundTuning(options, self._fused_groups, self._name)
        self._model_file: Path | None = None
        self._file: Path | None = None  # of the model, if its nodes are one group
        self._file_inputs: set[str] = set()
        self._callbacks = add = Callbacks()
        self._groups: dict[int, tuple[FusedGroup | CompiledGroup, Callbacks, ComputeInfo]] = {}  # by the info's address
        name = add.text(NAME)
        self._fusion = (ctypes.c_uint32 * 2)(API_VERSION, 1)  # without the weights, which we pack
        self.address = add.struct(
            add.add(c_void_p, lambda _: name, c_void_p),
            add.add_fallible(api, self._claim, c_void_p, c_void_p, c_void_p),
            add.add_fallible(api, self._compile, *[c_void_p] * 3, c_size_t, *[c_void_p] * 2),
            add.add(None, self._release, c_void_p, c_void_p, c_size_t),
            *[0] * 22,
        )

    @property
    def groups(self) -> list[FusedGroup | CompiledGroup]:
        """The groups of the session."""
        return [group for group, _, _ in list(self._groups.values())]

    def _name(self) -> str:
        return "model" if self._model_file is None else self._model_file.stem

    def _fused_groups(self) -> list[FusedGroup]:
        return [group for group in self.groups if isinstance(group, FusedGroup)]

    def _claim(self, this: int, graph: int, support: int) -> None:
        claimed = OrtGraph(self._api, graph)
        groups = self._capability.claims(claimed)
        if groups or (claimed.parent is None and not self._has_claimed):  # it is asked again of what is left
            self._has_claimed = True
            of_all, ours = len(claimed.nodes), sum(map(len, groups))
            _log.info("of %d nodes %d run on Tunewright's kernels, in %s", of_all, ours, counted(len(groups), "group"))
        self._model_file = claimed.model_path
        is_whole = claimed.parent is None and len(groups) == 1 and len(groups[0]) == len(claimed.nodes)
        self._file = claimed.model_path if is_whole and self._is_file else None
        self._file_inputs = {value.name for value in claimed.inputs}
        for group in groups:
            nodes = (c_void_p * len(group))(*(node.address for node in group))
            self._api.call("EpGraphSupportInfo_AddNodesToFuse", support, nodes, len(group), self._fusion)

    def _compile(self, this: int, graphs: int, fused: int, count: int, results: int, contexts: int) -> None:
        for number in range(count):
            graph = OrtGraph(self._api, ctypes.cast(graphs, POINTER(c_void_p))[number] or 0)
            node = OrtNode(self._api, ctypes.cast(fused, POINTER(c_void_p))[number] or 0)
            ctypes.cast(results, POINTER(c_void_p))[number] = self._add_group(graph, node)

    def _add_group(self, graph: OrtGraph, node: OrtNode) -> int:
        """The address of the struct by which ONNX Runtime runs a group."""
        inputs, outputs = (tuple(filter(None, values)) for values in (node.inputs, node.outputs))
        add = Callbacks()
        group = self._group(graph, inputs, outputs)
        info = ComputeInfo(
            API_VERSION,
            add.add_fallible(self._api, _no_state, *[c_void_p] * 3),
            add.add(None, lambda _this, _state: None, c_void_p, c_void_p),
            self._api.table,
            add.add_fallible(self._api, lambda _this, _state, context: group.run(context), *[c_void_p] * 3),
        )
        if isinstance(group, FusedGroup):
            group.info = info
        self._groups[info.address] = group, add, info
        return info.address

    def _group(
        self, graph: OrtGraph, inputs: Sequence[OrtValueInfo], outputs: Sequence[OrtValueInfo]
    ) -> FusedGroup | CompiledGroup:
        if len(graph.nodes) == 1 and is_compiled(graph.nodes[0]):
            file = graph.model_path or self._model_file
            if file is None:
                raise Refused("a compiled model is opened from its file, as its library lies beside it")
            threads = detect(self._options.threads).threads
            return CompiledGroup(self._api, graph.nodes[0], file.parent, inputs, outputs, threads)
        model, begin = self._model(graph, inputs, outputs), self._tuning.begin
        return FusedGroup(self._api, model, inputs, outputs, self._options, self._slots, begin)

    def _model(self, graph: OrtGraph, inputs: Sequence[OrtValueInfo], outputs: Sequence[OrtValueInfo]) -> Path | bytes:
        """The model of a group: the file, where it is that, so that what is known of the file is found."""
        if self._file is not None and self._file_inputs == {value.name for value in inputs} and self._file.is_file():
            return self._file
        content: bytes = model_of(graph, inputs, outputs).SerializeToString()
        return content

    def _release(self, this: int, groups: int, count: int) -> None:
        self._tuning.close()
        for address in ctypes.cast(groups, POINTER(c_void_p))[:count]:
            group, _, _ = self._groups.pop(address or 0)
            group.close()

    def close(self) -> None:
        """End what compiles and tunes."""
        self._tuning.close()
        for group, _, _ in list(self._groups.values()):
            group.close()


def _no_state(this: int, context: int, state: int) -> None:
    """A group keeps nothing between the beginning and the end of its use."""
    ctypes.cast(state, POINTER(c_void_p))[0] = None
