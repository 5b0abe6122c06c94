"""PyTorch as a peer: the model translated op by op, run eagerly or through torch.compile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .peer import FOREIGN_FAULTS, PeerFailed, one_line


class TorchEager:
    """PyTorch, each op as it comes. Pictures and their weights lie channels last, where its convolutions are fastest.

    The number of threads is one of the process: all models that PyTorch runs in it share the last one set.
    """

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> None:
        import torch

        from tunewright.graph.onnx_import import ModelError, load

        from .torch_module import translate

        self.version: str = torch.__version__
        self._torch = torch
        torch.set_num_threads(threads)
        try:
            self._module: Any = translate(load(model, dims))
        except (ModelError, *FOREIGN_FAULTS) as error:
            raise PeerFailed(one_line(error)) from error
        self._inputs = [_channels_last(torch, torch.from_numpy(array)) for array in feeds.values()]

    def run(self) -> list[Any]:
        try:
            with self._torch.no_grad():
                return [result.numpy() for result in self._module(*self._inputs)]
        except FOREIGN_FAULTS as error:
            raise PeerFailed(one_line(error)) from error


class TorchCompiled(TorchEager):
    """The same through torch.compile, with the weights frozen so that it packs them. It compiles when it is opened.

    It needs a C++ compiler on the machine.
    """

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> None:
        super().__init__(model, feeds, threads, dims)
        from torch._inductor import config

        # What an earlier model left would count against this one: after some variants it gives up compiling.
        self._torch.compiler.reset()
        self._module = self._torch.compile(self._module, dynamic=False)
        with config.patch(freezing=True):  # as an option of torch.compile it comes too late to treat weights as known
            self.run()


def _channels_last(torch: Any, array: Any) -> Any:
    return array.contiguous(memory_format=torch.channels_last) if array.ndim == 4 else array
