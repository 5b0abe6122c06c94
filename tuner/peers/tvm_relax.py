"""Apache TVM as a peer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .peer import FOREIGN_FAULTS, PeerFailed, one_line

ALL_PERFORMANCE_CORES = 1
"""How TVM's pool of threads lies on cores: its mode of that number."""


class Tvm:
    """TVM, compiled for this processor by its default pipeline, without any search: tuning it takes hours.

    The number of threads is one of the process: all models that TVM runs in it share the last one set.
    """

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> None:
        import tvm
        from tvm import relax
        from tvm.relax.frontend.onnx import from_onnx

        from tunewright.codegen.host import detect
        from tunewright.graph.onnx_import import ModelError, checked

        self.version: str = tvm.__version__
        shapes = {label: list(array.shape) for label, array in feeds.items()}
        target = tvm.target.Target({"kind": "llvm", "mcpu": detect().cpu, "num-cores": threads})
        try:
            tvm.get_global_func("runtime.config_threadpool")(ALL_PERFORMANCE_CORES, threads)
            module = from_onnx(checked(model)[0], shape_dict=shapes, keep_params_in_input=False)
            self._machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
            self._inputs = [tvm.runtime.tensor(array) for array in feeds.values()]
        except (ModelError, *FOREIGN_FAULTS) as error:
            raise PeerFailed(one_line(error)) from error

    def run(self) -> list[Any]:
        try:
            result = self._machine["main"](*self._inputs)
            return [value.numpy() for value in ([result] if hasattr(result, "numpy") else result)]
        except FOREIGN_FAULTS as error:
            raise PeerFailed(one_line(error)) from error
