"""DeviceModel: an image on a GPU, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.driver import DeviceMemory, Driver
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.host import available_cores

from .evaluation import NodeRunner
from .image import (
    Area,
    Array,
    Copy,
    Evaluation,
    Image,
    ImagePort,
    KernelCall,
    Location,
    Step,
    TensorValue,
    view_of,
)

Place = tuple[Area, int]
"""An area, and which of its kind."""


class DeviceModel:
    """Runs an image on a GPU: all kernels as one graph, which the device goes through by itself.

    Where nodes have no kernel there are several graphs, and what those nodes read and make is brought to this machine's
    memory and back; else only inputs and outputs are. Results are the caller's to keep. Threads may share models: all
    runs on a device take turns. A forked child may not.

    Raises MemoryError where the model does not fit into the device's memory, and what a driver raises.
    """

    def __init__(self, image: Image, device: Driver) -> None:
        self._device = device
        self._memory = {place: device.memory(size) for place, size in _sizes_bytes(image).items()}
        for number, block in enumerate(image.constants):
            if block.nbytes:
                self._memory[Area.CONSTANTS, number].write(block)
        self.image = replace(image, constants=())
        self._is_open = True
        self._parts: list[Callable[[], None] | NodeRunner] = []
        for is_node, steps in groupby(image.steps, lambda step: isinstance(step, Evaluation)):
            if is_node:
                threads = len(available_cores())
                self._parts += [NodeRunner(step, threads) for step in steps if isinstance(step, Evaluation)]
            else:
                self._parts.append(device.capture(self._queue(list(steps))))

    def _queue(self, steps: Sequence[Step]) -> Callable[[], None]:
        """What queues kernels and copies, in this order."""
        runs: list[Callable[[], None]] = []
        for step in steps:
            match step:
                case KernelCall(artifact, locations):
                    assert isinstance(artifact, GpuArtifact)
                    buffers = (*artifact.params, *artifact.scratch)
                    operands = [self._at(s, b.size_bytes) for s, b in zip(locations, buffers, strict=True)]
                    runs.append(self._device.program(artifact, operands))
                case Copy(source, to, of_bytes):
                    runs.append(partial(self._at(to, of_bytes).copy, self._at(source, of_bytes)))

        def queue() -> None:
            for run in runs:
                run()

        return queue

    def _at(self, location: Location, of_bytes: int) -> DeviceMemory:
        return self._memory[location.area, location.number].part(location.offset_bytes, of_bytes)

    def run(self, inputs: Sequence[Array]) -> list[Any]:
        """The outputs, each of the type that the image gives it, for inputs of the types that it gives them, in order.

        Raises EvaluationError where a node without a kernel can't be computed, DeviceFault where the device fails.
        """
        with self._device.turn:
            self._feed(inputs)
            results: dict[str, Any] = {}  # what nodes without kernels returned, where no memory was planned
            for part in self._parts:
                if isinstance(part, NodeRunner):
                    self._evaluate(part, inputs, results)
                else:
                    part()
            return [self._result(port, inputs, results) for port in self.image.outputs]

    def times_s(self, inputs: Sequence[Array], samples: int, repeats: int) -> list[float]:
        """Seconds that the kernels take in a run like `run`: a sample is the mean of `repeats` runs in a row.

        Neither transfers nor nodes without kernels are in it.
        """
        with self._device.turn:
            self._feed(inputs)
            graphs = [part for part in self._parts if not isinstance(part, NodeRunner)]
            sums_s = np.zeros((samples, repeats))
            for graph in graphs:
                times_s = self._device.time(graph, samples * repeats, is_cold=False)
                sums_s += np.array(times_s).reshape(samples, repeats)
            means: list[float] = sums_s.mean(axis=1).tolist()
            return means

    def _feed(self, inputs: Sequence[Array]) -> None:
        if not self._is_open:
            raise RuntimeError("the program is closed; open the model again to run it")
        for number, array in enumerate(inputs):
            memory = self._memory.get((Area.INPUT, number))
            if memory is not None:
                memory.write(array)

    @property
    def vendor_ops(self) -> list[str]:
        """The ops of the nodes that ONNX Runtime runs, once a node."""
        return [op for part in self._parts if isinstance(part, NodeRunner) for op in part.vendor_ops]

    def _evaluate(self, runner: NodeRunner, inputs: Sequence[Array], results: dict[str, Any]) -> None:
        step = runner.step
        for name, result in runner.run(lambda name: self._value(name, step.inputs[name], inputs, results)):
            location = step.outputs[name].location
            if location is None:
                results[name] = result
            else:
                self._at(location, result.nbytes).write(result)

    def _value(self, name: str, value: TensorValue, inputs: Sequence[Array], results: Mapping[str, Any]) -> Any:
        """A tensor as this machine sees it."""
        match value.location:
            case None:
                return results[name]
            case Location(Area.INPUT, _, number):
                return view_of(np.ascontiguousarray(inputs[number]), value)
            case Location(Area.KEPT, _, number):
                return view_of(self.image.kept[number], value)
            case spot:
                read = self._at(spot, value.kind.size_bytes).read()
                return read.view(DType(value.kind.dtype).numpy).reshape(value.kind.shape or ())

    def _result(self, port: ImagePort, inputs: Sequence[Array], results: Mapping[str, Any]) -> Any:
        """An output that is the caller's alone from now on."""
        value, location = self._value(port.tensor, port.value, inputs, results), port.value.location
        is_fresh = location is not None and location.area not in (Area.INPUT, Area.KEPT)
        return value if is_fresh or not isinstance(value, np.ndarray) else value.copy()

    def close(self) -> None:
        """Let go of the code and the memory, when a run under way has ended."""
        with self._device.turn:
            self._is_open = False
            self._parts = []
            self._memory = {}


def _sizes_bytes(image: Image) -> dict[Place, int]:
    """What is needed of each area of the device's memory."""
    sizes = {(Area.ARENA, 0): image.arena_bytes}
    sizes |= {(Area.CONSTANTS, number): block.nbytes for number, block in enumerate(image.constants)}
    sizes |= {(Area.INPUT, number): port.value.kind.size_bytes for number, port in enumerate(image.inputs)}
    sizes |= {(Area.OUTPUT, number): kind.size_bytes for number, kind in image.output_types.items()}
    return {place: size for place, size in sizes.items() if size}
