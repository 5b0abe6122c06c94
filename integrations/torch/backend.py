"""`torch.compile(model, backend="tunewright")`: graphs of PyTorch on Tunewright's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._guards import TracingContext
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from tunewright.tuner.errors import Refused
from tunewright.tuner.peers.runtimes import FOREIGN_FAULTS, one_line

from .notes import tell
from .options import BackendOptions

if TYPE_CHECKING:
    from .captured import CapturedGraph

NORMS = {functional.batch_norm: 1, torch.batch_norm: 3}
"""Batch norm -> the number of the argument that has the running mean; number 5 is whether it is in training."""


GRADIENTS = (
    "backend 'tunewright' is for inference, and gradients are wanted here: run the model within torch.no_grad() or "
    "torch.inference_mode(), or call model.requires_grad_(False)"
)


def backend(
    graph_module: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    **given: Any,
) -> Callable[..., Any]:
    """What runs a graph that Dynamo captured, for inference: as much of it as can be by sessions, the rest by PyTorch.

    `options` are those of `BackendOptions`, given by `torch.compile(..., options={...})`. Raises Refused for others,
    and where gradients or batch norm in training are wanted.
    """
    if mode not in (None, "default"):
        raise Refused(f"mode is {mode!r}; the backend has none but 'default': what it may do is told with options")
    read = BackendOptions.read({**(options or {}), **given})
    _check_inference(graph_module, example_inputs)
    make, table = _exporter()
    captured: list[CapturedGraph] = []

    def capture(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        if captured:  # the second graph is that of gradients
            raise Refused(GRADIENTS)
        captured.append(make(module, _weights(len(inputs)), read.with_threads()))
        return _boxed(captured[0])

    try:
        run = aot_autograd(fw_compiler=capture, decompositions=table)(graph_module, example_inputs)
    except (TorchDynamoException, Refused):
        raise
    except FOREIGN_FAULTS as error:
        tell(f"a graph is left to PyTorch: {one_line(error)}")
        return graph_module.forward  # type: ignore[no-any-return]
    for note in captured[0].notes:
        tell(note)
    return _Switch(run, captured[0], graph_module)


def _exporter() -> tuple[type[CapturedGraph], Mapping[Any, Any]]:
    """What writes graphs, and how ops are written that ONNX has not. Raises Refused where PyTorch has no exporter."""
    try:
        from .captured import CapturedGraph
        from .decompositions import decompositions
    except ImportError as error:
        raise Refused(
            f"PyTorch {torch.__version__} can't write ONNX here: {error}; pip install 'tunewright[torch]'"
        ) from error
    return CapturedGraph, decompositions()


backend.__name__ = "tunewright"  # as which PyTorch tells of it


class _Switch:
    """Runs a graph as it was captured, or as PyTorch does where all of it is left to that."""

    def __init__(self, run: Callable[..., Any], captured: CapturedGraph, module: Any) -> None:
        self._run, self._captured, self._module = run, captured, module

    def __call__(self, *arguments: Any) -> Any:
        return self._module(*arguments) if self._captured.is_left else self._run(*arguments)


def _boxed(graph: CapturedGraph) -> Callable[..., Any]:
    """The graph as a function that takes its inputs in a list, which it empties: none lives longer than needed."""

    def run(arguments: list[Any]) -> list[Any]:
        taken = tuple(arguments)
        arguments.clear()
        return graph(*taken)

    run._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001
    return run


def _weights(count: int) -> set[int]:
    """The numbers of the inputs that are parameters or buffers, and that the graph does not write."""
    facts = TracingContext.get().fw_metadata
    written = {number for number, one in enumerate(facts.input_info) if one.mutates_data or one.mutates_metadata}
    return {number for number in facts.static_input_indices if number < count} - written


def _check_inference(graph_module: Any, inputs: Sequence[Any]) -> None:
    """Raises Refused where more is wanted than inference."""
    own = (*graph_module.parameters(), *(one for one in inputs if isinstance(one, torch.Tensor)))
    is_wanted = torch.is_grad_enabled() or any(map(_enables_gradients, graph_module.graph.nodes))
    if is_wanted and any(tensor.requires_grad for tensor in own):
        raise Refused(GRADIENTS)
    if any(_trains(node, graph_module) for node in graph_module.graph.nodes):
        raise Refused("backend 'tunewright' is for inference, and batch norm is in training here: call model.eval()")


def _enables_gradients(node: Any) -> bool:
    """Whether a node is the beginning of `torch.enable_grad()`, or the end of what switched gradients off."""
    return node.target is torch._C._set_grad_enabled and node.args[0] is True  # noqa: SLF001


def _trains(node: Any, graph_module: Any) -> bool:
    """Whether a node is batch norm that changes its running mean."""
    if node.op == "call_module":
        module = graph_module.get_submodule(node.target)
        return isinstance(module, _BatchNorm) and module.training and module.track_running_stats
    if node.op != "call_function" or node.target not in NORMS:
        return False
    arguments = dict(enumerate(node.args))
    mean = arguments.get(NORMS[node.target], node.kwargs.get("running_mean"))
    return mean is not None and arguments.get(5, node.kwargs.get("training", False)) is True
