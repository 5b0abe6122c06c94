"""Peers: other runtimes, to compare with. They run the same model on the same inputs with as many threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from ..errors import Refused
from .onnx_runtime import OnnxRuntime
from .open_vino import OpenVino
from .peer import Opener, Peer, PeerFailed
from .pytorch import TorchCompiled, TorchEager
from .tvm_relax import Tvm

__all__ = [
    "ASKED_FOR",
    "PEERS",
    "OnnxRuntime",
    "OpenVino",
    "Peer",
    "PeerFailed",
    "TorchCompiled",
    "TorchEager",
    "Tvm",
    "check_peers",
    "how_to_install",
    "is_installed",
    "module_of",
]

PEERS: Mapping[str, Opener] = {
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "torch": TorchEager,
    "torch.compile": TorchCompiled,
    "tvm": Tvm,
}
"""Every peer by its name, which begins with that of its module."""

ASKED_FOR = frozenset({"torch", "torch.compile", "tvm"})
"""Measured by `tunewright bench` only where they are named: they are slow, or compile for a minute."""

_BENCH = "'tunewright[bench]'"
_PACKAGES = {"torch": "'tunewright[torch]'", "tvm": "apache-tvm"}


def module_of(name: str) -> str:
    """The module that a peer is."""
    return name.partition(".")[0]


def is_installed(name: str) -> bool:
    """Whether a peer can be imported."""
    return find_spec(module_of(name)) is not None


def how_to_install(name: str) -> str:
    """What brings a peer."""
    return f"pip install {_PACKAGES.get(module_of(name), _BENCH)}"


def check_peers(names: Sequence[str]) -> None:
    """Raises Refused where a peer is unknown or not installed, and says what to do."""
    for name in names:
        if name not in PEERS:
            raise Refused(f"no peer is called {name!r}; there are {', '.join(PEERS)}")
        if not is_installed(name):
            raise Refused(f"{module_of(name)} is not installed: {how_to_install(name)}")
